"""A run released by recovery is seen again by every route: publishers over their real transports, and a poller."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
import pytest
from msgspec import Raw

from endpoint_sdk.wire.messages import Complete, Delivery
from tests.brokers import Sqs
from tests.contract.publisher_rigs import MemoryRig, Rig, push_rig, redis_rig, sqs_rig
from tests.integration.pollers import Poller, claim_of
from tests.integration.relays import Relays, over, publish
from tests.integration.world import IDLE_MS, World, task

ROUTES = ("push", "sqs", "redis", "memory")


class Site:
    """A world, a relay for each route asked for, and what has arrived there."""

    def __init__(self, world: World, rigs: dict[str, Rig]) -> None:
        self.world = world
        self.rigs = rigs
        self.relays = Relays(world)
        for name, rig in rigs.items():
            if name == "push":
                self.relays.endpoint(name)
            else:
                self.relays.broker(name, type_=name)
            self.relays.real[name] = rig.publisher()
        self.relay = self.relays.relay(over(*rigs)) if rigs else self.relays.relay()

    async def deliver(self) -> list[tuple[str, Delivery]]:
        """What the relay hands over now, with the route it was found on."""
        await publish(self.relay)
        return [
            (name, msgspec.json.decode(arrival.body, type=Delivery))
            for name, rig in self.rigs.items()
            for arrival in await rig.arrived()
        ]

    async def dies(self, ordinal: int, delivery: Delivery) -> None:
        """An executor claims the delivery, records a task and is not heard of again; recovery releases its claim."""
        claim = await self.world.claim(delivery.run_id, delivery.revision, push_number=delivery.push_number)
        await self.world.write(claim, task("step", ordinal))
        self.world.elapse(IDLE_MS + 1_000)
        assert (await self.world.recovers())["released"] == 1


@pytest.fixture
async def every(world: World, redis_url: str, sqs: Sqs) -> AsyncIterator[Site]:
    """All routes, in the order of `ROUTES`."""
    async with AsyncExitStack() as opened:
        rigs: dict[str, Rig] = {
            "push": await opened.enter_async_context(push_rig()),
            "sqs": await opened.enter_async_context(sqs_rig(sqs, sqs.queue("recovered"))),
            "redis": await opened.enter_async_context(redis_rig(redis_url)),
            "memory": MemoryRig(),
        }
        yield Site(world, rigs)


@pytest.mark.parametrize("route", ROUTES)
async def test_released_by_recovery_and_seen_again(every: Site, route: str) -> None:
    """A run whose executor died is handed over again by its route, at the revision that a claim is good for."""
    world = every.world
    every.relay = every.relays.relay(over(route))
    run_id = await world.submit()
    [(_, first)] = await every.deliver()
    await every.dies(0, first)
    [(seen, second)] = await every.deliver()
    assert (seen, second.run_id, second.revision) == (route, run_id, 2)
    assert world.keys.check_claim_token(second.token, run_id, 2)
    await world.write(await world.claim(run_id, second.revision), ending=Complete(Raw(b"1")))
    assert world.status(run_id) == ("completed", 4)


async def test_released_by_recovery_and_seen_by_all(every: Site) -> None:
    """Each time its executor dies, a run moves on to the next route, and a poller takes it before any of them."""
    world, relay = every.world, every.relay
    run_id = await world.submit()
    seen = []
    for ordinal in range(len(ROUTES) + 1):
        [(route, delivery)] = await every.deliver()
        assert delivery.revision == 2 * ordinal
        seen.append(route)
        await every.dies(ordinal, delivery)
    assert seen == [*ROUTES, "push"]
    [grant] = await Poller(world)()
    assert (grant.run.id, len(grant.records)) == (run_id, len(ROUTES) + 1)
    assert await publish(relay) == 0
    assert (await world.write(claim_of(grant), ending=Complete(Raw(b"1")))).revision == 2 * len(seen) + 2
    assert world.status(run_id)[0] == "completed"
