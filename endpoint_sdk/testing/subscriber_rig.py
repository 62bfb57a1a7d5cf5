"""What the suite for subscribers stands on: the fixtures users override, and how messages are sent and taken."""

import asyncio
import inspect
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, ClassVar, TypeAlias, TypeVar

import pytest

from endpoint_sdk.subscribers.base import Claim, Message, Setup, Subscriber
from endpoint_sdk.wire.messages import ExecutorInfo, WantedWorkflow

T = TypeVar("T")

NewSubscriber: TypeAlias = Callable[[], Subscriber]
Send: TypeAlias = Callable[[dict[str, str], bytes], Awaitable[object] | object]
Outage: TypeAlias = Callable[[], AbstractContextManager[object]]
Item: TypeAlias = Message | Claim

# Every byte JSON in ASCII can hold, and what careless transports change: white space at the ends, escapes, a slash.
_BODY = b' {"text":"a\\u00e9\\u0000\\/ \\"quoted\\" \'","nested":{"n":1.50}, "e":[]} '


class SubscriberRig:
    """The fixtures and attributes a suite is told its transport by."""

    patience: ClassVar[float] = 30.0
    hold: ClassVar[float | None] = None
    wait: ClassVar[float] = 20.0

    # --- to override -------------------------------------------------------------------------------------------------
    @pytest.fixture
    def new_subscriber(self) -> NewSubscriber:
        """A function that returns a subscriber nobody has opened; all take from the same transport."""
        raise NotImplementedError("override the fixture new_subscriber")

    @pytest.fixture
    def send(self) -> Send:
        """A function (headers, body) that puts one message on the transport."""
        raise NotImplementedError("override the fixture send")

    @pytest.fixture
    def outage(self) -> Outage:
        """A function returning a context in which the transport is down; it keeps its messages."""
        pytest.skip("no outage is given for this transport")

    @pytest.fixture
    def worker_setup(self) -> Setup:
        """What subscribers are opened with."""
        return Setup("default", [WantedWorkflow("order", ["1.0.0"])], ExecutorInfo("subscriber-suite"), 30_000)

    def identity(self, item: Item) -> str:
        """Which message *item* is: its `webhook-id`, as `send` was given it."""
        assert isinstance(item, Message)
        return item.headers["webhook-id"]

    def payload(self, item: Item) -> bytes:
        """What *item* carries, as `send` was given it."""
        assert isinstance(item, Message)
        return item.body

    # --- how ---------------------------------------------------------------------------------------------------------
    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """The outcome of *scenario* in an event loop of its own."""
        return asyncio.run(scenario)

    @asynccontextmanager
    async def opened(self, subscriber: Subscriber, worker_setup: Setup) -> AsyncIterator[Subscriber]:
        """*subscriber*, open within the context."""
        await asyncio.wait_for(subscriber.open(worker_setup), self.patience)
        try:
            yield subscriber
        finally:
            await subscriber.close(self.wait + self.patience)

    @asynccontextmanager
    async def two(
        self, new_subscriber: NewSubscriber, worker_setup: Setup
    ) -> AsyncIterator[tuple[Subscriber, Subscriber]]:
        """Two subscribers of the same transport, open within the context."""
        first, second = new_subscriber(), new_subscriber()
        async with self.opened(first, worker_setup) as one, self.opened(second, worker_setup) as other:
            yield one, other

    async def put_one(self, send: Send) -> str:
        """Sends a message of its own; its identity."""
        headers, body = message()
        await put(send, headers, body)
        return headers["webhook-id"]

    async def receive(self, subscriber: Subscriber, limit: int) -> Sequence[Item]:
        """One receive, which must not take longer than the transport's wait."""
        return await asyncio.wait_for(subscriber.receive(limit), self.wait + self.patience)

    async def take(self, subscriber: Subscriber, count: int) -> list[Item]:
        """*count* messages, from as many receives as it takes."""
        deadline = time.monotonic() + self.patience + self.wait
        items: list[Item] = []
        while len(items) < count:
            assert time.monotonic() < deadline, f"{len(items)} of {count} messages came"
            items += await self.receive(subscriber, count - len(items))
        return items

    async def left(self, subscriber: Subscriber, holds: float = 1.5) -> list[Item]:
        """What still comes, at least for one wait and for *holds* times the transport's hold; it is done at once."""
        until = time.monotonic() + holds * (self.hold or 0)
        found: list[Item] = []
        while True:
            items = await self.receive(subscriber, 10)
            for item in items:
                await subscriber.done(item)
            found += items
            if not items and time.monotonic() >= until:
                return found

    def same(self, one: Item, other: Item) -> bool:
        """Whether both are the same message, byte for byte."""
        return self.identity(one) == self.identity(other) and self.payload(one) == self.payload(other)


def message() -> tuple[dict[str, str], bytes]:
    """Headers and body as a publisher sends them; no two are the same. The signature is none: nobody here verifies."""
    stamp = str(int(time.time()))
    headers = {
        "webhook-id": f"run_{uuid.uuid4().hex}_0",
        "webhook-timestamp": stamp,
        "webhook-signature": "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4= v1,c2Vjb25k",
    }
    return headers, _BODY


async def put(send: Send, headers: dict[str, str], body: bytes) -> None:
    """Sends one message, whichever kind of function *send* is."""
    sent = send(headers, body)
    if inspect.isawaitable(sent):
        await sent
