"""Blocking work in a daemon thread, awaited by the event loop and never able to keep a process from ending."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class Errand(Generic[T]):
    """*work* under way in a thread of its own; what it brings is awaited once, or goes to *unwanted* in that thread.

    Made in a running event loop. `ended` is set when the thread has nothing left to do.
    """

    def __init__(self, name: str, work: Callable[[], T], unwanted: Callable[[T], object] = lambda _: None) -> None:
        self.ended: Final = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[T] = self._loop.create_future()
        self._work = work
        self._unwanted = unwanted
        self._decided = threading.Event()
        self._wanted = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def result(self) -> T:
        """What the work brought, or raised. Cancelling this abandons the errand."""
        try:
            outcome = await self._future
        except asyncio.CancelledError:
            self.abandon()
            raise
        self._wanted = True
        self._decided.set()
        return outcome

    def abandon(self) -> None:
        """Nobody waits any more: what the work brings is unwanted. Changes nothing once the result was taken."""
        self._decided.set()

    def _run(self) -> None:
        try:
            outcome = self._work()
        except BaseException as error:
            self._tell(self._fail, error)
        else:
            self._offer(outcome)
        self._tell(self.ended.set)

    def _offer(self, outcome: T) -> None:
        if self._tell(self._deliver, outcome):
            self._decided.wait()
        if not self._wanted:
            self._unwanted(outcome)

    def _tell(self, call: Callable[..., object], *arguments: object) -> bool:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)
            return True
        return False

    def _deliver(self, outcome: T) -> None:
        if not self._future.done():
            self._future.set_result(outcome)

    def _fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # an abandoned errand's failure is nobody's news
