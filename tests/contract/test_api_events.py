"""Events, waits and delays over HTTP: every answer and every code, on both databases."""

from typing import Any

import pytest

from endpoint_sdk.wire import identity, limits
from tests.contract.api import World, refused

UNKNOWN = identity.new("run")
SOON = {"kind": "sleep", "name": "rest", "ordinal": 0, "deadline": "2100-01-01T00:00:00Z"}
GO = {"kind": "event", "name": "go", "ordinal": 0}


async def parked(world: World, *waits: Any) -> dict[str, Any]:
    """A run that waits for these, as the API shows it."""
    grant = await world.held()
    answer = await world.progress(grant, {"kind": "park", "waits": list(waits)})
    assert answer.json() == {
        "revision": 2,
        "stop": None,
        "signalSeq": 0,
        "parked": True,
        "signals": [],
        "stopReason": None,
    }
    shown: dict[str, Any] = (await world.admin("GET", f"/v1/runs/{grant['run']['id']}")).json()["run"]
    return shown


async def test_a_parked_run_shows_its_waits(world: World) -> None:
    """The run says what it waits for and when it is due."""
    run = await parked(world, SOON, GO)
    assert (run["status"], run["wakeAt"]) == ("awaiting_event", "2100-01-01T00:00:00.000Z")
    assert run["waits"] == [
        {"kind": "event", "name": "go", "ordinal": 0, "deadline": None},
        {"kind": "sleep", "name": "rest", "ordinal": 0, "deadline": "2100-01-01T00:00:00.000Z"},
    ]


async def test_send_an_event(world: World) -> None:
    """An event is answered with its id and whether it is new; the run that waited for it is queued."""
    run = await parked(world, GO)
    sender = await world.caller("submit")
    body = {"name": "go", "value": {"ok": True}, "eventId": "e1"}
    first = await sender("POST", f"/v1/runs/{run['id']}/events", body)
    again = await sender("POST", f"/v1/runs/{run['id']}/events", body)
    assert (first.status_code, first.json()) == (200, {"eventId": "e1", "stored": True})
    assert (again.status_code, again.json()) == (200, {"eventId": "e1", "stored": False})
    assert (await world.admin("GET", f"/v1/runs/{run['id']}")).json()["run"]["status"] == "queued"
    listed = (await world.admin("GET", f"/v1/runs/{run['id']}/events")).json()
    [event] = listed["items"]
    assert listed["next"] is None
    assert event.pop("at")
    assert event == {"number": 1, "name": "go", "eventId": "e1", "value": {"ok": True}, "consumedBy": 1}


async def test_an_event_gets_an_id(world: World) -> None:
    """Without an id of the caller's the event has one of ours."""
    run = await world.submit()
    answer = await world.admin("POST", f"/v1/runs/{run['id']}/events", {"name": "go", "value": None})
    assert identity.is_id("evt", answer.json()["eventId"])


REFUSED = [
    ({"name": "go"}, 400, "malformed"),
    ({"value": 1}, 400, "malformed"),
    ({"name": "", "value": 1}, 400, "malformed"),
    ({"name": "go\n", "value": 1}, 400, "malformed"),
    ({"name": "go", "value": 1, "eventID": "x"}, 400, "unknown_field"),
    ({"name": "go", "value": "a" * limits.MAX_EVENT}, 413, "payload_too_large"),
]


@pytest.mark.parametrize(("body", "status", "code"), REFUSED)
async def test_refused_events(world: World, body: dict[str, Any], status: int, code: str) -> None:
    """An event that is malformed or too large is refused whole."""
    run = await world.submit()
    refused(await world.admin("POST", f"/v1/runs/{run['id']}/events", body), status, code)
    assert (await world.admin("GET", f"/v1/runs/{run['id']}/events")).json()["items"] == []


async def test_events_need_a_run_and_a_scope(world: World) -> None:
    """Senders need the scope submit and a run of their namespace that has not ended."""
    body = {"name": "go", "value": 1}
    run = await world.submit()
    path = f"/v1/runs/{run['id']}/events"
    refused(await (await world.caller("read"))("POST", path, body), 403, "forbidden")
    refused(await (await world.caller("submit", namespace="other"))("POST", path, body), 404, "run_not_found")
    refused(await world.admin("POST", f"/v1/runs/{UNKNOWN}/events", body), 404, "run_not_found")
    refused(await world.admin("POST", "/v1/runs/x/events", body), 400, "bad_parameter")
    refused(await world.admin("GET", f"/v1/runs/{UNKNOWN}/events"), 404, "run_not_found")
    await world.admin("POST", f"/v1/runs/{run['id']}/cancel", {})
    refused(await world.admin("POST", path, body), 409, "run_finished")


