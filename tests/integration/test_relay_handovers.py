"""Calls to brokers: how many at once, and those that take long, never end, or end in nothing that can be stored."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dispatcher import errors, handover, leasing, outcomes
from dispatcher.endpoints import RelayTarget
from dispatcher.leasing import Turn
from dispatcher.settings import Route
from dispatcher.store import Session, entries
from endpoint_sdk.wire.messages import Delivery
from publishers.base import Outcome
from tests.integration.relays import (
    ACCEPTED,
    PATIENCE_SECONDS,
    REFUSED,
    UNKNOWN,
    Relays,
    over,
    publish,
    settle,
    until_batches,
)
from tests.integration.world import World


@pytest.fixture
def relays(world: World) -> Relays:
    """No publisher yet."""
    return Relays(world)


async def test_four_calls_at_a_time(world: World, relays: Relays, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker has four batches on their way at most; when one is answered the next may go."""
    monkeypatch.setattr("dispatcher.leasing.BATCH", 5)
    answers = asyncio.Queue[Outcome]()

    async def when_told(_delivery: Delivery) -> Outcome:
        return await answers.get()

    broker = relays.broker("fast", when_told)
    for _ in range(30):
        await world.submit()
    relay = relays.relay(over("fast"))
    told = asyncio.Event()
    relay.on_room = told.set
    assert [(await relay.once())["leased"] for _ in range(6)] == [5, 5, 5, 5, 0, 0]
    await until_batches(broker, 4)
    for _ in range(5):
        answers.put_nowait(ACCEPTED)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not told.is_set() or len(relay._handovers.calls) == 4:
            for _ in range(5):
                answers.put_nowait(ACCEPTED)
            await asyncio.sleep(0)
    assert (await relay.once())["leased"] == 5
    for _ in range(30):
        answers.put_nowait(ACCEPTED)
    await settle(relay)


async def test_a_broker_that_hangs_stops_nobody(world: World, relays: Relays) -> None:
    """While every call to one broker hangs, ticks go on and other publishers are served."""
    forever = asyncio.Event()

    async def never(_delivery: Delivery) -> Outcome:
        await forever.wait()
        return ACCEPTED

    hanging, well = relays.broker("hanging", never), relays.broker("well")
    endpoint = relays.endpoint("orders", serves="pushed")
    routes = (Route(workflows=("slow",), publish=("hanging",)), Route(workflows=("quick",), publish=("well",)))
    for _ in range(10):
        await world.submit("slow")
    relay = relays.relay(*routes)
    await relay.once()
    await until_batches(hanging, 1)
    quick, pushed = await world.submit("quick"), await world.submit("pushed")
    assert (await relay.once())["leased"] == 2
    await until_batches(well, 1)
    await endpoint.arrived.wait()
    assert [delivery.run_id for delivery in well.deliveries] == [quick]
    assert [delivery.run_id for delivery in endpoint.deliveries] == [pushed]
    forever.set()
    await settle(relay)


