"""Restarting from a record: a new run that has already done what came before it."""

from typing import Any

import pytest
from msgspec import Raw

from dispatcher import restarting
from dispatcher.declarations import Declarations
from dispatcher.store import runs
from endpoint_sdk.wire.messages import Complete, Ending, ErrorObject, Fail, RecordIn, ServedWorkflow, Stall
from endpoint_sdk.wire.operating import RestartRun
from tests.integration.world import NAMESPACE, World, details, failed, refused, started, task

FAILED = Fail(ErrorObject("Boom", "no"))
LATER = "2026-01-01T00:00:00Z"


async def _ended(world: World, *written: RecordIn, ending: Ending = FAILED, **fields: Any) -> str:
    claim = await world.claim(await world.submit(**fields))
    await world.write(claim, *written, ending=ending)
    return claim.run_id


async def _restart(world: World, run_id: str, first: int) -> runs.Row:
    view = await restarting.restart(world.store, world.settings, NAMESPACE, run_id, RestartRun(first), "operator")
    return world.run(view.id)


def _steps(world: World, run_id: str) -> list[tuple[int, str]]:
    return [(row.seq, row.name) for row in world.records(run_id)]


async def test_the_new_run_has_done_what_came_before(world: World) -> None:
    """It is queued under a new id with what was given to the original and the records before the one named."""
    old = await _ended(
        world,
        task("a", value=b"7"),
        task("b"),
        task("c"),
        pool="big",
        tags={"k": "v"},
        priority=2,
        idempotency_key="mine",
    )
    before = (world.run(old), world.records(old))
    new = await _restart(world, old, 3)
    assert (new.status, new.revision, new.pool, new.tags, new.priority) == ("queued", 0, "big", '{"k":"v"}', 2)
    assert (new.input, new.idempotency_key, new.attempt) == (before[0].input, None, 1)
    assert _steps(world, new.id) == [(1, "a"), (2, "b")]
    assert world.records(new.id)[0].value == b"7"
    [birth] = world.history(new.id)
    assert (birth.reason, birth.actor) == ("restart_of", "operator")
    assert details(birth) == {"runId": old, "from": 3, "records": 2}
    assert (world.run(old), world.records(old)) == before
    claim = await world.claim(new.id)
    await world.write(claim, task("c"), ending=Complete(Raw(b"1")))
    assert _steps(world, new.id) == [(1, "a"), (2, "b"), (3, "c")]


async def test_a_call_with_records_on_both_sides_is_made_again(world: World) -> None:
    """A chain of attempts, or a task that runs once at most, that is cut is left out whole; one that is not stays."""
    old = await _ended(
        world,
        failed("whole", next_attempt_at=LATER),
        failed("cut", next_attempt_at=LATER),
        started("once"),
        task("whole", attempt=2),
        task("between"),
        task("cut", attempt=2),
        task("once"),
    )
    new = await _restart(world, old, 6)
    assert _steps(world, new.id) == [(1, "whole"), (4, "whole"), (5, "between")]


@pytest.mark.parametrize("ending", [FAILED, Complete(Raw(b"1")), None])
async def test_every_ended_run_can_be_restarted(world: World, ending: Ending | None) -> None:
    """Completed, failed or cancelled: the original stays as it is."""
    claim = await world.claim(await world.submit())
    await world.write(claim, task(), ending=ending)
    if ending is None:
        await world.cancel(claim.run_id)
    before = world.status(claim.run_id)
    assert _steps(world, (await _restart(world, claim.run_id, 1)).id) == []
    assert world.status(claim.run_id) == before


async def test_a_stalled_run_is_cancelled_by_its_restart(world: World) -> None:
    """The original ends, and the histories of both name the other."""
    old = await _ended(world, task(), ending=Stall("divergence"))
    new = await _restart(world, old, 9)
    last = world.history(old)[-1]
    assert (last.status, last.reason, details(last)) == ("cancelled", "restarted_as", {"runId": new.id})
    assert details(world.history(new.id)[0])["runId"] == old
    assert _steps(world, new.id) == [(1, "charge")]


