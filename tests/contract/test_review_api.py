"""What a review found in the API: waiting for a run that stalls, and how much a stall may say."""

import asyncio
import json

from tests.contract.api import World, refused


async def test_a_waiter_on_a_run_that_stalls_does_not_spin(world: World) -> None:
    """A stalled run has not ended: who waits for its result goes on waiting, at a look a second."""
    grant = await world.held()
    run_id = grant["run"]["id"]
    waiting = asyncio.create_task(world.admin("GET", f"/v1/runs/{run_id}/result?waitMs=1200"))
    async with asyncio.timeout(5):
        while not world.dispatcher.services.completion._waiting:  # noqa: ASYNC110 - re-asserted with a deadline
            await asyncio.sleep(0)
    answer = await world.progress(grant, {"kind": "stall", "reason": "divergence", "details": {}})
    assert answer.status_code == 200
    before = world.store.statements
    assert (await waiting).status_code == 202
    assert world.store.statements - before < 10


async def test_the_details_of_a_stall_are_bounded(world: World) -> None:
    """They are a payload like every other: 1 MiB at most, else nothing is stored."""
    grant = await world.held()
    ending = {"kind": "stall", "reason": "divergence", "details": {"asked": "x" * 2_000_000}}
    refused(await world.progress(grant, ending), 413, "payload_too_large")
    assert (await world.progress(grant)).status_code == 200


async def test_payloads_of_executors_can_be_read_back(world: World) -> None:
    """A number no reader can hold is refused in a record and in a result, and nothing is stored."""
    grant = await world.held()
    record = {
        "kind": "task",
        "name": "charge",
        "argsHash": "a",
        "ordinal": 0,
        "phase": "ended",
        "state": "completed",
        "attempt": 1,
        "value": 1,
    }
    for body in ({"records": [record], "ending": None}, {"records": [], "ending": {"kind": "complete", "result": 1}}):
        fence = {"expectedRevision": grant["revision"], "claimId": grant["claimId"], "requestId": "req_x"}
        text = json.dumps({**fence, **body})
        text = text.replace('"value": 1', '"value": 1e999').replace('"result": 1', '"result": [1e999]')
        answer = await world.client.post(
            f"/v1/runs/{grant['run']['id']}/progress",
            content=text,
            headers={"authorization": f"Bearer {grant['token']}"},
        )
        refused(answer, 400, "malformed")
    page = await world.admin("GET", f"/v1/runs/{grant['run']['id']}/records")
    assert page.json()["items"] == []
