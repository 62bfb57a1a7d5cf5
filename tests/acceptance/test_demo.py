"""`pointsman demo`: the whole path with real processes, on both databases."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dispatcher.cli.demo.processes import tree

COMMAND = [sys.executable, "-m", "dispatcher.cli", "demo"]
KEYS = [
    "ok",
    "database",
    "orders",
    "completed",
    "start_ms",
    "e2e_ms",
    "killed_holding",
    "recovered",
    "recorded_tasks_run_twice",
    "recovery_ms",
    "zombie",
    "redis",
    "sqs",
    "invariants_ok",
    "seconds",
]


@pytest.mark.parametrize(("options", "database"), [([], "sqlite"), (["--postgres"], "postgresql")])
def test_a_run_outlives_its_executor(options: list[str], database: str) -> None:
    """Orders complete on every route, runs of killed processes elsewhere, the zombie is refused, invariants hold."""
    played = subprocess.run(
        [*COMMAND, "--runs", "20", *options], capture_output=True, text=True, timeout=180, check=False
    )
    figures: dict[str, Any] = json.loads(played.stdout.splitlines()[-1])

    assert played.returncode == 0, played.stderr
    assert list(figures) == KEYS
    assert figures["database"] == database
    assert (figures["orders"], figures["completed"]) == (20, 20)
    assert (figures["killed_holding"], figures["recovered"], figures["recorded_tasks_run_twice"]) == (20, 20, 0)
    assert figures["zombie"] == {"revisions": [5, 6, 7], "status": 409, "code": "revision_conflict", "clean": True}
    for broker in ("redis", "sqs"):
        through = figures[broker]
        assert (through["orders"], through["completed"]) == (5, 5)
        assert (through["killed_holding"], through["recovered"]) == (5, 5)
        assert through["start_ms"]["p50"] <= through["start_ms"]["p99"]
    assert (figures["invariants_ok"], figures["ok"]) == (True, True)


def test_a_demo_ended_from_outside_leaves_nothing_behind() -> None:
    """SIGTERM ends the demo with a failure, and every process it started."""
    with subprocess.Popen(
        [*COMMAND, "--runs", "5000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stderr is not None
        assert demo.stdout is not None
        while "Lambda runtime clients" not in demo.stderr.readline():
            assert demo.poll() is None
        children = tree(demo.pid)[1:]
        demo.send_signal(signal.SIGTERM)
        last = json.loads(demo.stdout.read().splitlines()[-1])
        assert demo.wait() == 1
    assert last == {"ok": False, "error": "stopped before its end"}
    assert len(children) >= 9
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
