"""Operating on runs from the command line: one by its id, many by what they have in common."""

import json
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from dispatcher.cli.application import application

RUN = {
    "id": "run_2",
    "workflow": "order",
    "version": "1",
    "status": "queued",
    "reason": None,
    "revision": 0,
    "attempt": 1,
    "updatedAt": "2026-12-01T10:00:00.000Z",
}
STARTED = {"id": "act_1", "matched": 7, "started": True}


class Api:
    """What was asked of it: path and body; it answers with *body*."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.body: Any = {"run": RUN}

    def request(self, method: str, url: str, **options: Any) -> httpx.Response:
        sent = None if options["content"] is None else json.loads(options["content"])
        self.asked.append((method, httpx.URL(url).path, sent))
        return httpx.Response(200, json=self.body)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    made = Api()
    monkeypatch.setattr(httpx, "request", made.request)
    return made


def run(*words: str) -> Result:
    return CliRunner().invoke(application, ["run", *words])


def test_a_restart_names_its_record(api: Api) -> None:
    """The new run is shown, and --from is needed."""
    shown = run("restart", "run_1", "--from", "3", "--request-id", "r1")

    assert shown.exit_code == 0
    assert "run_2" in shown.stdout
    assert api.asked == [("POST", "/v1/runs/run_1/restart", {"from": 3, "requestId": "r1"})]
    assert run("restart", "run_1").exit_code == 2


def test_a_requeue_can_discard_and_change_the_version(api: Api) -> None:
    """Both options are the call's own fields."""
    run("requeue", "run_1", "--version", "2", "--discard-unconsumed")

    assert api.asked == [("POST", "/v1/runs/run_1/requeue", {"version": "2", "discardUnconsumed": True})]


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (
            ("requeue", "--reason", "divergence", "--workflow", "order", "--version", "2", "--of-version", "1"),
            {
                "action": "requeue",
                "filter": {"workflow": "order", "version": "1", "reason": "divergence"},
                "dryRun": False,
                "version": "2",
                "discardUnconsumed": False,
            },
        ),
        (
            ("cancel", "--status", "queued", "--reason", "sale over", "--with-reason", "submitted", "--dry-run"),
            {
                "action": "cancel",
                "filter": {"status": "queued", "reason": "submitted"},
                "dryRun": True,
                "reason": "sale over",
                "now": False,
            },
        ),
        (
            ("pause", "--tag", "a=b", "--idempotency-key", "k", "--stuck-for-ms", "5"),
            {
                "action": "pause",
                "filter": {"tags": {"a": "b"}, "idempotencyKey": "k", "stuckForMs": 5},
                "dryRun": False,
            },
        ),
        (("resume", "--workflow", "o"), {"action": "resume", "filter": {"workflow": "o"}, "dryRun": False}),
        (("wake", "--workflow", "o"), {"action": "wake", "filter": {"workflow": "o"}, "dryRun": False}),
        (
            ("release", "--workflow", "o"),
            {"action": "release", "filter": {"workflow": "o"}, "dryRun": False, "reason": ""},
        ),
    ],
)
def test_filters_make_an_action(api: Api, words: tuple[str, ...], body: Any) -> None:
    """Without an id the conditions go to the server, which counts, and applies the action by and by."""
    api.body = STARTED
    shown = run(*words)

    assert shown.exit_code == 0, shown.output
    assert api.asked == [("POST", "/v1/runs/actions", body)]
    assert "7" in shown.stdout
    assert "pointsman run action act_1" in shown.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("cancel",),
        ("cancel", "run_1", "--workflow", "order"),
        ("pause", "run_1", "--dry-run"),
        ("requeue", "--dry-run"),
        ("wake", "--tag", "x"),
    ],
)
def test_neither_a_run_nor_filters_or_both_is_wrong_usage(api: Api, words: tuple[str, ...]) -> None:
    """Nothing is sent unless it is clear which runs are meant."""
    assert run(*words).exit_code == 2
    assert api.asked == []


def test_an_action_is_looked_at(api: Api) -> None:
    """How far it has come, in facts."""
    api.body = {"id": "act_1", "action": "cancel", "matched": 7, "applied": 3, "refused": 1, "finishedAt": None}
    shown = run("action", "act_1")

    assert api.asked == [("GET", "/v1/runs/actions/act_1", None)]
    assert "applied" in shown.stdout
    assert "3" in shown.stdout
