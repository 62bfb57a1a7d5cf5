"""What follows a failure: one run of the workflow the failed one's code names."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from dispatcher.declarations import Declarations
from dispatcher.store import runs
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import Complete, ErrorObject, Fail, Retry, ServedWorkflow, WorkflowRef
from tests.integration.world import NAMESPACE, World

ORDER = ServedWorkflow("order", "1", on_failure=WorkflowRef("mend", "3"))
FAIL = Fail(ErrorObject("Boom", "no", details={"cents": 1}))


async def _failed(world: World, served: ServedWorkflow = ORDER, **fields: Any) -> str:
    await Declarations(world.store).put(NAMESPACE, [served])
    claim = await world.claim(await world.submit(**fields))
    await world.write(claim, ending=FAIL)
    return claim.run_id


def _following(world: World, run_id: str, workflow: str = "mend") -> runs.Row | None:
    return world.store.transact_blocking(
        lambda session: runs.by_idempotency_key(session, NAMESPACE, workflow, f"on_failure:{run_id}")
    )


async def test_a_failure_starts_what_its_workflow_declares(world: World) -> None:
    """The run that follows knows which run failed, with what input and error, and has its pool and tags."""
    run_id = await _failed(world, pool="big", tags={"customer": "7"}, priority=8)
    following = _following(world, run_id)
    assert following is not None
    assert (following.version, following.status, following.pool, following.priority) == ("3", "queued", "big", 8)
    assert msgspec.json.decode(following.tags) == {"customer": "7"}
    assert following.parent_id is None
    told = msgspec.json.decode(following.input)
    error = {"type": "Boom", "message": "no", "retryable": True, "details": {"cents": 1}, "traceback": None}
    assert told["error"] == error
    assert {**told, "error": 0} == {
        "runId": run_id,
        "workflow": "order",
        "version": "1",
        "input": {"cents": 1},
        "error": 0,
    }
    assert world.entry(following.id).status == "pending"


async def test_nothing_follows_another_end(world: World) -> None:
    """A run that completes, is cancelled, or will be tried again starts nothing."""
    await Declarations(world.store).put(NAMESPACE, [ORDER])
    ids = []
    for ending in (Complete(Raw(b"1")), Retry(FAIL.error, 1_000), None):
        claim = await world.claim(await world.submit())
        ids.append(claim.run_id)
        if ending is None:
            await world.cancel(claim.run_id)
        else:
            await world.write(claim, ending=ending)
    assert [_following(world, run_id) for run_id in ids] == [None, None, None]


async def test_a_failure_of_what_follows_starts_nothing(world: World) -> None:
    """A workflow that names itself does not fail for ever: its own run of that kind starts none."""
    await Declarations(world.store).put(NAMESPACE, [ServedWorkflow("order", "1", on_failure=WorkflowRef("order", "1"))])
    claim = await world.claim(await world.submit())
    await world.write(claim, ending=FAIL)
    following = _following(world, claim.run_id, "order")
    assert following is not None
    await world.write(await world.claim(following.id), ending=FAIL)
    assert _following(world, following.id, "order") is None


@pytest.mark.parametrize("taken", ["key", "names"])
async def test_a_run_fails_also_where_nothing_can_follow(world: World, taken: str) -> None:
    """If its key names another run, or its names are too long for a queue, the failure is stored all the same."""
    await Declarations(world.store).put(
        NAMESPACE,
        [ServedWorkflow("order", "1", on_failure=WorkflowRef("é" * 200 if taken == "names" else "mend", "3"))],
    )
    claim = await world.claim(await world.submit(pool="é" * 200 if taken == "names" else "default"))
    if taken == "key":
        await world.submit("mend", idempotency_key=f"on_failure:{claim.run_id}")
    await world.write(claim, ending=FAIL)
    assert world.status(claim.run_id)[0] == "failed"


async def test_what_is_too_large_together_is_told_without_the_input(world: World) -> None:
    """Input and error that do not fit into one input: the run that follows is told the error, and reads the rest."""
    large = Raw(b'"' + b"x" * (limits.MAX_PAYLOAD - 100) + b'"')
    following = _following(world, await _failed(world, input=large))
    assert following is not None
    told = msgspec.json.decode(following.input)
    assert (told["input"], told["error"]["type"]) == (None, "Boom")
