"""Who waits for which queue: every entry that becomes due wakes one poll, not all of them."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from dispatcher import errors

MOST_WAITING: Final = 5_000
MOST_PLACES: Final = 500_000
"""Polls times the queues of each: what they hold in memory, and what a tick asks the database about at most."""


class Waiter:
    """A poll that waits. `woken` is set when it should look; `look_at` names the queues to look at."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.queues = list(queues)
        self.look_at: set[str] = set()
        self.woken = asyncio.Event()

    def take(self) -> list[str]:
        """The queues to look at, once; the next wake sets `woken` again."""
        found = sorted(self.look_at)
        self.look_at.clear()
        self.woken.clear()
        return found


class WaitingRoom:
    """The polls of this process that wait, by queue; the one not woken for the longest comes first."""

    def __init__(self) -> None:
        self._by_queue: dict[str, dict[Waiter, None]] = {}
        self._waiters: set[Waiter] = set()
        self._places = 0

    @property
    def queues(self) -> list[str]:
        """Every queue somebody waits for."""
        return list(self._by_queue)

    def __len__(self) -> int:
        return len(self._waiters)

    @contextmanager
    def enter(self, queues: Iterable[str]) -> Iterator[Waiter]:
        """A waiter for *queues*; wakes it has not looked after when the block ends go to the next.

        Raises TooMany `rate_limited` when MOST_WAITING polls wait already, or for more queues than MOST_PLACES.
        """
        waiter = Waiter(queues)
        if len(self._waiters) >= MOST_WAITING or self._places + len(waiter.queues) > MOST_PLACES:
            raise errors.TooMany(
                "rate_limited",
                f"{len(self._waiters)} polls are waiting here already, for {self._places} queues.",
                hint="Ask again later, or for fewer queues.",
                retry_after=1,
            )
        self._waiters.add(waiter)
        self._places += len(waiter.queues)
        for queue in waiter.queues:
            self._by_queue.setdefault(queue, {})[waiter] = None
        try:
            yield waiter
        finally:
            self._leave(waiter)

    def wake(self, queue: str) -> None:
        """One poll of *queue*, if there is any, looks at it soon."""
        waiters = self._by_queue.get(queue)
        if not waiters:
            return
        waiter = next(iter(waiters))
        # To the end of the line: the next entry of this queue is another poll's.
        waiters[waiter] = waiters.pop(waiter)
        waiter.look_at.add(queue)
        waiter.woken.set()

    def wake_all(self) -> None:
        """Every poll notices that something about it has changed."""
        for waiter in self._waiters:
            waiter.woken.set()

    def _leave(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)
        self._places -= len(waiter.queues)
        for queue in waiter.queues:
            waiters = self._by_queue[queue]
            del waiters[waiter]
            if not waiters:
                del self._by_queue[queue]
        for queue in waiter.take():
            self.wake(queue)
