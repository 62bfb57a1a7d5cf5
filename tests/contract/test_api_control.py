"""Restarting, requeueing, acting on many runs, and what the API says of runs that do not move."""

from typing import Any

import pytest

from endpoint_sdk.wire import identity
from tests.contract.api import World, refused

TASK = {
    "kind": "task",
    "name": "charge",
    "argsHash": "a",
    "ordinal": 0,
    "phase": "ended",
    "state": "completed",
    "attempt": 1,
    "value": 7,
}
ERROR = {"type": "Boom", "message": "no"}
RECORDED = {"kind": "task", "name": "charge", "ordinal": 0, "preview": None, "seq": 1}
ASKED = {"kind": "task", "name": "refund", "ordinal": 0, "preview": None}
DIVERGED = {
    "kind": "stall",
    "reason": "divergence",
    "details": {"recorded": [RECORDED], "new": [ASKED], "message": "recorded task charge was never asked for"},
}


async def _ended(world: World, ending: Any, **fields: Any) -> str:
    """The id of a run with one record that ended so."""
    grant = await world.held(**fields)
    answer = await world.progress(grant, ending, [TASK])
    assert answer.status_code == 200, answer.text
    run_id: str = grant["run"]["id"]
    return run_id


async def _why(world: World, run_id: str) -> Any:
    return (await world.admin("GET", f"/v1/runs/{run_id}/why")).json()


# --- endings ----------------------------------------------------------------------------------------------------------
async def test_a_run_is_tried_again(world: World) -> None:
    """The ending retry is answered like any other; the run shows its error and when it goes on."""
    run_id = await _ended(world, {"kind": "retry", "error": ERROR, "delayMs": 3_600_000})
    run = (await world.admin("GET", f"/v1/runs/{run_id}")).json()["run"]
    assert (run["status"], run["attempt"], run["error"]["type"]) == ("awaiting_retry", 1, "Boom")
    assert run["wakeAt"] is not None
    result = await world.admin("GET", f"/v1/runs/{run_id}/result")
    assert (result.status_code, result.json()["error"]) == (202, None)
    why = await _why(world, run_id)
    assert why["sentence"].startswith("Attempt 1 failed (Boom) and the run waits for its next, until ")
    assert why["next"] == f"pointsman run wake {run_id}"


async def test_a_run_begins_anew(world: World) -> None:
    """The ending restart queues the run with its next input; the next grant has no records and names the generation."""
    run_id = await _ended(world, {"kind": "restart", "input": {"round": 2}})
    run = (await world.admin("GET", f"/v1/runs/{run_id}")).json()["run"]
    assert (run["status"], run["reason"], run["input"]) == ("queued", "restarted", {"round": 2})
    grant = (await world.claim(run)).json()
    assert (grant["run"]["generation"], grant["records"]) == (1, [])


@pytest.mark.parametrize(
    "ending",
    [
        {"kind": "retry", "error": ERROR},
        {"kind": "retry", "error": ERROR, "delayMs": -1},
        {"kind": "retry", "error": ERROR, "delayMs": 0.5},
        {"kind": "retry", "delayMs": 1},
        {"kind": "restart"},
    ],
)
async def test_endings_that_say_too_little(world: World, ending: Any) -> None:
    """A retry needs an error and whole milliseconds, a restart an input; the claim is not lost by it."""
    grant = await world.held()
    refused(await world.progress(grant, ending), 400, "malformed")
    assert (await world.progress(grant)).status_code == 200


