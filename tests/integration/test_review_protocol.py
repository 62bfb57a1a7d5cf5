"""What a review found in the protocol: clocks stepped back, and connections of endpoints that hang."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher import errors
from dispatcher.settings import Publishing
from dispatcher.store import Session
from endpoint_sdk.wire.messages import Delivery
from publishers.base import Outcome
from tests.integration.relays import PUBLISHED, Relays, publish, settle
from tests.integration.world import DAY_MS, World


@pytest.fixture
def relays(world: World) -> Relays:
    """No endpoint yet."""
    return Relays(world)


async def test_queued_under_a_clock_ahead(world: World, relays: Relays) -> None:
    """I11: a run queued by a clock a day ahead is deliverable as soon as the clock is right again."""
    endpoint = relays.endpoint("orders")
    world.elapse(DAY_MS)
    run_id = await world.submit()
    world.advance(-DAY_MS)
    await world.recovers()
    world.elapse(1_000)  # it was due some milliseconds after the fleet was last seen, and still is
    await publish(relays.relay())
    assert [delivery.run_id for delivery in endpoint.deliveries] == [run_id]
    assert world.entry(run_id).queued_at <= world.now()


async def test_backed_off_under_a_clock_ahead(world: World, relays: Relays) -> None:
    """I11: a step back neither prolongs a backoff by the step nor ends it."""
    endpoint = relays.endpoint("orders", Outcome("deferred", "busy", delay_ms=60_000))
    relay = relays.relay()
    world.elapse(DAY_MS)
    await world.submit()
    await publish(relay)
    world.sees(world.now())
    world.advance(-DAY_MS)
    await world.recovers()
    world.elapse(50_000)
    assert await publish(relay) == 0
    world.elapse(11_000)
    assert await publish(relay) == 1
    assert len(endpoint.deliveries) == 2


async def test_pushed_under_a_clock_ahead(world: World, relays: Relays) -> None:
    """I11: a push whose deadline was set by a clock a day ahead is overdue a claim deadline after the step back."""
    relays.endpoint("orders")
    world.elapse(DAY_MS)
    run_id = await world.submit()
    await publish(relays.relay())
    world.advance(-DAY_MS)
    await world.recovers()
    world.elapse(31_000)
    await world.recovers()
    assert world.entry(run_id).status == "pending"


async def test_a_push_nobody_claims_keeps_no_connection(world: World, relays: Relays) -> None:
    """An endpoint that hangs takes a connection per push until the deadline only; a claimed push keeps its own."""
    forever = asyncio.Event()

    async def hang(_delivery: Delivery) -> Outcome:
        await forever.wait()
        return PUBLISHED

    world.configure(publishing=Publishing(claim_deadline_ms=50))
    relays.endpoint("orders", hang)
    relay = relays.relay()
    claimed, _unclaimed = await world.submit(), await world.submit()
    await relay.once()
    claim = await world.claim(claimed)
    assert relay.in_flight == 2
    async with asyncio.timeout(5):
        while relay.in_flight > 1:
            await relay.once()
    assert await world.is_held(claim)
    forever.set()
    await settle(relay)


async def test_a_full_endpoint_leaves_its_turns_to_the_next(world: World, relays: Relays) -> None:
    """Of two endpoints that serve a workflow, the second gets what the first, full, cannot take."""
    first = relays.endpoint("first", max_in_flight=1)
    second = relays.endpoint("second")
    for _ in range(3):
        await world.submit()
    await publish(relays.relay())
    assert (len(first.deliveries), len(second.deliveries)) == (1, 2)


async def test_an_outcome_outlives_a_database_away(
    world: World, relays: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: a push that reached nobody is not counted because the database was away when it failed."""
    relays.endpoint("orders", Outcome("failed", "connect"))
    run_id = await world.submit()
    relay = relays.relay()
    transact = world.store.transact
    refusals = [errors.Unavailable("unavailable", "away")] * 2

    async def sometimes(operation: Callable[[Session], Any]) -> Any:
        if relay.in_flight and refusals:
            raise refusals.pop()
        return await transact(operation)

    monkeypatch.setattr(world.store, "transact", sometimes)
    await publish(relay)
    entry = world.entry(run_id)
    assert (entry.status, entry.failures, entry.endings) == ("pending", 1, 0)
    assert refusals == []
