"""Runs an `async def` handler in the loop, and unwinds it with every branch that called a task."""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final
from weakref import WeakSet

from endpoint_sdk.bodies import Returned
from endpoint_sdk.context import IN_WORKFLOW
from endpoint_sdk.pending_call import Call

_log: Final = logging.getLogger(__name__)

_GRACE: Final = 1.0
_LATE_CALLS: Final = 100
# Handlers that outlived their cancellation: kept, so that the collector does not close a coroutine that refuses to end.
_abandoned: Final[set[asyncio.Task[Any]]] = set()


class AsyncHandler:
    """*done* hears what the handler gave back, once."""

    def __init__(self, body: Callable[[], Awaitable[Any]], done: Callable[[Returned], None]) -> None:
        self._body = body
        self._done = done
        self._branches: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._main: asyncio.Task[None] | None = None
        self._late_calls = 0
        self.alone = True

    @property
    def waits(self) -> bool:
        """Whether the handler may be waiting: once the loop has settled, it can do nothing else."""
        return True

    def asked(self, calls: Collection[Call]) -> Collection[Call]:
        """Those of *calls* whose outcome the handler would hear of: its own, and those of branches somebody waits for.

        All of them where there are none of these: then the handler waits by means that cannot be seen.
        """
        heard = [call for call in calls if self._is_heard(call.waiter)]
        return heard or calls

    def _is_heard(self, branch: object) -> bool:
        return branch is not None and (branch is self._main or bool(getattr(branch, "_callbacks", True)))

    def start(self) -> None:
        """Lets the handler run from the loop's next turn on."""
        context = contextvars.copy_context()
        context.run(IN_WORKFLOW.set, True)
        self._main = asyncio.create_task(self._run(), context=context)

    def enter(self, call: Call) -> None:
        """Notes the branch that makes *call*. `alone` stays true as long as the handler's own is the only one."""
        branch = call.waiter = asyncio.current_task()
        if branch is not None and branch is not self._main:
            self.alone = False
            self._branches.add(branch)

    async def stop(self) -> None:
        """Cancels what still runs of the handler and lets it unwind for a second; nothing it does is heard any more."""
        pending = {task for task in (self._main, *self._branches) if task is not None and not task.done()}
        for task in pending:
            task.cancel()
        if pending:
            _, pending = await asyncio.wait(pending, timeout=_GRACE)
        for task in pending:
            _log.warning("a workflow's branch goes on after its run was suspended: %r", task.get_coro())
            _abandoned.add(task)
            task.add_done_callback(_abandoned.discard)

    async def late_call(self) -> None:
        """A call after the end: cancelled again, and parked for good should the handler insist."""
        self._late_calls += 1
        if self._late_calls > _LATE_CALLS:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    async def _run(self) -> None:
        try:
            returned = Returned(await self._body())
        except BaseException as error:
            returned = Returned(error=error)
        self._done(returned)