async def test_send_to_many(world: World) -> None:
    """One result per target, in order."""
    run = await parked(world, GO)
    keyed = await world.submit(idempotencyKey="k")
    body = {
        "name": "go",
        "value": 1,
        "eventId": "e1",
        "targets": [run["id"], {"workflow": "order", "idempotencyKey": "k"}, UNKNOWN],
    }
    answer = await world.admin("POST", "/v1/events", body)
    assert answer.status_code == 200
    first, second, third = answer.json()["results"]
    assert first == {"runId": run["id"], "eventId": "e1", "stored": True}
    assert second == {"runId": keyed["id"], "eventId": "e1", "stored": True}
    assert third["error"]["code"] == "run_not_found"
    again = (await world.admin("POST", "/v1/events", body)).json()["results"]
    assert [result.get("stored") for result in again] == [False, False, None]


@pytest.mark.parametrize("targets", [[], ["x"] * 501, [{"workflow": "order"}], [1]])
async def test_targets(world: World, targets: list[Any]) -> None:
    """From 1 to 500 targets, each a run id or a workflow with a key."""
    refused(await world.admin("POST", "/v1/events", {"name": "go", "value": 1, "targets": targets}), 400, "malformed")


async def test_a_refused_park_is_an_answer(world: World) -> None:
    """200 with the outcomes the executor lacks; the claim goes on."""
    grant = await world.held()
    await world.admin("POST", f"/v1/runs/{grant['run']['id']}/events", {"name": "go", "value": [1]})
    answer = await world.progress(grant, {"kind": "park", "waits": [GO]})
    assert answer.status_code == 200
    said = answer.json()
    assert (said["revision"], said["parked"], said["signalSeq"]) == (1, False, 1)
    [signal] = said["signals"]
    assert (signal["kind"], signal["name"], signal["value"], signal["seq"]) == ("event", "go", [1], 1)


@pytest.mark.parametrize(
    "waits",
    [
        [],
        [{"kind": "nap", "name": "a", "ordinal": 0}],
        [{"kind": "sleep", "name": "a", "ordinal": 0}],
        [{**SOON, "deadline": "x"}],
    ],
)
async def test_malformed_parks(world: World, waits: list[Any]) -> None:
    """A park waits for something, and for nothing that would never end."""
    refused(await world.progress(await world.held(), {"kind": "park", "waits": waits}), 400, "malformed")


async def test_wake_pause_and_resume(world: World) -> None:
    """Each answers the run as it is then, and is refused where it makes no sense."""
    run = await parked(world, SOON)
    path = f"/v1/runs/{run['id']}"
    assert (await world.admin("POST", f"{path}/pause")).json()["run"]["status"] == "paused"
    refused(await world.admin("POST", f"{path}/wake"), 409, "illegal_transition")
    assert (await world.admin("POST", f"{path}/resume")).json()["run"]["status"] == "sleeping"
    woken = (await world.admin("POST", f"{path}/wake")).json()["run"]
    assert (woken["status"], woken["waits"], woken["wakeAt"]) == ("queued", [], None)
    error = refused(await world.admin("POST", f"{path}/resume"), 409, "illegal_transition")
    assert error["details"] == {"status": "queued", "operation": "resume"}
    refused(await (await world.caller("submit"))("POST", f"{path}/wake"), 403, "forbidden")


async def test_submit_for_later(world: World) -> None:
    """A run with a delay or a due time is born scheduled, and says when it is due."""
    run = await world.submit(dueAt="2100-01-01T01:00:00+01:00")
    assert (run["status"], run["dueAt"], run["wakeAt"], run["queuedAt"]) == (
        "scheduled",
        "2100-01-01T00:00:00.000Z",
        "2100-01-01T00:00:00.000Z",
        None,
    )
    assert (await world.submit(delayMs=60_000))["status"] == "scheduled"
    assert (await world.submit(delayMs=0))["status"] == "queued"
    body = {"workflow": "order", "version": "1", "dueAt": "2100-01-01T00:00:00Z", "delayMs": 1}
    refused(await world.admin("POST", "/v1/runs", body), 400, "malformed")


async def test_why_a_run_waits(world: World) -> None:
    """The sentence says what the run waits for, until when, and how to end it."""
    run = await parked(world, SOON, GO)
    why = (await world.admin("GET", f"/v1/runs/{run['id']}/why")).json()
    assert "event 'go'" in why["sentence"]
    assert why["next"] == f"pointsman run send {run['id']} go VALUE"
    assert len(why["facts"]["waits"]) == 2
    sleeping = await parked(world, SOON)
    why = (await world.admin("GET", f"/v1/runs/{sleeping['id']}/why")).json()
    assert "'rest'" in why["sentence"]
    assert "2100-01-01" in why["sentence"]
    assert why["next"] == f"pointsman run wake {sleeping['id']}"
    await world.admin("POST", f"/v1/runs/{sleeping['id']}/pause")
    why = (await world.admin("GET", f"/v1/runs/{sleeping['id']}/why")).json()
    assert why["next"] == f"pointsman run resume {sleeping['id']}"
    later = await world.submit(delayMs=60_000)
    assert "scheduled" in (await world.admin("GET", f"/v1/runs/{later['id']}/why")).json()["sentence"]
