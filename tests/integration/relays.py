"""A relay over a world, with endpoints in memory: what they are sent is kept, what they answer is the test's."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from dispatcher.delivery import PublishPendingOutboxEntries
from dispatcher.endpoints import RelayTarget
from dispatcher.registry import Registry
from dispatcher.settings import Route
from dispatcher.store import Session
from dispatcher.store import endpoints as endpoint_store
from endpoint_sdk.wire.messages import Delivery, ServedWorkflow
from endpoint_sdk.wire.operating import PublisherType
from publishers.base import Due, Outcome, Publisher, Target
from tests.integration.world import World

PUBLISHED = Outcome("published", "settled")
ACCEPTED = Outcome("published", "accepted")
UNKNOWN = Outcome("published", "unknown")
REFUSED = Outcome("failed", "broker_unreachable")
SERVER_ERROR = Outcome("failed", "server-error", counted=True)

PATIENCE_SECONDS = 30.0

Answer = Outcome | Exception | Callable[[Delivery], Awaitable[Outcome]]


class Endpoint:
    """A publisher in memory: to one endpoint, or to a broker."""

    def __init__(self, answer: Answer = PUBLISHED) -> None:
        self.answer = answer
        self.deliveries: list[Delivery] = []
        self.arrived = asyncio.Event()

    async def publish(self, due: Sequence[Due]) -> list[Outcome]:
        deliveries = [each.delivery for each in due]
        self.deliveries += deliveries
        self.arrived.set()
        answers = []
        for delivery in deliveries:
            answer = self.answer
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer if isinstance(answer, Outcome) else await answer(delivery))
        return answers

    async def close(self) -> None:
        """Nothing was open."""


class Broker(Endpoint):
    """A publisher to a broker in memory: each batch it was handed, and the copies of each run that lie in it."""

    def __init__(self, answer: Answer = ACCEPTED) -> None:
        super().__init__(answer)
        self.batches: list[list[Delivery]] = []
        self.pools: set[str] = set()
        self.copies: Counter[str] = Counter()

    async def publish(self, due: Sequence[Due]) -> list[Outcome]:
        self.batches.append([each.delivery for each in due])
        self.pools |= {each.pool for each in due}
        outcomes = await super().publish(due)
        for each, outcome in zip(due, outcomes, strict=False):
            self.copies[each.delivery.run_id] += outcome.kind == "published"
        return outcomes


class Relays:
    """Publishers registered in the database of *world*, in memory unless there is a *real* one; and relays to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.endpoints: dict[str, Endpoint] = {}
        self.real: dict[str, Publisher] = {}
        self.targets: list[RelayTarget] = []

    def endpoint(
        self,
        name: str,
        answer: Answer = PUBLISHED,
        *,
        serves: str = "order",
        namespace: str | None = None,
        max_in_flight: int = 50,
    ) -> Endpoint:
        """The endpoint *name*, which serves version 1 of one workflow."""
        self.endpoints[name] = Endpoint(answer)
        self._register(name, "push", [ServedWorkflow(serves, "1")], namespace, max_in_flight)
        return self.endpoints[name]

    def broker(
        self,
        name: str,
        answer: Answer = ACCEPTED,
        *,
        type_: str = "memory",
        republish_ms: int | None = None,
    ) -> "Broker":
        """The broker *name*, which takes whatever a route sends there."""
        broker = self.endpoints[name] = Broker(answer)
        self._register(name, type_, [], None, 50, republish_ms)
        return broker

    def _register(
        self,
        name: str,
        type_: str,
        served: list[ServedWorkflow],
        namespace: str | None,
        max_in_flight: int,
        republish_ms: int | None = None,
    ) -> None:
        endpoint_id = f"ep_{name}"
        given = endpoint_store.Configuration(name, f"http://{name}", "generic", max_in_flight, True, [])

        def operation(session: Session) -> None:
            endpoint_store.insert(session, endpoint_id, namespace or "*", "yaml", given)

        self.world.store.transact_blocking(operation)
        self.targets.append(
            RelayTarget(
                name=name,
                namespace=namespace,
                target=Target(name, f"http://{name}", "generic", (b"k" * 32,)),
                max_in_flight=max_in_flight,
                served=served,
                order=len(self.targets),
                endpoint_id=endpoint_id,
                discovered_at=None,
                type=cast("PublisherType", type_),
                republish_ms=republish_ms,
            )
        )

    def relay(self, *routes: Route) -> PublishPendingOutboxEntries:
        """One replica's relay over all endpoints so far."""
        return PublishPendingOutboxEntries(
            self.world.store,
            self.world.keys,
            _Known(self),
            publishing=self.world.settings.publishing,
            stalling=self.world.settings.stalling,
            routes=routes,
            publisher_for=lambda target: self.real.get(target.name, self.endpoints[target.name]),
            public_url=lambda: "http://dispatcher",
            clock=self.world.monotonic,
        )


class _Known(Registry):
    """The endpoints of the test, always fresh."""

    def __init__(self, relays: Relays) -> None:
        super().__init__(relays.world.store, relays.world.keys)
        self._relays = relays

    async def targets(self, namespace: str | None = None) -> list[RelayTarget]:
        return [target for target in self._relays.targets if namespace is None or target.within(namespace)]


async def settle(relay: PublishPendingOutboxEntries) -> None:
    """Every push and every batch of *relay* has been answered, and its outcomes written."""
    while under_way := [*relay._pushes, *relay._handovers.calls]:
        await asyncio.gather(*under_way, return_exceptions=True)


async def publish(relay: PublishPendingOutboxEntries) -> int:
    """How many entries were leased until nothing was due; their pushes are answered."""
    leased = 0
    while True:
        counts = await relay.once()
        leased += counts["leased"]
        await settle(relay)
        if not counts["more"]:
            return leased


def over(*names: str) -> Route:
    """A route of every run over publishers of these *names*."""
    return Route(publish=names)


async def until_batches(broker: Broker, count: int) -> None:
    """The broker has been handed *count* batches."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(broker.batches) < count:
            broker.arrived.clear()
            await broker.arrived.wait()


async def passes(world: World, relay: PublishPendingOutboxEntries, ms: int, *, step_ms: int) -> None:
    """Time passes, with a tick of recovery and one of the relay after each step."""
    for _ in range(ms // step_ms):
        world.elapse(step_ms)
        await world.recovers()
        await publish(relay)
