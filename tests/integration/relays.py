"""A relay over a world, with endpoints in memory: what they are sent is kept, what they answer is the test's."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from dispatcher.delivery import PublishPendingOutboxEntries
from dispatcher.endpoints import RelayTarget
from dispatcher.registry import Registry
from dispatcher.settings import Route
from dispatcher.store import Session
from dispatcher.store import endpoints as endpoint_store
from endpoint_sdk.wire.messages import Delivery, ServedWorkflow
from publishers.base import Due, Outcome, Target
from tests.integration.world import World

PUBLISHED = Outcome("published", "settled")
SERVER_ERROR = Outcome("failed", "server-error", counted=True)

Answer = Outcome | Exception | Callable[[Delivery], Awaitable[Outcome]]


class Endpoint:
    """A publisher to one endpoint in memory."""

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


class Relays:
    """Endpoints registered in the database of *world*, and relays that push to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.endpoints: dict[str, Endpoint] = {}
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
                served=[ServedWorkflow(serves, "1")],
                order=len(self.targets),
                endpoint_id=endpoint_id,
                discovered_at=None,
            )
        )
        self.endpoints[name] = Endpoint(answer)
        return self.endpoints[name]

    def relay(self, *routes: Route) -> PublishPendingOutboxEntries:
        """One replica's relay over all endpoints so far."""
        return PublishPendingOutboxEntries(
            self.world.store,
            self.world.keys,
            _Known(self),
            publishing=self.world.settings.publishing,
            stalling=self.world.settings.stalling,
            routes=routes,
            publisher_for=lambda target: self.endpoints[target.name],
            public_url=lambda: "http://dispatcher",
        )


class _Known(Registry):
    """The endpoints of the test, always fresh."""

    def __init__(self, relays: Relays) -> None:
        super().__init__(relays.world.store, relays.world.keys)
        self._relays = relays

    async def targets(self, namespace: str | None = None) -> list[RelayTarget]:
        return [target for target in self._relays.targets if namespace is None or target.within(namespace)]


async def settle(relay: PublishPendingOutboxEntries) -> None:
    """Every push of *relay* has been answered, and its outcome written."""
    while relay._pushes:
        await asyncio.gather(*relay._pushes, return_exceptions=True)


async def publish(relay: PublishPendingOutboxEntries) -> int:
    """How many entries were leased until nothing was due; their pushes are answered."""
    leased = 0
    while True:
        counts = await relay.once()
        leased += counts["leased"]
        await settle(relay)
        if not counts["more"]:
            return leased
