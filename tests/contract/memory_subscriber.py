"""The subscriber that infra/docs/workers.md shows, and a broker in this process for it."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence

from endpoint_sdk.subscribers.base import Claim, Message, Setup, SubscriberFailed

_WAIT = 1.0


class Broker:
    """Keeps messages in memory, in the order they came."""

    def __init__(self) -> None:
        self.up = True
        self.messages: deque[Message] = deque()
        self._arrived = asyncio.Event()

    def send(self, headers: Mapping[str, str], body: bytes) -> None:
        """A message is there to be received."""
        self.put(Message(headers, body, sent_at=time.time()))

    def put(self, message: Message) -> None:
        """*message* is there to be received (again)."""
        self.messages.append(message)
        self._arrived.set()

    async def wait(self, seconds: float) -> None:
        """Returns as soon as there may be messages, after *seconds* at the latest."""
        self._arrived.clear()
        if not self.messages:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), seconds)


class MemorySubscriber:
    """Takes messages from a Broker."""

    pools = ("default",)

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._delayed: dict[asyncio.TimerHandle, Message] = {}

    async def open(self, setup: Setup) -> None:
        if not self._broker.up:
            raise SubscriberFailed("the broker is down")

    async def receive(self, limit: int) -> Sequence[Message | Claim]:
        await self._broker.wait(_WAIT)
        if not self._broker.up:
            raise SubscriberFailed("the broker is down")
        # From here to the return nothing is awaited: a cancelled receive has taken nothing.
        there = self._broker.messages
        return [there.popleft() for _ in range(min(limit, len(there)))]

    async def done(self, item: Message | Claim) -> None:
        """It was taken out when it was received."""

    async def back(self, item: Message | Claim, delay: float = 0) -> None:
        assert isinstance(item, Message)
        if delay <= 0:
            self._broker.put(item)
        else:
            timer: asyncio.TimerHandle = asyncio.get_running_loop().call_later(delay, lambda: self._due(timer))
            self._delayed[timer] = item

    def held_for(self, item: Message | Claim) -> float | None:
        return None

    async def close(self, timeout: float) -> None:
        for timer in list(self._delayed):
            timer.cancel()
            self._due(timer)

    def _due(self, timer: asyncio.TimerHandle) -> None:
        self._broker.put(self._delayed.pop(timer))
