"""Worker processes against a dispatcher on real sockets: started, signalled, killed, and what their tasks logged."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from tests.faults import rig

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
_STARTED = "worker started"


def execute_key(client: httpx.Client) -> str:
    """A fresh API key of scope execute."""
    answer = client.post("/v1/keys", json={"name": "worker", "scopes": ["execute"]})
    assert answer.status_code == 201, answer.text
    key: str = answer.json()["key"]
    return key


class WorkerProcess:
    """`pointsman worker` with the worker of *program* in a process of its own; may be started again."""

    def __init__(self, folder: Path, who: str, program: Path = HERE / "application.py", /, **env: str) -> None:
        self._program = program
        self.log, self.gate = folder / "bodies.log", folder / "gate"
        self.output = folder / f"{who}.out"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
        self.environment = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "BODY_LOG": str(self.log),
            "GATE": str(self.gate),
            "WHO": who,
            "POINTSMAN_SIGNING_SECRET": rig.SECRET,  # programs hold an endpoint as well
            **env,
        }
        self.process: subprocess.Popen[bytes]

    def start(self, *words: str) -> "WorkerProcess":
        """The process runs and its worker has started."""
        starts = self.output.read_text().count(_STARTED) if self.output.exists() else 0
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dispatcher.cli", "worker", f"{self._program.stem}:worker", *words],
                cwd=self._program.parent,
                env=self.environment,
                stdout=output,
                stderr=output,
            )
        rig.until(lambda: self._alive() and self.output.read_text().count(_STARTED) > starts, what="the worker")
        return self

    def _alive(self) -> bool:
        assert self.process.poll() is None, self.output.read_text()
        return True

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 20) -> tuple[int, float]:
        """The exit code, and how long it took from now."""
        began = time.monotonic()
        return self.process.wait(seconds), time.monotonic() - began

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    def bodies(self, run_id: str) -> list[str]:
        """The task bodies that began for the run, in order, and by whom."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[1] for line in lines if line.startswith(run_id)]

    def began(self, run_id: str, line: str) -> None:
        rig.until(lambda: line in self.bodies(run_id), what=f"{line} of {run_id}: {self.output.read_text()[-2000:]}")


def moves(client: httpx.Client, run_id: str) -> list[str]:
    """The statuses the run went through."""
    return [item["to"] for item in _transitions(client, run_id)]


def reasons(client: httpx.Client, run_id: str) -> list[str | None]:
    """Why the run moved, each time."""
    return [item["reason"] for item in _transitions(client, run_id)]


def _transitions(client: httpx.Client, run_id: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get(f"/v1/runs/{run_id}/transitions").json()["items"]
    return items
