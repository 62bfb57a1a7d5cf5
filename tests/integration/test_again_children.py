"""Doing it again with children: what failed is started again, what did not goes on."""

import pytest
from msgspec import Raw

from dispatcher import restarting
from endpoint_sdk.wire.messages import ErrorObject, Fail, Restart, Retry
from endpoint_sdk.wire.operating import RestartRun
from tests.integration.families import RESIZE, SHIP, child, completes, fails, many, outcome, parked, started, wait_for
from tests.integration.sessions import Pair
from tests.integration.world import NAMESPACE, World

RETRY = Retry(ErrorObject("Boom", "no"), 0)


async def _kept(world: World, run_id: str) -> list[tuple[str, str]]:
    return [(row.kind, row.phase) for row in world.records(run_id)]


async def test_a_failed_child_is_started_again(world: World) -> None:
    """Start and end of a child that failed are forgotten, and so is that it was a child of this call."""
    claim, [ship] = await parked(world, child())
    await fails(world, ship)
    claim = await world.claim(claim.run_id)
    await world.write(claim, ending=RETRY)
    assert (await _kept(world, claim.run_id), world.run(ship).parent_call) == ([], None)
    await world.fires()
    claim = await world.claim(claim.run_id)
    [again] = await started(world, claim, child())
    assert again != ship
    assert world.run(claim.run_id).children == 2


async def test_a_child_that_failed_unheard_is_started_again(world: World) -> None:
    """A child whose failure the run was not told of yet is forgotten too: its next attempt does not fail by it."""
    claim = await world.claim(await world.submit("family"))
    [ship] = await started(world, claim, child())
    [first, *_] = await started(world, claim, *many(2))
    for run_id in (ship, first):
        await fails(world, run_id)
    await world.write(claim, ending=RETRY)
    assert (await _kept(world, claim.run_id), world.run(ship).parent_call, world.run(first).parent_call) == (
        [],
        None,
        None,
    )


async def test_children_that_did_not_fail_are_kept(world: World) -> None:
    """Completed or still running, a child stays with the next attempt, which is told of its end."""
    claim = await world.claim(await world.submit("family"))
    await started(world, claim, child())
    resized = await started(world, claim, *many(2))
    for run_id in resized:
        await completes(world, run_id)
    await world.write(claim, ending=RETRY)
    await world.fires()
    claim = await world.claim(claim.run_id)
    assert await _kept(world, claim.run_id) == [("child", "started"), ("children", "started")]
    signal_seq = world.run(claim.run_id).signal_seq
    answer = await world.park(claim, wait_for(RESIZE), wait_for(SHIP), signal_seq=signal_seq)
    assert (answer.parked, outcome(world, claim.run_id, RESIZE)) == (False, {"total": 2})


async def test_a_restart_leaves_its_children_alone(world: World) -> None:
    """The next generation has no children of its own yet; those of the one before go on and wake nobody."""
    claim = await world.claim(await world.submit("family"))
    [ship] = await started(world, claim, child())
    await world.write(claim, ending=Restart(Raw(b"2")))
    assert (world.run(ship).parent_id, world.run(ship).parent_call) == (claim.run_id, None)
    claim = await world.claim(claim.run_id)
    [again] = await started(world, claim, child())
    assert again != ship
    await completes(world, ship)
    assert world.status(claim.run_id)[0] == "running"


async def test_an_operators_restart_takes_the_children_along(world: World) -> None:
    """The new run waits for the child the original started, and is told of its end."""
    claim = await world.claim(await world.submit("family"))
    [ship] = await started(world, claim, child())
    await world.write(claim, ending=Fail(ErrorObject("Boom", "no")))
    view = await restarting.restart(world.store, world.settings, NAMESPACE, claim.run_id, RestartRun(2), "operator")
    claim = await world.claim(view.id)
    assert (await world.park(claim, wait_for(SHIP))).parked
    await completes(world, ship, b"7")
    assert (world.status(view.id)[0], outcome(world, view.id)) == ("queued", 7)


async def test_many_calls_take_few_statements(world: World) -> None:
    """Neither a run's next attempt nor an operator's restart asks the database about each call that started a child."""
    counts: list[tuple[int, int]] = []
    for count in (2, 12):
        claim = await world.claim(await world.submit("family"))
        await started(world, claim, *map(child, range(count)))
        before = world.store.statements
        await world.write(claim, ending=RETRY)
        retried = world.store.statements
        await world.cancel(claim.run_id)
        cancelled = world.store.statements
        request = RestartRun(count + 1)
        view = await restarting.restart(world.store, world.settings, NAMESPACE, claim.run_id, request, "operator")
        counts.append((retried - before, world.store.statements - cancelled))
        assert world.run(view.id).children == count
    assert counts[0] == counts[1]


@pytest.mark.parametrize("ending", [RETRY, Restart(Raw(b"2"))])
async def test_a_child_that_ends_meanwhile(pair: Pair, ending: Retry | Restart) -> None:
    """A child's end and its parent's next attempt take their locks in one order: one waits, neither for ever."""
    claim = await pair.one.claim(await pair.one.submit("family"))
    [ship] = await started(pair.one, claim, child())
    held = await pair.one.claim(ship)
    ends = await pair.begin(pair.one.write(held, ending=Fail(ErrorObject("Boom", "no"))))
    again = await pair.blocks(pair.other.write(claim, ending=ending))
    pair.commit()
    await ends
    await again
    assert pair.other.run(ship).parent_call is None
    assert pair.other.records(claim.run_id) == []
    assert pair.other.status(claim.run_id)[0] in {"awaiting_retry", "queued"}