async def test_a_slow_call_keeps_its_lease(world: World, relays: Relays, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch on its way for longer than its lease is not taken for lost, so a slow broker is sent no second copy."""
    monkeypatch.setattr(handover, "_RENEW_SECONDS", 0.05)
    hold = asyncio.Event()

    async def slowly(_delivery: Delivery) -> Outcome:
        await hold.wait()
        return ACCEPTED

    broker = relays.broker("slow", slowly)
    run_id = await world.submit()
    relay = relays.relay(over("slow"))
    await relay.once()
    await until_batches(broker, 1)
    world.elapse(4_000)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while world.entry(run_id).next_publish_at < world.now() + 3_000:  # noqa: ASYNC110 - a row has no signal
            await asyncio.sleep(0.01)
    world.elapse(2_000)
    assert (await world.recovers())["redelivered"] == 0
    hold.set()
    await settle(relay)
    assert (world.entry(run_id).copies, broker.copies[run_id]) == (1, 1)


@pytest.mark.parametrize("late", [REFUSED, UNKNOWN, ACCEPTED], ids=lambda outcome: outcome.row)
async def test_a_replica_that_wakes_after_minutes(
    world: World, relays: Relays, monkeypatch: pytest.MonkeyPatch, late: Outcome
) -> None:
    """I8: a stopped relay's lease went to another; neither its renewal nor its outcome changes what that one wrote."""
    monkeypatch.setattr(handover, "_RENEW_SECONDS", 30.0)
    woken = asyncio.Event()

    async def stopped(_delivery: Delivery) -> Outcome:
        await woken.wait()
        return late

    broker = relays.broker("fast", stopped)
    run_id = await world.submit()
    first, second = relays.relay(over("fast")), relays.relay(over("fast"))
    await first.once()
    await until_batches(broker, 1)
    leased = world.entry(run_id)
    world.elapse(180_000)
    assert (await world.recovers())["redelivered"] == 1
    broker.answer = ACCEPTED
    await publish(second)
    after = world.entry(run_id)
    assert (after.status, after.copies, after.push_number) == ("published", 1, 2)
    assert world.store.transact_blocking(lambda session: entries.hold(session, [leased], session.now() + 5_000)) == 0
    woken.set()
    await settle(first)
    assert world.entry(run_id) == after


async def test_a_call_that_never_ends_is_given_up(
    world: World, relays: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call without an end is cut off; as some of it may have arrived, each of its deliveries has a copy more."""
    monkeypatch.setattr(handover, "_RENEW_SECONDS", 0.05)
    monkeypatch.setattr(handover, "_LONGEST_CALL_SECONDS", 0.2)
    forever = asyncio.Event()

    async def never(_delivery: Delivery) -> Outcome:
        await forever.wait()
        return ACCEPTED

    relays.broker("dead", never)
    run_id = await world.submit()
    relay = relays.relay(over("dead"))
    await relay.once()
    await settle(relay)
    entry = world.entry(run_id)
    assert (entry.status, entry.copies, entry.endings) == ("published", 1, 0)
    assert relay._handovers.room("ep_dead") == 400


async def test_outcomes_that_cannot_be_written_are_lost_copies(
    world: World, relays: Relays, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A relay that cannot write its outcomes logs it and goes on; the entries come back after their lease."""
    broker = relays.broker("fast")
    run_id = await world.submit()
    relay = relays.relay(over("fast"))

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(outcomes, "write", broken)
    await publish(relay)
    await asyncio.sleep(0)
    assert "handover ended unexpectedly" in caplog.text
    monkeypatch.undo()
    world.elapse(6_000)
    assert (await world.recovers())["redelivered"] == 1
    await publish(relay)
    assert (world.entry(run_id).copies, broker.copies[run_id]) == (1, 2)


async def test_a_lease_that_cannot_be_renewed_is_no_outcome(
    world: World, relays: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database is away a call goes on, and what became of it is stored when both are back."""
    monkeypatch.setattr(handover, "_RENEW_SECONDS", 0.05)
    tried, hold = asyncio.Event(), asyncio.Event()

    async def slowly(_delivery: Delivery) -> Outcome:
        await hold.wait()
        return ACCEPTED

    loop = asyncio.get_running_loop()

    def away(*_: object) -> int:
        loop.call_soon_threadsafe(tried.set)
        raise errors.Unavailable("unavailable", "the database is away", retry_after=1)

    relays.broker("slow", slowly)
    run_id = await world.submit()
    relay = relays.relay(over("slow"))
    monkeypatch.setattr(entries, "hold", away)
    await relay.once()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await tried.wait()
    hold.set()
    await settle(relay)
    assert world.entry(run_id).copies == 1


async def test_stop_ends_the_calls(world: World, relays: Relays, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping lets what ends soon end, its outcome stored, and gives up what does not."""
    monkeypatch.setattr(handover, "_STOP_SECONDS", 0.5)
    forever = asyncio.Event()

    async def never(_delivery: Delivery) -> Outcome:
        await forever.wait()
        return ACCEPTED

    relays.broker("dead", never)
    relays.broker("well")
    routes = (Route(workflows=("slow",), publish=("dead",)), Route(publish=("well",)))
    slow, quick = await world.submit("slow"), await world.submit("quick")
    relay = relays.relay(*routes)
    await relay.once()
    await relay.stop()
    assert relay._handovers.calls == []
    assert (world.entry(slow).copies, world.entry(quick).copies) == (0, 1)


async def test_a_publisher_that_is_locked_holds_up_no_other(
    world: World, relays: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a stopped replica holds an endpoint's row, the tick serves the others, and then says what is wrong."""
    lease = leasing.lease

    def waits_in_vain(session: Session, target: RelayTarget, turns: Sequence[Turn], **given: Any) -> Any:
        if target.name == "locked":
            raise errors.Unavailable("unavailable", "the database could not finish this request in time")
        return lease(session, target, turns, **given)

    monkeypatch.setattr(leasing, "lease", waits_in_vain)
    locked, next_one = relays.endpoint("locked"), relays.endpoint("next")
    endpoint, broker = relays.endpoint("free", serves="free"), relays.broker("broker")
    routes = (
        Route(workflows=("a",), publish=("locked", "next")),
        Route(workflows=("brokered",), publish=("broker",)),
    )
    for workflow in ("a", "free", "brokered"):
        await world.submit(workflow)
    relay = relays.relay(*routes)
    with pytest.raises(errors.Unavailable):
        await relay.once()
    await settle(relay)
    assert [len(each.deliveries) for each in (locked, next_one, endpoint, broker)] == [0, 0, 1, 1]
