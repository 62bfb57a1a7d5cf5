"""How long the relay holds the connection of a push."""

import asyncio
import time

from dispatcher.delivery import PublishPendingOutboxEntries
from dispatcher.settings import Publishing
from endpoint_sdk.wire.messages import Delivery
from publishers.base import Outcome
from tests.integration.relays import PUBLISHED, Relays
from tests.integration.world import World


async def _holds(relay: PublishPendingOutboxEntries, count: int) -> None:
    """Ticks of *relay* until it holds *count* connections; fails after ten seconds."""
    deadline = time.monotonic() + 10
    while relay.in_flight != count:
        assert time.monotonic() < deadline, relay.in_flight
        await relay.once()
        await asyncio.sleep(0.005)


async def test_connections_last_as_long_as_their_claims(world: World) -> None:
    """A push unclaimed at its deadline is let go, a claimed one held until its claim has ended."""
    world.configure(publishing=Publishing(claim_deadline_ms=300))
    relays, forever = Relays(world), asyncio.Event()

    async def never(_delivery: Delivery) -> Outcome:
        await forever.wait()
        return PUBLISHED

    relays.endpoint("orders", never)
    relay = relays.relay()
    claimed, unclaimed = await world.submit(), await world.submit()
    await relay.once()
    assert relay.in_flight == 2
    claim = await world.claim(claimed, 0)
    await _holds(relay, 1)
    for _ in range(20):
        await relay.once()
    assert relay.in_flight == 1
    assert world.entry(unclaimed).status == "published"
    await world.cancel(claimed)
    assert not await world.is_held(claim)
    await _holds(relay, 0)
