"""Timers: what is due starts on time, once, whoever looks."""

import asyncio

from dispatcher import control
from dispatcher.loop import Loop
from dispatcher.store import Store
from dispatcher.timers import FireTimers
from endpoint_sdk.wire import clock
from endpoint_sdk.wire.operating import Nothing
from tests.integration.sessions import Pair
from tests.integration.world import DAY_MS, HOUR_MS, NAMESPACE, World, refused


async def test_a_delayed_run_is_queued_at_its_time(world: World) -> None:
    """A run with a delay is scheduled, has no entry, and is queued when it is due; its rank is its due time's."""
    run_id = await world.submit(delay_ms=HOUR_MS)
    run = world.run(run_id)
    assert (run.status, run.revision, run.queued_at) == ("scheduled", 0, None)
    assert run.due_at == run.wake_at
    assert world.maybe_entry(run_id) is None
    assert await world.fires() == 0
    world.elapse(HOUR_MS + 1)
    assert await world.fires() == 1
    assert world.status(run_id) == ("queued", 1)
    assert world.entry(run_id).rank == (run.due_at or 0) - 50_000
    assert [(move.status, move.reason, move.actor) for move in world.history(run_id)] == [
        ("scheduled", "submitted", "tester"),
        ("queued", "due", "timers"),
    ]


async def test_a_due_time_may_be_past(world: World) -> None:
    """A due time in the past is now, and ranks the run before later ones."""
    early = await world.submit(due_at=clock.to_wire(world.now() - DAY_MS))
    assert world.status(early) == ("queued", 0)
    assert world.entry(early).rank < world.entry(await world.submit()).rank - HOUR_MS


async def test_due_times_that_are_none(world: World) -> None:
    """A due time is a time with its offset, and no delay beside it."""
    for fields in (
        {"due_at": "tomorrow"},
        {"due_at": "2026-12-24T18:00:00"},
        {"due_at": clock.to_wire(0), "delay_ms": 1},
    ):
        with refused("malformed"):
            await world.submit(**fields)


async def test_a_scheduled_run_is_found_again(world: World) -> None:
    """I6: a repeated submit of a scheduled run finds it and starts nothing."""
    first = await world.submit(delay_ms=HOUR_MS, request_id="req_1", idempotency_key="k")
    assert await world.submit(delay_ms=HOUR_MS, request_id="req_1", idempotency_key="k") == first
    assert await world.submit(delay_ms=0, idempotency_key="k") == first
    assert world.status(first) == ("scheduled", 0)


async def test_a_scheduled_run_can_be_cancelled_or_woken(world: World) -> None:
    """Cancelled it is never queued; woken it is queued now."""
    cancelled, woken = await world.submit(delay_ms=HOUR_MS), await world.submit(delay_ms=HOUR_MS)
    await world.cancel(cancelled, now=False)
    view = await control.wake(world.store, world.settings, NAMESPACE, woken, Nothing(), "operator")
    assert view.status == "queued"
    world.elapse(2 * HOUR_MS)
    assert await world.fires() == 0
    assert world.status(cancelled) == ("cancelled", 1)


async def test_a_wave_is_fired_in_batches(world: World) -> None:
    """However many runs are due, one tick fires them, a batch a transaction, and the earliest are queued first."""
    runs = [await world.submit(delay_ms=1_000 + number) for number in range(205)]
    world.elapse(5_000)
    assert await world.timers.once() == {"fired": 205, "forced": 0, "expired": 0, "more": 0}
    ranks = [world.entry(run_id).rank for run_id in runs]
    assert ranks == sorted(ranks)


async def test_a_moment_left_behind_stops_no_timer(world: World) -> None:
    """A dispatcher of the version before moves runs and leaves their moment: it is cleared, and the others fire."""
    left, due = await world.submit(delay_ms=1_000), await world.submit(delay_ms=2_000)
    moment = world.run(left).wake_at
    await world.cancel(left)
    world.set_run(left, wake_at=moment)
    world.elapse(3_000)
    assert await world.fires() == 1
    assert world.status(due) == ("queued", 1)
    assert world.run(left).wake_at is None


async def test_a_tick_says_when_the_next_is_due(world: World) -> None:
    """The earliest moment known, and nothing when nothing is known."""
    assert "dueInMs" not in await world.timers.once()
    await world.submit(delay_ms=HOUR_MS)
    await world.submit(delay_ms=60_000)
    assert 50_000 < (await world.timers.once())["dueInMs"] <= 60_000


async def test_only_an_earlier_moment_wakes_the_daemon(world: World) -> None:
    """A write announces its moment; later ones than the alarm is set for are no reason to look."""
    await world.timers.once()
    now = world.now()
    assert world.timers.hears(str(now + 5_000))
    assert not world.timers.hears(str(now + 6_000))
    assert world.timers.hears(str(now + 4_000))


async def test_exactly_one_firing_over_two_dispatchers(pair: Pair) -> None:
    """While one dispatcher fires a run, another leaves it out; afterwards it is not due any more."""
    run_id = await pair.one.submit(delay_ms=1_000)
    pair.one.elapse(2_000)
    firing = await pair.begin(pair.one.timers.once())
    other = await pair.other.timers.once()
    assert (other["fired"], other["dueInMs"]) == (0, 20)
    pair.commit()
    assert (await firing)["fired"] == 1
    assert await pair.other.fires() == 0
    assert pair.one.status(run_id) == ("queued", 1)


async def test_many_timers_over_two_dispatchers(pair: Pair) -> None:
    """Two dispatchers share a wave: each run is queued once."""
    runs = [await pair.one.submit(delay_ms=1_000) for _ in range(60)]
    pair.one.elapse(2_000)
    ticks = await asyncio.gather(*(world.timers.once() for world in (pair.one, pair.other) for _ in range(3)))
    assert sum(tick["fired"] for tick in ticks) == 60
    assert {pair.one.status(run_id) for run_id in runs} == {("queued", 1)}


async def test_due_work_starts_on_time(store: Store) -> None:
    """On an idle dispatcher a delay is over within a tenth of a second of its time, without a look in between."""
    world = World(store)
    loop = Loop(world.timers, 60_000)
    store.listen("timed", lambda moment: loop.wake() if world.timers.hears(moment) else None)
    queued = asyncio.Event()
    store.listen("queued", lambda _: queued.set())
    loop.start()
    try:
        run_id = await world.submit(delay_ms=400)
        async with asyncio.timeout(30):
            await queued.wait()
    finally:
        await loop.stop()
    run = world.run(run_id)
    assert run.queued_at is not None
    assert run.due_at is not None
    assert 0 <= run.queued_at - run.due_at < 2_000, "a busy machine may be late, a poll of a minute would be later"


async def test_a_moment_announced_during_a_tick_is_not_lost(world: World) -> None:
    """What is heard while a tick looks at the database is earlier than anything the tick found."""
    await world.submit(delay_ms=HOUR_MS)
    await world.timers.once()
    tick = asyncio.create_task(world.timers.once())
    await asyncio.sleep(0)
    soon = world.now() + 5_000
    assert world.timers.hears(str(soon))
    await tick
    assert not world.timers.hears(str(soon + 1))


def test_names() -> None:
    """The daemon has the name its last tick is shown under."""
    assert FireTimers.name == "fireTimers"
