"""Runs the body of one attempt: `async def` in the loop, `def` in a thread of a bounded pool.

Whatever a body raises is an answer, SystemExit and KeyboardInterrupt included: user code never ends the process loop.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from endpoint_sdk import monotonic
from endpoint_sdk.context import CURRENT_TASK, TaskContext

MOST_THREADS: Final = 64


class Returned(msgspec.Struct, frozen=True):
    """What a body gave back: a value, or what it raised."""

    value: Any = None
    error: BaseException | None = None


class Threads:
    """The pool for `def` bodies; a slot taken before a body means that it starts at once, without queueing."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="pointsman-task")
        self.slots: Final = asyncio.Semaphore(MOST_THREADS)

    async def run(self, body: Callable[[], Any], context: TaskContext, timeout: timedelta | None) -> Returned:
        """What *body* gave back, from a thread that sees the caller's context variables; the caller holds a slot.

        A body that raises after *timeout* failed by TimeoutError; one that returns after it still counts.
        """
        loop, started = asyncio.get_running_loop(), monotonic.now()
        returned = await loop.run_in_executor(self._pool, contextvars.copy_context().run, _guarded, body, context)
        if returned.error is None or timeout is None or monotonic.now() - started < timeout.total_seconds():
            return returned
        late = TimeoutError(f"raised after its timeout of {timeout}")
        late.__cause__ = returned.error
        return Returned(error=late)

    def dismiss(self) -> None:
        """Takes no further body; every thread ends with the one it has."""
        self._pool.shutdown(wait=False)


# One pool per loop, because its slots are counted there; a collected pool lets its threads go.
_POOLS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Threads]] = WeakKeyDictionary()


def threads() -> Threads:
    """The running loop's pool."""
    loop = asyncio.get_running_loop()
    pool = _POOLS.get(loop)
    if pool is None:
        pool = _POOLS[loop] = Threads()
    return pool


def dismiss(loop: asyncio.AbstractEventLoop) -> None:
    """The threads of *loop*, which is closed, end as soon as the bodies in them do."""
    pool = _POOLS.pop(loop, None)
    if pool is not None:
        pool.dismiss()


async def in_loop(body: Callable[[], Awaitable[Any]], context: TaskContext, timeout: timedelta | None) -> Returned:
    """What the coroutine of *body* gave back; TimeoutError once *timeout* is over and it has unwound."""
    CURRENT_TASK.set(context)
    try:
        if timeout is None:
            return Returned(await body())
        async with asyncio.timeout(timeout.total_seconds()):
            return Returned(await body())
    except BaseException as error:
        return Returned(error=error)


def _guarded(body: Callable[[], Any], context: TaskContext) -> Returned:
    CURRENT_TASK.set(context)
    try:
        return Returned(body())
    except BaseException as error:
        return Returned(error=error)
