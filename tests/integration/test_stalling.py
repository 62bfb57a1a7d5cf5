"""Stalling what nobody can deliver."""

import pytest

from dispatcher.settings import Stalling
from tests.integration.world import DAY_MS, World, details, task


async def test_a_run_queued_for_too_long_stalls(world: World) -> None:
    """A run that waited for `maxAgeMs` since it last became queued is stalled, with the facts."""
    old = await world.submit()
    world.elapse(DAY_MS + 1_000)
    young = await world.submit()
    assert await world.stalling.once() == {"stalled": 1, "more": 0}
    last = world.history(old)[-1]
    assert world.status(old) == ("stalled", 1)
    assert (last.reason, last.actor) == ("undeliverable", "stalling")
    assert details(last)["waitedMs"] == pytest.approx(DAY_MS + 1_000, abs=5_000)
    assert world.status(young) == ("queued", 0)


async def test_executing_is_not_waiting(world: World) -> None:
    """C24: a claimed run never stalls by age; released, its clock starts again."""
    claim = await world.claim(await world.submit())
    world.elapse(3 * DAY_MS)
    assert (await world.stalling.once())["stalled"] == 0
    await world.free(claim.run_id)
    world.elapse(DAY_MS - 60_000)
    assert (await world.stalling.once())["stalled"] == 0
    world.elapse(120_000)
    assert (await world.stalling.once())["stalled"] == 1


async def test_waiting_while_no_server_was_up_does_not_count(world: World) -> None:
    """I11: two days without a dispatcher stall nothing; a day with one does."""
    run_id = await world.submit()
    world.advance(2 * DAY_MS)
    await world.recovers()
    assert (await world.stalling.once())["stalled"] == 0
    world.elapse(DAY_MS + 1_000)
    assert (await world.stalling.once())["stalled"] == 1
    assert world.status(run_id) == ("stalled", 1)


async def test_a_published_run_stalls_too(world: World) -> None:
    """A delivery that is out does not save a run that has waited too long; its late claim is refused."""
    run_id = await world.submit()
    world.publish(run_id, push_number=3, due_in_ms=2 * DAY_MS)
    world.elapse(DAY_MS + 1_000)
    assert (await world.stalling.once())["stalled"] == 1
    assert world.run(run_id).deliveries == 3


async def test_counted_endings_over_a_lowered_limit_stall(world: World) -> None:
    """A run already at the limit, lowered meanwhile, is found by the daemon."""
    run_id = await world.submit()
    world.set_entry(run_id, endings=4)
    assert (await world.stalling.once())["stalled"] == 0
    world.configure(stalling=Stalling(max_endings_without_progress=4))
    assert (await world.stalling.once())["stalled"] == 1
    assert details(world.history(run_id)[-1])["endings"] == 4


async def test_more_is_asked_for_after_a_full_batch(world: World) -> None:
    """Two hundred at a time: a full batch asks for another tick."""
    for _ in range(201):
        await world.submit()
    world.elapse(DAY_MS + 1_000)
    assert await world.stalling.once() == {"stalled": 200, "more": 1}
    assert await world.stalling.once() == {"stalled": 1, "more": 0}


async def test_requeue_starts_the_clock_again(world: World) -> None:
    """A requeued run is not stalled again at once, and keeps what it recorded."""
    claim = await world.claim(await world.submit())
    await world.write(claim, task())
    await world.free(claim.run_id)
    world.elapse(DAY_MS + 1_000)
    await world.stalling.once()
    await world.requeue(claim.run_id)
    assert (await world.stalling.once())["stalled"] == 0
    assert len(world.records(claim.run_id)) == 1
