"""Memory: deliveries stay in this process, for tests and for a dispatcher and a worker that share one.

A queue is what a sorted set is in Redis: ordered by rank, a republish of the same revision kept once. It is bounded;
what does not fit is not handed over, and the relay comes again.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from publishers import faults
from publishers.base import Due, Health, Outcome, Target
from publishers.faults import Fault
from publishers.message import message_id, signed

CAPACITY: Final = 10_000

_FULL: Final = Fault("throttled", "The queue in memory is full.")

Queue = tuple[str, str, str, str]
"""Namespace, workflow, version and pool."""


class Received(Struct, frozen=True):
    """A signed delivery as it was handed over, with its place in the order of its queue."""

    queue: Queue
    rank: int
    headers: dict[str, str]
    body: bytes


class MemoryPublisher:
    """Keeps deliveries until they are taken, up to *capacity* of them over all queues.

    `received` is every delivery handed over so far, oldest first, copies included, of which the last *capacity* are
    kept. All methods are called on one event loop.
    """

    def __init__(self, target: Target, *, capacity: int = CAPACITY, now: Callable[[], float] = time.time) -> None:
        self._target = target
        self._capacity = capacity
        self._now = now
        self._waiting: dict[str, Received] = {}
        self._changed = asyncio.Event()
        self._closed = False
        self.received: list[Received] = []

    async def publish(self, due: Sequence[Due]) -> list[Outcome]:
        """What became of each delivery: accepted, or throttled where the queue is full."""
        return [self._put(each) for each in due]

    async def check(self) -> Health:
        """Active until it is closed."""
        return faults.CLOSED.health() if self._closed else faults.ACTIVE

    async def close(self) -> None:
        """Nothing is published any more; what waits can still be taken. Can be repeated."""
        self._closed = True
        self._changed.set()

    def take(self, limit: int = 1, queue: Queue | None = None) -> list[Received]:
        """Up to *limit* waiting deliveries, of *queue* only when given, the lowest rank first; they wait no longer."""
        found = sorted(self._of(queue), key=lambda item: item[1].rank)[:limit]
        for key, _ in found:
            del self._waiting[key]
        return [received for _, received in found]

    async def wait(self) -> None:
        """Returns once a delivery waits, or the publisher is closed."""
        while not self._waiting and not self._closed:
            self._changed.clear()
            await self._changed.wait()

    def _of(self, queue: Queue | None) -> Iterator[tuple[str, Received]]:
        return ((key, each) for key, each in self._waiting.items() if queue in (None, each.queue))

    def _put(self, due: Due) -> Outcome:
        if self._closed or not self._target.secrets:
            return (faults.CLOSED if self._closed else faults.UNSIGNED).outcome()
        key = message_id(due.delivery)
        if len(self._waiting) >= self._capacity and key not in self._waiting:
            return _FULL.outcome()
        delivery = due.delivery
        headers, body = signed(delivery, self._target.secrets, int(self._now()))
        queue = (delivery.namespace, delivery.workflow, delivery.version, due.pool)
        self._waiting[key] = Received(queue, due.rank, headers, body)
        self.received.append(self._waiting[key])
        del self.received[: -self._capacity]
        self._changed.set()
        return faults.ACCEPTED

    def __repr__(self) -> str:
        return f"MemoryPublisher({self._target!r}, {len(self._waiting)} waiting)"
