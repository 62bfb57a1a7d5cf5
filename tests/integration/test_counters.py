"""What is counted of a run, and how much it may hold: pausing changes neither, and no limit keeps a wake-up out."""

import pytest
from msgspec import Raw

from dispatcher import control
from dispatcher.settings import Stalling
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import Release
from endpoint_sdk.wire.operating import Nothing
from tests.integration.world import IDLE_MS, NAMESPACE, World, refused, task


async def _pause(world: World, run_id: str) -> None:
    await control.pause(world.store, world.settings, NAMESPACE, run_id, Nothing(), "x")


async def _resume(world: World, run_id: str) -> None:
    await control.resume(world.store, world.settings, NAMESPACE, run_id, Nothing(), "x")


async def test_pausing_a_queued_run_keeps_its_counters(world: World) -> None:
    """Endings and kills without progress are counted on after a pause, however often, and then stall the run."""
    world.configure(stalling=Stalling(max_kills_without_progress=2))
    claim = await world.claim(await world.submit())
    world.elapse(IDLE_MS + 1)
    await world.recovers()
    for _ in range(2):
        await _pause(world, claim.run_id)
        await _resume(world, claim.run_id)
    entry = world.entry(claim.run_id)
    assert (entry.kills, entry.endings) == (1, 1)
    await world.claim(claim.run_id)
    world.elapse(IDLE_MS + 1)
    await world.recovers()
    assert (world.run(claim.run_id).status, world.run(claim.run_id).reason) == ("stalled", "crash_loop")


async def test_pausing_a_running_run_keeps_its_counters(world: World) -> None:
    """A run that is paused by its executor's release, or by recovery, has the same counters once it is resumed."""
    run_id = await world.submit()
    world.set_entry(run_id, kills=1, endings=3)
    claim = await world.claim(run_id)
    await _pause(world, run_id)
    await world.write(claim, ending=Release("pause"))
    assert world.status(run_id)[0] == "paused"
    await _resume(world, run_id)
    assert (world.entry(run_id).kills, world.entry(run_id).endings) == (1, 3)
    claim = await world.claim(run_id)
    await _pause(world, run_id)
    world.elapse(IDLE_MS + 1)
    await world.recovers()
    await world.cancel(run_id, now=False)
    assert (world.entry(run_id).kills, world.entry(run_id).endings) == (2, 4)


async def test_a_park_begins_at_nothing_after_a_pause(world: World) -> None:
    """A park is progress: what was counted before is forgotten, paused or not."""
    run_id = await world.submit()
    world.set_entry(run_id, kills=1, endings=3)
    claim = await world.claim(run_id)
    await world.park(claim, world.event("go"))
    await _pause(world, run_id)
    await world.send(run_id)
    await _resume(world, run_id)
    assert (world.entry(run_id).kills, world.entry(run_id).endings) == (0, 0)


async def test_a_mailbox_holds_so_many_events(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more unread event than the limit is refused; a repeat is not, and reading makes room."""
    monkeypatch.setattr(limits, "MAX_UNREAD", 2)
    claim = await world.claim(await world.submit())
    await world.send(claim.run_id, "go", event_id="evt_1")
    await world.send(claim.run_id, "go", event_id="evt_2")
    with refused("mailbox_full"):
        await world.send(claim.run_id, "go", event_id="evt_3")
    assert not (await world.send(claim.run_id, "go", event_id="evt_2")).stored
    await world.park(claim, world.event("go"))
    assert (await world.send(claim.run_id, "go", event_id="evt_3")).stored
    with refused("mailbox_full"):
        await world.send(claim.run_id, "other", event_id="evt_4")


async def test_a_park_leaves_room_for_what_answers_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcomes of a park's waits fit into the run's records, or the park is refused whole; no wake-up ever is."""
    monkeypatch.setattr(limits, "MAX_RECORDS", 3)
    claim = await world.claim(await world.submit())
    with refused("history_limit"):
        await world.park(claim, world.event("a"), world.event("b"), world.event("c"), world.event("d"))
    assert world.waits(claim.run_id) == []
    await world.write(claim, task())
    with refused("history_limit"):
        await world.park(claim, world.event("a"), world.event("b"), world.sleep())
    await world.park(claim, world.event("a"), world.event("b"), world.retry())
    await world.send(claim.run_id, "a", b"1")
    claim = await world.claim(claim.run_id)
    await world.send(claim.run_id, "b", b"2")
    answer = await world.park(claim, world.event("b"))
    assert (answer.parked, [row.seq for row in world.records(claim.run_id)]) == (False, [1, 2, 3])
    with refused("history_limit"):
        await world.write(claim, task("more", value=b"1"))
    assert Raw(b"2") == answer.signals[-1].value
