"""`pointsman schedule …` against a stand-in for the API."""

import json
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from dispatcher.cli.application import application

NIGHTLY: dict[str, Any] = {
    "name": "nightly",
    "namespace": "default",
    "workflow": "report",
    "version": None,
    "cron": "0 2 * * *",
    "timezone": "Europe/Berlin",
    "everyMs": None,
    "input": {"a": 1},
    "overlap": "skip",
    "catchUp": 1,
    "jitterMs": 0,
    "pool": "default",
    "tags": {},
    "priority": 5,
    "owner": "yaml",
    "state": "active",
    "problem": None,
    "next": ["2026-12-02T01:00:00.000Z", "2026-12-03T01:00:00.000Z"],
    "last": {"runId": "run_1", "scheduledFor": "2026-12-01T01:00:00.000Z", "status": "completed"},
    "skipped": 3,
    "createdAt": "2026-11-01T00:00:00.000Z",
    "updatedAt": "2026-11-01T00:00:00.000Z",
}
BEAT = {**NIGHTLY, "name": "beat", "cron": None, "everyMs": 1500, "timezone": "UTC", "next": [], "last": None}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The API answers as it does; the calls it was asked, each with its body."""
    seen: list[tuple[str, Any]] = []

    def request(method: str, url: str, **options: Any) -> httpx.Response:
        path = httpx.Request(method, url, params=options["params"]).url.raw_path.decode()
        seen.append((f"{method} {path}", json.loads(options["content"]) if options["content"] else None))
        if path.endswith("run-now"):
            run = {"id": "run_2", "workflow": "report", "version": "1", "status": "queued"}
            return httpx.Response(201, json={"run": run, "created": True})
        if path.endswith("backfill"):
            started = {"runId": "run_3", "scheduledFor": "2026-11-30T01:00:00.000Z", "created": False}
            return httpx.Response(200, json={"runs": [started]})
        if path.startswith("/v1/schedules?"):
            return httpx.Response(200, json={"items": [BEAT, NIGHTLY], "next": "nightly"})
        return httpx.Response(200, json={"schedule": NIGHTLY})

    monkeypatch.setattr(httpx, "request", request)
    return seen


def run(*words: str) -> Result:
    result = CliRunner().invoke(application, ["schedule", *words])
    assert result.exit_code == 0, result.output
    return result


def test_schedules_as_a_table(asked: list[tuple[str, Any]]) -> None:
    """A line for each, with its rule in words, what is next and what was last, and how to go on."""
    shown = run("list", "--limit", "2", "--after", "a")

    header, beat, nightly = shown.stdout.splitlines()
    assert header.split() == ["name", "workflow", "rule", "owner", "state", "next", "last", "skipped", "problem"]
    assert beat.split() == ["beat", "report", "every", "1.5", "s", "yaml", "active", "-", "-", "3", "-"]
    assert "0 2 * * * Europe/Berlin" in nightly
    assert "2026-12-02T01:00:00.000Z  2026-12-01T01:00:00.000Z" in nightly
    assert shown.stderr == "More: --after nightly\n"
    assert asked == [("GET /v1/schedules?limit=2&after=a", None)]


def test_a_schedule_in_full(asked: list[tuple[str, Any]]) -> None:
    """Its facts, the run it started last, and each occurrence to come on a line of its own."""
    lines = [line.split() for line in run("show", "a/b").stdout.splitlines()]

    assert ["cron", "0", "2", "*", "*", "*"] in lines
    assert ["last", "2026-12-01T01:00:00.000Z", "run_1", "completed"] in lines
    assert lines[-2:] == [["next", "2026-12-02T01:00:00.000Z"], ["next", "2026-12-03T01:00:00.000Z"]]
    assert asked == [("GET /v1/schedules/a%2Fb", None)]


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_pause_and_resume(asked: list[tuple[str, Any]], verb: str) -> None:
    """The schedule is shown as it is then."""
    assert run(verb, "nightly").stdout.splitlines()[1].startswith("nightly")
    assert asked == [(f"POST /v1/schedules/nightly/{verb}", {})]


def test_run_now(asked: list[tuple[str, Any]]) -> None:
    """The run that was started is shown."""
    assert run("run-now", "nightly", "--request-id", "r1").stdout.splitlines()[1].split()[0] == "run_2"
    assert asked == [("POST /v1/schedules/nightly/run-now", {"requestId": "r1"})]


def test_backfill(asked: list[tuple[str, Any]]) -> None:
    """Each occurrence is shown with its run, and whether that is new."""
    words = ("backfill", "nightly", "--from", "2026-11-30T00:00:00Z", "--to", "2026-12-01T00:00:00Z")
    assert run(*words).stdout.splitlines()[1].split() == ["2026-11-30T01:00:00.000Z", "run_3", "false"]
    assert asked == [
        ("POST /v1/schedules/nightly/backfill", {"from": "2026-11-30T00:00:00Z", "to": "2026-12-01T00:00:00Z"})
    ]


def test_json_lines(asked: list[tuple[str, Any]]) -> None:
    """-o jsonl is a schedule a line, -o json the answer as it came."""
    assert [json.loads(line) for line in run("list", "-o", "jsonl").stdout.splitlines()] == [BEAT, NIGHTLY]
    assert json.loads(run("show", "nightly", "-o", "json").stdout) == {"schedule": NIGHTLY}
