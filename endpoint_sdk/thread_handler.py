"""Runs a `def` handler in a thread of its own; its blocking calls bridge to the loop."""

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, Final, NoReturn

from endpoint_sdk.bodies import Returned
from endpoint_sdk.context import IN_WORKFLOW
from endpoint_sdk.errors import HandlerStopped
from endpoint_sdk.pending_call import Call, Outcome

_log: Final = logging.getLogger(__name__)

_GRACE: Final = 1.0
_LATE_CALLS: Final = 100


class ThreadHandler:
    """*done* hears in the loop what the handler gave back, once; *moved* that the thread waits now."""

    def __init__(self, body: Callable[[], Any], done: Callable[[Returned], None], moved: Callable[[], None]) -> None:
        self._body = body
        self._done = done
        self._moved = moved
        self._loop = asyncio.get_running_loop()
        self._waiting: Future[Outcome] | None = None
        self._under_way: set[Future[Outcome]] = set()
        self._started = False
        self._ended = asyncio.Event()
        self._stopped = False
        self._late_calls = 0
        self.alone = True

    @property
    def waits(self) -> bool:
        """Whether the thread is blocked in a call; computing, it can still make one."""
        return self._waiting is not None

    def asked(self, calls: Collection[Call]) -> Collection[Call]:
        """That of *calls* which the thread is blocked in, if it is."""
        return [call for call in calls if self._waiting is not None and call.waiter is self._waiting]

    @property
    def computing(self) -> bool:
        """Whether the thread runs: it was started, and is neither blocked in a call nor at its end."""
        return self._started and not self.waits and not self._ended.is_set()

    # --- in the loop -------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Lets the handler run."""
        self._started = True
        context = contextvars.copy_context()
        context.run(IN_WORKFLOW.set, True)
        # A daemon thread: a handler that never returns must not keep the process from ending.
        threading.Thread(target=context.run, args=(self._run,), name="pointsman-workflow", daemon=True).start()

    async def stop(self) -> None:
        """Unwinds the handler at its blocking calls and waits a second for it; nothing it does is heard any more."""
        self._stopped = True
        for future in list(self._under_way):
            self._settle(future, HandlerStopped())
        try:
            await asyncio.wait_for(self._ended.wait(), _GRACE)
        except TimeoutError:
            _log.warning("a def workflow goes on after its run was suspended")

    def deliver(self, future: "Future[Outcome]", outcome: Outcome) -> None:
        """Hands *outcome* to the thread."""
        self._settle(future, outcome)

    def _settle(self, future: "Future[Outcome]", outcome: Outcome | HandlerStopped) -> None:
        self._under_way.discard(future)
        if self._waiting is future:
            self._waiting = None
        if isinstance(outcome, HandlerStopped):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _admit(self, start: Callable[["Future[Outcome]"], None], future: "Future[Outcome]") -> None:
        self._under_way.add(future)
        if self._stopped:
            self._settle(future, HandlerStopped())
        else:
            start(future)

    def _block(self, future: "Future[Outcome]") -> None:
        if not future.done():
            self._waiting = future
            self._moved()

    def _finish(self, returned: Returned) -> None:
        self._ended.set()
        self._done(returned)

    # --- in the handler's thread -------------------------------------------------------------------------------------
    def submit(self, start: Callable[["Future[Outcome]"], None]) -> "Future[Outcome]":
        """Has *start* make a call in the loop; the future gets its outcome."""
        future: Future[Outcome] = Future()
        self._tell(self._admit, start, future)
        return future

    def wait(self, future: "Future[Outcome]") -> Outcome:
        """The outcome, blocking; raises HandlerStopped when the run is suspended."""
        if self._stopped:
            self._late_calls += 1
            if self._late_calls > _LATE_CALLS:
                threading.Event().wait()
        if not future.done():
            self._tell(self._block, future)
        return future.result()

    def leave(self, tell: Callable[[], None]) -> NoReturn:
        """Has *tell* called in the loop, which ends this execution, and unwinds the thread."""
        self._tell(tell)
        raise HandlerStopped

    def _run(self) -> None:
        try:
            returned = Returned(self._body())
        except BaseException as error:
            returned = Returned(error=error)
        with contextlib.suppress(HandlerStopped):
            self._tell(self._finish, returned)

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            # The loop is closed: this execution is long over, and nobody will answer.
            _log.debug("a workflow's thread outlived its loop")
            raise HandlerStopped from None