# --- restart and requeue ----------------------------------------------------------------------------------------------
async def test_a_run_is_restarted_from_a_record(world: World) -> None:
    """The answer is the new run; a run that goes on is refused, and so is what names no record."""
    run_id = await _ended(world, {"kind": "fail", "error": ERROR})
    path = f"/v1/runs/{run_id}/restart"
    sent = {"from": 2, "requestId": "once"}
    new = (await world.admin("POST", path, sent)).json()["run"]
    assert (await world.admin("POST", path, sent)).json()["run"]["id"] == new["id"]
    assert (new["status"], new["id"] != run_id) == ("queued", True)
    records = (await world.admin("GET", f"/v1/runs/{new['id']}/records")).json()["items"]
    assert [(record["seq"], record["name"], record["value"]) for record in records] == [(1, "charge", 7)]
    [birth] = (await world.admin("GET", f"/v1/runs/{new['id']}/transitions")).json()["items"]
    assert (birth["reason"], birth["details"]["runId"]) == ("restart_of", run_id)
    for body in ({}, {"from": 0}, {"from": "1"}, {"from": 1.5}):
        refused(await world.admin("POST", path, body), 400, "malformed")
    refused(await world.admin("POST", path, {"from": 1, "to": 2}), 400, "unknown_field")
    refused(await world.admin("POST", f"/v1/runs/{new['id']}/restart", {"from": 1}), 409, "illegal_transition")
    refused(await world.admin("POST", f"/v1/runs/{identity.new('run')}/restart", {"from": 1}), 404, "run_not_found")
    refused(await (await world.caller("submit"))("POST", path, {"from": 1}), 403, "forbidden")


async def test_a_stalled_run_names_what_it_was_restarted_as(world: World) -> None:
    """Why a cancelled run that was restarted will not move: because another goes on, and which."""
    run_id = await _ended(world, DIVERGED)
    new = (await world.admin("POST", f"/v1/runs/{run_id}/restart", {"from": 1})).json()["run"]["id"]
    why = await _why(world, run_id)
    assert why["sentence"] == f"The run is cancelled: it was restarted as {new}."
    assert why["next"] == f"pointsman run show {new}"


async def test_a_diverged_run_is_requeued_without_what_it_lists(world: World) -> None:
    """`discardUnconsumed` forgets the record the stall lists; without such a list it is refused."""
    run_id = await _ended(world, DIVERGED)
    why = await _why(world, run_id)
    assert "recorded task charge was never asked for" in why["sentence"]
    assert why["next"] == f"pointsman run requeue {run_id}"
    answer = await world.admin("POST", f"/v1/runs/{run_id}/requeue", {"discardUnconsumed": True, "version": "2"})
    assert (answer.json()["run"]["status"], answer.json()["run"]["version"]) == ("queued", "2")
    assert (await world.admin("GET", f"/v1/runs/{run_id}/records")).json()["items"] == []
    other = await _ended(world, {"kind": "stall", "reason": "divergence"})
    refused(
        await world.admin("POST", f"/v1/runs/{other}/requeue", {"discardUnconsumed": True}), 422, "nothing_to_discard"
    )