async def test_a_restart_that_is_repeated_makes_one_run(world: World) -> None:
    """Under its request id the run of the first copy is answered; the id names that request alone."""
    old, other = await _ended(world, task(), ending=Stall("divergence")), await _ended(world, task())
    taken = world.run(await world.submit(request_id="mine"))

    async def again(run_id: str, first: int, request_id: str | None = "r1") -> str:
        request = RestartRun(first, request_id)
        return (await restarting.restart(world.store, world.settings, NAMESPACE, run_id, request, "operator")).id

    made = await again(old, 2)
    assert await again(old, 2) == made
    assert world.history(made)[0].request_id == "r1"
    for run_id, first, request_id in ((old, 1, "r1"), (other, 2, "r1"), (other, 2, "mine")):
        with refused("idempotency_conflict"):
            await again(run_id, first, request_id)
    assert world.run(taken.id) == taken
    assert await again(other, 2, None) != await again(other, 2, None)


@pytest.mark.parametrize("status", ["queued", "running", "scheduled"])
async def test_a_run_that_goes_on_is_not_restarted(world: World, status: str) -> None:
    """Only what has ended or is stalled can be restarted, and only within its namespace."""
    run_id = await world.submit(delay_ms=1_000 if status == "scheduled" else 0)
    if status == "running":
        await world.claim(run_id)
    with refused("illegal_transition"):
        await _restart(world, run_id, 1)
    with refused("run_not_found"):
        await restarting.restart(world.store, world.settings, "other", run_id, RestartRun(1), "operator")
    assert len(world.history(run_id)) == 1 + (status == "running")


async def test_a_restarted_run_can_compensate(world: World) -> None:
    """It counts as claimed where it has records: a graceful cancel asks its executor to undo them."""
    old = await _ended(world, task())
    with_records, without = await _restart(world, old, 2), await _restart(world, old, 1)
    for run, status in ((with_records, "queued"), (without, "cancelled")):
        await world.cancel(run.id, now=False)
        assert world.status(run.id)[0] == status


async def test_a_cancel_is_not_repeated(world: World) -> None:
    """Of a run that undid what it had done, the new one takes what came before that: nobody cancels it."""
    told = RecordIn("cancel", "later", "", 0, "ended", "completed", 1, value=Raw(b'{"kind":"task"}'))
    new = await _restart(world, await _ended(world, task(), told, task("undo")), 4)
    assert [record.kind for record in world.records(new.id)] == ["task"]


async def test_a_restarted_run_has_its_own_time(world: World) -> None:
    """The timeout its workflow declares counts from the restart."""
    old = await _ended(world)
    await Declarations(world.store).put(NAMESPACE, [ServedWorkflow("order", "1", timeout_ms=5_000)])
    new = await _restart(world, old, 1)
    assert new.expires_at == new.created_at + 5_000


async def _parent(world: World, *, ending: Ending) -> tuple[str, str]:
    """A run that started a child before its second task, ended so; and the child."""
    start = RecordIn("child", "part", "h", 0, "started", "completed", 1, value=Raw(b"{}"))
    parent = await _ended(world, start, task("later"), ending=ending)
    child = await world.submit("part")
    world.set_run(child, parent_id=parent, parent_call="child:h:0:part", parent_index=0)
    world.set_run(parent, children=1)
    return parent, child


async def test_children_go_with_the_records_that_started_them(world: World) -> None:
    """The new run waits for the children the original started; a restart before their start leaves them alone."""
    parent, child = await _parent(world, ending=FAILED)
    await _restart(world, parent, 1)
    assert world.run(child).parent_id == parent
    new = await _restart(world, parent, 2)
    assert (world.run(child).parent_id, new.children) == (new.id, 1)
    again = await _restart(world, parent, 3)
    assert (_steps(world, again.id), again.children) == ([], 0)
    assert details(world.history(again.id)[0]) == {"runId": parent, "from": 1, "records": 0, "asked": 3}


async def test_a_stalled_child_is_restarted_in_its_place(world: World) -> None:
    """The parent of a stalled child has not been told of an end, so it waits for the new run."""
    parent = await world.submit()
    child = await _ended(world, ending=Stall("divergence"))
    world.set_run(child, parent_id=parent, parent_call="child:h:0:order", parent_index=0)
    world.set_run(parent, children=1)
    new = await _restart(world, child, 1)
    assert (new.parent_id, new.parent_call, new.parent_index) == (parent, "child:h:0:order", 0)
    assert world.run(child).parent_id is None
