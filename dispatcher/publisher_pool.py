"""The publishers of this process, one for each target: made when first asked for, and anew when what they need changed.

What is replaced is closed once its calls must have ended, so a change of the configuration interrupts none.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from dispatcher.broker_clients import BrokerClients
from dispatcher.endpoints import RelayTarget
from dispatcher.settings import BrokerPublisher
from publishers.base import Health, Publisher, Target

# More than the relay gives any call.
_RETIRING_SECONDS: Final = 45.0


class Broker(Publisher, Protocol):
    """A publisher that can tell what is wrong with its queue."""

    async def check(self) -> Health:
        """Whether deliveries can be handed over, within a few seconds."""
        ...


MakeEndpoint = Callable[[Target], Publisher]
MakeBroker = Callable[[Target, BrokerPublisher, BrokerClients], Broker]


class PublisherPool:
    """Makes publishers by *make_endpoint* and *make_broker*; *described* are the brokers of the configuration file."""

    def __init__(
        self, make_endpoint: MakeEndpoint, make_broker: MakeBroker, described: Mapping[str, BrokerPublisher]
    ) -> None:
        self._make_endpoint = make_endpoint
        self._make_broker = make_broker
        self._described = described
        self._clients = BrokerClients()
        self._endpoints: dict[str, tuple[Target, Publisher]] = {}
        self._brokers: dict[str, tuple[Target, BrokerPublisher, Broker]] = {}
        self._retired: list[tuple[float, Publisher | BrokerClients]] = []

    def publisher(self, item: RelayTarget) -> Publisher:
        """The publisher to *item*. Raises KeyError for a broker that the file of this process does not describe."""
        if item.type != "push":
            return self.broker(item)
        known = self._endpoints.get(item.endpoint_id)
        if known is None or known[0] != item.target:
            known = self._endpoints[item.endpoint_id] = item.target, self._make_endpoint(item.target)
        return known[1]

    def broker(self, item: RelayTarget) -> Broker:
        """The publisher to the broker *item*. Raises KeyError as `publisher` does."""
        described = self._described[item.name]
        known = self._brokers.get(item.endpoint_id)
        if known is None or known[:2] != (item.target, described):
            if known is not None:
                self._retire(known[2])
            made = self._make_broker(item.target, described, self._clients)
            known = self._brokers[item.endpoint_id] = item.target, described, made
        return known[2]

    async def check(self, item: RelayTarget) -> Health:
        """What a look at the broker *item* finds."""
        return await self.broker(item).check()

    def reload(self, described: Mapping[str, BrokerPublisher]) -> None:
        """From the next call on *described* are the brokers of the file; calls under way go on."""
        for endpoint_id, (target, _, broker) in list(self._brokers.items()):
            if target.name not in described:
                del self._brokers[endpoint_id]
                self._retire(broker)
        self._described = described
        self._retire(self._clients.without(described))

    async def sweep(self) -> None:
        """What was replaced long enough ago is closed."""
        before = time.monotonic() - _RETIRING_SECONDS
        while self._retired and self._retired[0][0] < before:
            await self._retired.pop(0)[1].close()

    async def close(self) -> None:
        """Every publisher and every client is closed."""
        for _, _, broker in self._brokers.values():
            await broker.close()
        for _, retired in self._retired:
            await retired.close()
        await self._clients.close()

    def _retire(self, what: Publisher | BrokerClients) -> None:
        self._retired.append((time.monotonic(), what))