async def test_a_full_mailbox(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that takes no events is sent so many and no more."""
    from endpoint_sdk.wire import limits

    monkeypatch.setattr(limits, "MAX_UNREAD", 1)
    run = await world.submit()
    path, event = f"/v1/runs/{run['id']}/events", {"name": "go", "value": 1}
    assert (await world.admin("POST", path, event)).status_code in {200, 201}
    refused(await world.admin("POST", path, event), 422, "mailbox_full")


# --- many runs --------------------------------------------------------------------------------------------------------
async def test_an_action_on_many_runs(world: World) -> None:
    """A dry run counts, a real one is accepted and can be looked at until it has come to the last run."""
    for _ in range(2):
        await world.submit()
    body = {"action": "cancel", "filter": {"workflow": "order", "status": "queued"}, "reason": "sale over"}
    dry = await world.admin("POST", "/v1/runs/actions", {**body, "dryRun": True})
    assert (dry.status_code, dry.json()) == (200, {"id": None, "matched": 2, "started": False})
    started = await world.admin("POST", "/v1/runs/actions", body)
    assert (started.status_code, started.json()["matched"], started.json()["started"]) == (202, 2, True)
    path = f"/v1/runs/actions/{started.json()['id']}"
    before = (await world.admin("GET", path)).json()
    assert (before["applied"], before["finishedAt"], before["filter"]["workflow"]) == (0, None, "order")
    await world.dispatcher.actions.once()
    await world.dispatcher.actions.once()
    after = (await world.admin("GET", path)).json()
    assert (after["applied"], after["refused"], after["finishedAt"] is None) == (2, 0, False)
    runs = (await world.admin("GET", "/v1/runs?reason=sale%20over")).json()["items"]
    assert [run["status"] for run in runs] == ["cancelled", "cancelled"]


async def test_actions_that_are_refused(world: World) -> None:
    """What has no condition, knows no such action or field, or is asked for by whom it is not for, is refused."""
    path = "/v1/runs/actions"
    refused(await world.admin("POST", path, {"action": "cancel", "filter": {}}), 400, "bad_parameter")
    refused(await world.admin("POST", path, {"action": "delete", "filter": {"workflow": "a"}}), 400, "malformed")
    refused(await world.admin("POST", path, {"action": "cancel", "filter": {"flow": "a"}}), 400, "unknown_field")
    refused(await world.admin("POST", path, {"action": "cancel", "filter": {"ids": ["run_1"] * 501}}), 400, "malformed")
    for action, more in (
        ("requeue", {"reason": "divergence"}),
        ("pause", {"now": True}),
        ("cancel", {"version": "2"}),
        ("release", {"discardUnconsumed": True}),
    ):
        body = {"action": action, "filter": {"workflow": "a"}, "dryRun": True, **more}
        refused(await world.admin("POST", path, body), 400, "bad_parameter")
    body = {"action": "cancel", "filter": {"workflow": "a"}}
    refused(await (await world.caller("submit"))("POST", path, body), 403, "forbidden")
    refused(await world.admin("GET", f"{path}/{identity.new('act')}"), 404, "action_not_found")


# --- versions nobody serves -------------------------------------------------------------------------------------------
async def _poll(world: World, version: str, **fields: Any) -> None:
    poller = await world.caller("execute")
    body = {
        "workflows": [{"name": "order", "versions": [version]}],
        "requestId": identity.new("req"),
        "executor": {"id": "worker"},
        "refreshIntervalMs": 1_000,
        "limit": 0,
        **fields,
    }
    assert (await poller("POST", "/v1/claims", body)).status_code == 200


async def test_a_version_nobody_serves_is_a_warning(world: World) -> None:
    """C45: runs of an unknown version wait, and queues and why say so, how many they are, and what to do."""
    runs = [await world.submit() for _ in range(2)]
    [queue] = (await world.admin("GET", "/v1/queues")).json()["items"]
    assert queue["warning"]["code"] == "version_unserved"
    assert queue["warning"]["message"] == (
        "Nobody serves order 1: no endpoint lists it, no poller asks for it; 2 runs of it wait."
    )
    await _poll(world, "1.1.0")
    [queue] = (await world.admin("GET", "/v1/queues")).json()["items"]
    assert queue["warning"]["message"] == "Nobody serves order 1, only 1.1.0; 2 runs of it wait."
    assert 'accepts=["1"]' in queue["warning"]["hint"]
    why = await _why(world, runs[0]["id"])
    assert why["sentence"] == queue["warning"]["message"]
    assert (why["facts"]["warning"], why["next"]) == (queue["warning"], "pointsman endpoint list")
    await _poll(world, "1")
    [queue] = (await world.admin("GET", "/v1/queues")).json()["items"]
    assert queue["warning"] is None
    run = (await world.admin("GET", f"/v1/runs/{runs[0]['id']}")).json()["run"]
    assert (run["status"], run["endingsWithoutProgress"]) == ("queued", 0)


async def test_a_poll_declares_what_it_serves(world: World) -> None:
    """What an executor announces of its workflows is what submits and failures go by."""
    declared = {"name": "order", "version": "1", "timeoutMs": 60_000, "onFailure": {"name": "mend", "version": "2"}}
    await _poll(world, "1", declares=[declared])
    run_id = await _ended(world, {"kind": "fail", "error": ERROR})
    [follower] = (await world.admin("GET", "/v1/runs?workflow=mend")).json()["items"]
    assert (follower["input"]["runId"], follower["version"]) == (run_id, "2")
