"""One shape for every background duty: `once()` answers counts, the loop calls it for ever and shows that it does."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final, Protocol

from dispatcher import errors

_SOON_SECONDS: Final = 0.1
_STUCK_INTERVALS: Final = 5
_STUCK_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


class Daemon(Protocol):
    """A background duty. In its counts `more` asks for another tick at once, `paused` says that it did nothing.

    `dueInMs` asks for one after as many milliseconds, if the interval is longer.
    """

    @property
    def name(self) -> str: ...

    async def once(self) -> dict[str, int]: ...


class Loop:
    """Runs one daemon every *interval_ms*, jittered by ±10 %, sooner when woken or when it has more to do.

    A tick that raises is logged and tried again, after five seconds at most; it never ends the loop.
    """

    def __init__(self, daemon: Daemon, interval_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.daemon = daemon
        self._interval = interval_ms / 1_000
        self._clock = clock
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._well_at = clock()

    @property
    def name(self) -> str:
        return self.daemon.name

    @property
    def well(self) -> bool:
        """Whether a tick has done its work recently: within five intervals and half a minute."""
        return self._clock() - self._well_at < max(_STUCK_INTERVALS * self._interval, _STUCK_SECONDS)

    def wake(self, _run_id: str = "") -> None:
        """The next tick comes at once; wakes during a tick are answered by one more."""
        self._woken.set()

    def every(self, interval_ms: int) -> None:
        """From the next tick on, which comes at once, the loop runs every *interval_ms*."""
        if interval_ms / 1_000 != self._interval:
            self._interval = interval_ms / 1_000
            self.wake()

    def start(self) -> None:
        """The loop runs in the current event loop until `stop`."""
        self._well_at = self._clock()
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        """The loop has ended; a tick under way was cancelled at its next await."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            pause = await self._tick()
            try:
                async with asyncio.timeout(pause):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _tick(self) -> float:
        """The seconds until the next one."""
        try:
            counts = await self.daemon.once()
        except errors.Unavailable as error:
            log.warning("daemon tick failed", extra={"daemon": self.name, "cause": error.message})
        except Exception:
            log.exception("daemon tick failed", extra={"daemon": self.name})
        else:
            if not counts.get("paused"):
                self._well_at = self._clock()
            pause = _jittered(_SOON_SECONDS if counts.get("more") else self._interval)
            return min(pause, counts["dueInMs"] / 1_000) if "dueInMs" in counts else pause
        return _jittered(min(self._interval, _RETRY_SECONDS))


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.9, 1.1)  # noqa: S311 - jitter, not a secret
