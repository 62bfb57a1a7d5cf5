"""The time a host gives: how much is left, and how much of it is kept for an orderly end."""

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Final

_LEAST_MARGIN: Final = 2.0
_MARGIN: Final = 0.05
_LAST_WAIT: Final = 1.0

Remaining = Callable[[], timedelta | None]


class HostTime:
    """*remaining* is the host's time left, None where it has no limit; the margin is that of the time left now."""

    def __init__(self, remaining: Remaining) -> None:
        self._remaining = remaining
        self._margin = margin(remaining())

    def time_left(self) -> bool:
        """Whether any is left."""
        left = self._remaining()
        return left is None or left > timedelta(0)

    def nearly_up(self) -> bool:
        """Whether only the margin is left, in which no task starts."""
        left = self._remaining()
        return left is not None and left.total_seconds() <= self._margin

    def within(self, margins: float) -> float:
        """Seconds a call may take: of the host's time so many *margins* are kept for the host's own answer.

        A call that comes later than that has half of what is left, a second at most.
        """
        left = self._remaining()
        if left is None:
            return math.inf
        seconds = max(left.total_seconds(), 0)
        return max(seconds - self._margin * margins, min(seconds / 2, _LAST_WAIT))

    def share(self, seconds: float) -> float:
        """*seconds*, at most half of the time before the margin: a longer wait would end in a hand-off."""
        left = self._remaining()
        return seconds if left is None else min(seconds, max(left.total_seconds() - self._margin, 0) / 2)

    def call_at_margin(self, callback: Callable[[], None]) -> asyncio.TimerHandle | None:
        """Calls *callback* in the running loop when the margin begins; None where it never does."""
        left = self._remaining()
        if left is None:
            return None
        return asyncio.get_running_loop().call_later(max(left.total_seconds() - self._margin, 0), callback)


def margin(limit: timedelta | None) -> float:
    """Seconds before the host's *limit* in which no task starts: 5 % of it, at least 2 s, at most half of it."""
    if limit is None:
        return 0.0
    seconds = max(limit.total_seconds(), 0)
    return min(max(_LEAST_MARGIN, seconds * _MARGIN), seconds / 2)
