"""Time that passes in jumps: an event loop that never waits for the clock, only for work that really runs.

While something runs outside the loop - a thread with a body or a `def` workflow, a body's own connection - the loop
waits for it as any other would, and after three seconds its timers run in real time. With nothing under way it jumps to
the next timer; with no timer left it comes to rest.
"""

import asyncio
import math
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar, TypeVarTuple, Unpack

from endpoint_sdk.server_clock import ServerClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO: Final = timedelta(microseconds=1)
# The loop's own pipe, by which threads wake it.
_OWN_CHANNELS: Final = 1
# One who asks the time again and again, for something that does not come by itself, is as good as at rest.
_MOST_JUMPS: Final = 20_000
_FREE: Final = 3.0
_STRANGERS: Final = 10.0


class VirtualClock:
    """Starts at *start* and moves when it is told to, in whole microseconds."""

    def __init__(self, start: datetime) -> None:
        self._micros = (start - _EPOCH) // _MICRO
        self._start = self._micros

    @property
    def ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._micros // 1_000

    @property
    def now(self) -> datetime:
        """The moment, in UTC."""
        return _EPOCH + self._micros * _MICRO

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return (self._micros - self._start) / 1_000_000

    def jump(self, seconds: float) -> None:
        """Time goes on by *seconds*, at least by a microsecond."""
        self._micros += max(round(seconds * 1_000_000), 1)

    def go_to(self, ms: int) -> None:
        """Time goes on to *ms* since the epoch, if that is not past."""
        self._micros = max(self._micros, ms * 1_000)


class RunClock(ServerClock):
    """The dispatcher's clock as one execution sees it."""

    def __init__(self, clock: VirtualClock, elapsed: Callable[[], float]) -> None:
        self._clock = clock
        self._elapsed = elapsed

    def now(self) -> int:
        """Milliseconds since the epoch; the time work really took is not in it."""
        return self._clock.ms

    def elapsed(self) -> float:
        """Seconds, with the time work really took."""
        return self._elapsed()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop over *clock*; `working` says whether a task's body runs, `computing` whether a thread does."""

    def __init__(self, clock: VirtualClock) -> None:
        self._virtual = clock
        self._worked = 0.0
        self._under_way = 0.0
        self._threads = 0
        self.jumps = 0
        self.working: Callable[[], bool] = lambda: False
        self.computing: Callable[[], bool] = lambda: False
        super().__init__(_Selector(self))
        # As fine as a float counts seconds after centuries: with the default, a timer could be due and never run.
        self._clock_resolution = 1e-5

    def time(self) -> float:
        """Seconds since the clock's start, with the time work really took."""
        return self._virtual.seconds + self._worked

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """As every loop's; what runs there is waited for in real time."""
        future = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: object) -> None:
        self._threads -= 1

    def patience(self, channels: int, timeout: float | None) -> float | None:
        """How long something outside the loop may take to wake it, in real seconds; None if nothing would.

        So many *channels* are open, and the next timer is *timeout* away, None for no timer.
        """
        if self._threads or self.computing() or (self.working() and channels > _OWN_CHANNELS):
            return math.inf if timeout is None else timeout
        # A body may wait for a thread this loop knows nothing of, or for nothing at all.
        return _STRANGERS if self.working() and timeout is None else None

    def pass_time(self, seconds: float | None) -> None:
        """Jumps to the next timer, in *seconds*; with none the loop is at rest and stops."""
        self.jumps += 1
        self._under_way = 0.0
        if seconds is None or self.jumps > _MOST_JUMPS:
            self.stop()
        else:
            self._virtual.jump(seconds)

    def worked(self, seconds: float) -> None:
        """Something that really ran took *seconds*; three of them are free, so that quick work takes no time at all."""
        before = max(self._under_way - _FREE, 0.0)
        self._under_way += seconds
        self._worked += max(self._under_way - _FREE, 0.0) - before


class _Selector(selectors.DefaultSelector):
    """Asks the loop before it waits."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._asks = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; waits only for what runs outside the loop."""
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        patience = self._asks.patience(len(self.get_map()), timeout)
        if patience is None:
            self._asks.pass_time(timeout)
            return []
        began = time.monotonic()
        ready = super().select(None if patience == math.inf else patience)
        self._asks.worked(time.monotonic() - began)
        if not ready and timeout is None:
            self._asks.pass_time(None)
        return ready
