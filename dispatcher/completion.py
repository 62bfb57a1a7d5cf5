"""Waiting for runs to end: a signal from this process's own writes, behind a look at the database every second."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dispatcher import errors
from dispatcher.store import Store

RECHECK: Final = 1.0
MOST_WAITING: Final = 5_000


class Completion:
    """Tells waiting requests that a run of theirs has ended."""

    def __init__(self, store: Store) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._count = 0
        store.listen("finished", self._finished)

    @contextmanager
    def watch(self, run_id: str) -> Iterator[asyncio.Event]:
        """An event that is set when *run_id* ends by a write of this process; other replicas are not heard.

        Raises TooMany `rate_limited` when MOST_WAITING requests wait already.
        """
        if self._count >= MOST_WAITING:
            raise errors.TooMany(
                "rate_limited",
                f"{MOST_WAITING} requests are waiting for results here already.",
                hint="Ask again later, or without waitMs.",
                retry_after=1,
            )
        event = asyncio.Event()
        events = self._waiting.setdefault(run_id, set())
        events.add(event)
        self._count += 1
        try:
            yield event
        finally:
            self._count -= 1
            events.discard(event)
            if not events:
                self._waiting.pop(run_id, None)

    def _finished(self, run_id: str) -> None:
        for event in self._waiting.get(run_id, ()):
            event.set()


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Returns when *event* is set or after *seconds*, at most RECHECK; the event is heard once, so look after it."""
    try:
        async with asyncio.timeout(min(seconds, RECHECK)):
            await event.wait()
    except TimeoutError:
        pass
    # A stall sets it too, and the run goes on from there.
    event.clear()
