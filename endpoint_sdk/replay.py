"""Runs one claim of a run: replays what is recorded, goes on from there, and ends or suspends.

    handler ── call ──> Engine ── no record ──> Driver: body, record ──┐
       ^                  └── recorded ──┐                             │ acknowledged
       └────────── outcome, one at a time, in the order of `seq` ── HandOut

A call without a record while records are unconsumed is parked until they are. The run diverges only when all that is
left is unconsumed records nobody asks for and parked calls. Waits park on futures; on suspension or loss the handler
is cancelled, and whatever it does afterwards is not heard.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Final, TypeVar

import msgspec

from endpoint_sdk import addresses, divergence, failures, fan_out
from endpoint_sdk.addresses import Address
from endpoint_sdk.async_handler import AsyncHandler
from endpoint_sdk.bodies import Returned
from endpoint_sdk.driver import Driver, finished_ms
from endpoint_sdk.errors import ConfigurationError, NonRetryableError, PayloadError, RecordRefused
from endpoint_sdk.handout import HandOut
from endpoint_sdk.history import History
from endpoint_sdk.port import Completed, Diverged, Ended, Failed, Lost, Port, Suspended
from endpoint_sdk.run import Run, info_of
from endpoint_sdk.server_clock import ServerClock
from endpoint_sdk.sync_run import SyncRun
from endpoint_sdk.task_call import Call, Outcome
from endpoint_sdk.tasks import Definition, code_of
from endpoint_sdk.thread_handler import ThreadHandler
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import Workflow

# The seam an execution works with.
__all__ = ["Completed", "Diverged", "Ended", "Engine", "Failed", "Lost", "Port", "RecordRefused", "Suspended"]

_log: Final = logging.getLogger(__name__)
IDLE_SECONDS: Final = 10.0
_LONGEST_WAIT: Final = timedelta(seconds=10)

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


class Engine:
    """One execution of *workflow* under *grant*, whose records are complete; *port* is its claim.

    All methods are for the running loop's thread. *idle_seconds* is how long a replay that waits for nothing but
    unknown calls is given before it counts as diverged.
    """

    def __init__(
        self, workflow: Workflow[Any, Any], grant: messages.Grant, port: Port, *, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self.note: str | None = None
        self._workflow = workflow
        self._grant = grant
        self._port = port
        self._idle_seconds = idle_seconds
        self._history = History(grant.records)
        self._clock = ServerClock(grant.server_time)
        self._driver = Driver(grant.run.id, port, self, self._history, self._clock)
        self._hand_out = HandOut(self._give_recorded, self._give, self._settled)
        self._functions: dict[str, Callable[..., Any]] = {}
        self._pending: dict[Call, None] = {}
        self._parked: list[Call] = []
        self._driving: set[Call] = set()
        self._leaving = False
        self._watch: asyncio.TimerHandle | None = None
        self._ended: Ended | None = None
        self._end_known = asyncio.Event()

    # --- for the execution -------------------------------------------------------------------------------------------
    async def run(self) -> Ended:
        """Runs the handler to an end or a suspension; never raises for user errors.

        When it returns, no task body runs: `async def` bodies were cancelled and awaited, threads awaited.
        """
        if self.over:
            return self._final()
        self._handler: AsyncHandler | ThreadHandler = self._made_handler()
        try:
            self._start()
            await self._end_known.wait()
        except asyncio.CancelledError:
            self._end(Lost())
            raise
        finally:
            await self._wind_down()
        return self._final()

    def lose(self) -> None:
        """The claim is lost: cancels the handler at its next await or task boundary, and `run` returns Lost."""
        self._end(Lost())

    def leave(self) -> None:
        """No further task starts here; `run` returns Suspended once every branch waits, or how the handler ends."""
        self._leaving = True
        if self._pending and not self.over:
            self._hand_out.wake()

    def leave_now(self) -> None:
        """The run ends here as suspended: `async def` bodies are cancelled, and `run` returns once no thread's runs."""
        self._end(Suspended(None))

    @property
    def body_running(self) -> bool:
        """Whether the body of a task runs now."""
        return any(call.stage in ("body", "thread") for call in self._driving)

    # --- for the run -------------------------------------------------------------------------------------------------
    @property
    def replaying(self) -> bool:
        """Whether recorded outcomes are still to be handed out."""
        return self._history.unconsumed

    @property
    def suspending(self) -> bool:
        """Whether the handler is being unwound without having ended the run."""
        return self.over and not isinstance(self._ended, Completed | Failed)

    async def call(self, definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
        """The outcome of a task called by an `async def` handler."""
        assert isinstance(self._handler, AsyncHandler)
        self._handler.enter()
        if self.over:
            await self._handler.late_call()
        call = self._called(definition, args, kwargs)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        call.deliver = lambda outcome: None if future.done() else future.set_result(outcome)
        self._admit(call)
        try:
            return await future
        except asyncio.CancelledError:
            self._drop(call)
            raise

    def starter(
        self, definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[["Future[Outcome]"], None]:
        """Makes the call of a `def` handler when called, in the loop; itself for the handler's thread."""
        call = self._called(definition, args, kwargs)

        def start(future: "Future[Outcome]") -> None:
            assert isinstance(self._handler, ThreadHandler)
            handler = self._handler
            call.deliver = lambda outcome: handler.deliver(future, outcome)
            self._admit(call)

        return start

    def each(
        self, call: Callable[[I], Coroutine[Any, Any, T]], items: Iterable[I], limit: int
    ) -> Coroutine[Any, Any, list[T]]:
        """See `endpoint_sdk.fan_out`."""
        return fan_out.each(call, items, limit)

    # --- for drivers -------------------------------------------------------------------------------------------------
    @property
    def over(self) -> bool:
        """Whether this execution has ended."""
        return self._ended is not None

    def leaving(self) -> bool:
        """Whether no further body may start; once so, for good."""
        self._leaving = self._leaving or self._port.leaving()
        return self._leaving

    def moved(self) -> None:
        """Some call waits now, which may have been the last thing under way."""
        self._hand_out.wake()

    def hand_out(self, call: Call, outcome: Outcome) -> None:
        """*outcome* of *call* is acknowledged; nobody sees it once this execution has ended."""
        if not self.over:
            self._hand_out.live(call, outcome, alone=self._handler.alone and len(self._pending) == 1)

    def abandon(self, error: BaseException) -> None:
        """Nothing can be recorded any more: stops quietly and leaves the run to recovery."""
        _log.log(
            logging.ERROR if isinstance(error, Exception) else logging.INFO,
            "run %s stops here: %r",
            self._grant.run.id,
            error,
            exc_info=error if isinstance(error, Exception) else None,
        )
        self._end(Lost())

    # --- calls -------------------------------------------------------------------------------------------------------
    def _called(self, definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        known = self._functions.setdefault(definition.name, definition.fn)
        if known is not definition.fn:
            raise ConfigurationError(
                f"two functions go by the task name {definition.name!r} in one run, {code_of(known)} and "
                f"{code_of(definition.fn)}; give one of them another name="
            )
        data = definition.arguments(args, kwargs)
        address = Address("task", definition.name, addresses.args_hash(data))
        return Call(definition, args, kwargs, address, addresses.preview(data))

    def _admit(self, call: Call) -> None:
        if self.over:
            return
        replaying = self._history.unconsumed
        call.key = self._history.number(call.address)
        self._pending[call] = None
        record = self._history.meet(call.key)
        if record is not None:
            self._hand_out.recorded(record.seq, call)
        elif replaying:
            self._parked.append(call)
            self._hand_out.wake()
        else:
            self._drive(call)

    def _drive(self, call: Call) -> None:
        call.stage = "busy"
        call.driver = asyncio.create_task(self._driver.drive(call), context=call.context)
        self._driving.add(call)
        call.driver.add_done_callback(lambda _: self._driven(call))

    def _driven(self, call: Call) -> None:
        self._driving.discard(call)
        if self._leaving and not self.over:
            self._hand_out.wake()

    def _drop(self, call: Call) -> None:
        """The workflow's code gave up waiting for *call*; a record of it is used up all the same."""
        call.drop()
        self._pending.pop(call, None)
        self._history.consume(call.key)
        if self._parked and not self.over:
            self._hand_out.wake()

    # --- outcomes ----------------------------------------------------------------------------------------------------
    def _give_recorded(self, call: Call) -> None:
        record = self._history.meet(call.key)
        if record is None or call.dropped or self.over:
            return
        try:
            outcome = self._outcome_of(call, record)
        except PayloadError as error:
            self._end(Diverged(divergence.unreadable(call.view(), error)))
            return
        self._history.consume(call.key)
        self._give(call, outcome)

    def _outcome_of(self, call: Call, record: messages.Record) -> Outcome:
        if record.error is not None:
            error = failures.raised(call.key, record.attempt, record.error, self._grant.run.id)
            return Outcome(None, error, finished_ms(record))
        data = b"null" if not record.value else record.value
        value = call.definition.result.decode(data, f"result of {call.definition.place}")
        return Outcome(value, None, finished_ms(record))

    def _give(self, call: Call, outcome: Outcome) -> None:
        if call in self._pending and not self.over:
            del self._pending[call]
            call.deliver(outcome)

    def _settled(self) -> None:
        """The workflow's code has done what it can for now."""
        if self.over:
            return
        if self._parked and not self._history.unconsumed:
            parked, self._parked = self._parked, []
            for call in parked:
                if call in self._pending:
                    self._drive(call)
        self._suspend_if_waiting()
        self._watch_for_divergence()

    # --- suspension --------------------------------------------------------------------------------------------------
    def _suspend_if_waiting(self) -> None:
        """Ends here if no task may start, or none can soon or in the host's time, and nothing is under way."""
        under_way = any(call.stage in ("busy", "body", "thread") for call in self._driving)
        if not self._pending or under_way or not self._handler.waits:
            return
        delay = self._delay()
        if self.leaving() or (delay is not None and self._is_long(delay)):
            self._end(Suspended(delay))

    def _is_long(self, delay: timedelta) -> bool:
        """Whether a wait gives the run and its place up until it is over: beyond ten seconds, or the host's time."""
        left = self._port.remaining()
        return delay > _LONGEST_WAIT or (left is not None and left <= delay)

    def _delay(self) -> timedelta | None:
        """The time to the earliest retry when every call waits for one."""
        if any(call.stage != "retry" for call in self._pending):
            return None
        due = min(call.retry_at_ms for call in self._pending)
        return timedelta(milliseconds=max(due - self._clock.now(), 0))

    # --- divergence --------------------------------------------------------------------------------------------------
    def _watch_for_divergence(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if not self.over and self._new_calls() and self._history.unconsumed:
            self._watch = asyncio.get_running_loop().call_later(self._idle_seconds, self._diverge)

    def _diverge(self) -> None:
        if self.over or not self._new_calls() or not self._history.unconsumed:
            return
        if self._hand_out.active or self._driving or not self._handler.waits:
            self._watch_for_divergence()
        else:
            self._end(Diverged(self._difference()))

    def _new_calls(self) -> list[Call]:
        return [call for call in self._parked if call in self._pending]

    def _difference(self) -> dict[str, Any]:
        recorded = self._history.left_over({call.key for call in self._pending})
        return divergence.details(recorded, [call.view() for call in self._new_calls()])

    # --- the handler -------------------------------------------------------------------------------------------------
    def _made_handler(self) -> AsyncHandler | ThreadHandler:
        info = info_of(self._grant)
        if self._workflow.is_async:
            run = Run(info, self)
            return AsyncHandler(lambda: self._workflow.fn(run, *self._input), self._done)
        handler = ThreadHandler(lambda: self._workflow.fn(sync_run, *self._input), self._done, self.moved)
        sync_run = SyncRun(info, self, handler)
        return handler

    def _start(self) -> None:
        try:
            value = self._workflow.decode_input(self._grant.run.input)
        except PayloadError as error:
            self._end(Failed(failures.describe(error)))
            return
        self._input = (value,) if self._workflow.takes_input else ()
        self._handler.start()

    def _done(self, returned: Returned) -> None:
        if self.over:
            return
        difference = self._difference()
        if difference["recorded"] and difference["new"]:
            self._end(Diverged(difference))
            return
        if difference["recorded"]:
            _log.warning("run %s: %s", self._grant.run.id, difference["message"])
        self._end(self._result(returned))

    def _result(self, returned: Returned) -> Ended:
        if returned.error is not None:
            final = isinstance(returned.error, NonRetryableError | ConfigurationError | PayloadError)
            return Failed(failures.describe(returned.error, retryable=not final))
        try:
            return Completed(msgspec.Raw(self._workflow.encode_result(returned.value)))
        except PayloadError as error:
            return Failed(failures.describe(error))

    def _end(self, ended: Ended) -> None:
        """The first end stands, but a loss overrules it: what was decided cannot be written any more."""
        if self._ended is None or isinstance(ended, Lost):
            self._ended = ended
        self._end_known.set()

    def _final(self) -> Ended:
        assert self._ended is not None
        return self._ended

    async def _wind_down(self) -> None:
        self._watch_for_divergence()
        await self._hand_out.stop()
        for call in self._driving:
            call.drop()
        await self._handler.stop()
        drivers = [call.driver for call in self._driving if call.driver is not None]
        if drivers:
            await asyncio.wait(drivers)
