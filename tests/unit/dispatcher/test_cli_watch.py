"""`pointsman run watch` against a stand-in for the API whose run moves from call to call."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner, Result

from dispatcher.cli import following
from dispatcher.cli.application import application

AT = "2026-12-01T10:00:0{}.000Z"
SUBMITTED = {"revision": 0, "from": None, "to": "queued", "reason": "submitted", "actor": "key:a", "at": AT.format(0)}
CLAIMED = {"revision": 1, "from": "queued", "to": "running", "reason": "claimed", "actor": "executor"}
CLAIMED = {**CLAIMED, "at": AT.format(1)}
ENDED = {"revision": 2, "from": "running", "to": "completed", "reason": None, "actor": "executor", "at": AT.format(3)}
CHARGE = {"seq": 1, "kind": "task", "name": "charge", "state": "completed", "attempt": 2, "preview": '{"cents":5}'}
CHARGE = {**CHARGE, "startedAt": AT.format(2), "finishedAt": AT.format(3)}

Scene = dict[str, Any]
Play = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the developer's, and no waiting between two looks."""
    for name in ("URL", "API_KEY", "NAMESPACE"):
        monkeypatch.delenv(f"POINTSMAN_{name}", raising=False)
    monkeypatch.setattr(following, "_PAUSE", 0)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Makes the API show one scene a look, the last one for ever; answers the list of calls made."""

    def playing(*scenes: Scene) -> list[str]:
        seen: list[str] = []
        looks = iter(scenes)
        shown: list[Scene] = []

        def request(method: str, url: str, params: dict[str, Any], **_: Any) -> httpx.Response:
            call = urlsplit(url).path.rpartition("/")[2]
            seen.append(f"{method} {call} {params.get('after')}")
            if method == "POST":
                return httpx.Response(201, json={"run": {"id": "run_1"}})
            if call == "result":
                shown[:] = [next(looks, shown[0] if shown else {})]
                return httpx.Response(200, json=shown[0]["result"])
            if call == "why":
                return httpx.Response(200, json={"sentence": "It crashed.", "next": "pointsman run requeue run_1"})
            place = "revision" if call == "transitions" else "seq"
            items = [item for item in shown[0][call] if params.get("after") is None or item[place] > params["after"]]
            return httpx.Response(200, json={"items": items, "next": None})

        monkeypatch.setattr(httpx, "request", request)
        return seen

    return playing


def scene(status: str, transitions: list[Any], records: list[Any], **result: Any) -> Scene:
    return {"result": {"status": status, **result}, "transitions": transitions, "records": records}


def run(*words: str) -> Result:
    return CliRunner().invoke(application, list(words))


def test_every_happening_is_told_once_and_in_order(play: Play) -> None:
    """Each look asks for what is new only; a record comes before the move it led to; a completed run is exit code 0."""
    seen = play(
        scene("queued", [SUBMITTED], []),
        scene("running", [SUBMITTED, CLAIMED], []),
        scene("completed", [SUBMITTED, CLAIMED, ENDED], [CHARGE], result="fine", error=None),
    )

    result = run("run", "watch", "run_1")

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "   +0.000 s  queued  (submitted)  by key:a",
        "   +1.000 s  queued -> running  (claimed)  by executor",
        '   +3.000 s    task charge {"cents":5} completed, attempt 2',
        "   +3.000 s  running -> completed  by executor",
        '             completed  "fine"',
    ]
    assert [call for call in seen if "transitions" in call] == [
        "GET transitions None",
        "GET transitions 0",
        "GET transitions 1",
    ]


def test_jsonl_is_one_object_a_happening(play: Play) -> None:
    """-o jsonl prints the API's own items with their type, and the end last."""
    play(scene("completed", [SUBMITTED, CLAIMED, ENDED], [CHARGE], result=[1], error=None))

    lines = [json.loads(line) for line in run("run", "watch", "run_1", "-o", "jsonl").stdout.splitlines()]

    assert [line["type"] for line in lines] == ["transition", "transition", "record", "transition", "end"]
    assert lines[2] == {"type": "record", **CHARGE}
    assert lines[-1] == {"type": "end", "status": "completed", "result": [1], "error": None}


@pytest.mark.parametrize("status", ["failed", "cancelled", "stalled"])
def test_an_end_that_is_no_success_is_exit_code_1(play: Play, status: str) -> None:
    """Failed, cancelled and stalled runs end the watch with 1; a stalled one says why, and what to type."""
    ended = {**ENDED, "to": status}
    error = {"type": "Declined", "message": "no \x1b[2J"} if status == "failed" else None
    play(scene(status, [SUBMITTED, ended], [], error=error))

    result = run("run", "watch", "run_1")

    assert result.exit_code == 1
    assert "\x1b" not in result.stdout
    if status == "failed":
        assert "failed  Declined: no" in result.stdout
    if status == "stalled":
        assert "stalled  It crashed." in result.stdout
        assert "next: pointsman run requeue run_1" in result.stdout


def test_start_and_watch(play: Play) -> None:
    """`run start --watch` submits and watches; -o json prints the end alone."""
    seen = play(scene("completed", [SUBMITTED, CLAIMED, ENDED], [], result=7, error=None))

    result = run("run", "start", "order", "{}", "--watch", "-o", "json")

    assert seen[0].startswith("POST runs")
    assert (result.exit_code, result.stderr) == (0, "run_1 submitted\n")
    assert json.loads(result.stdout)["result"] == 7
