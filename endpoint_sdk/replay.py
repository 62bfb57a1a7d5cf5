"""Runs one claim of a run: replays what is recorded, goes on from there, and ends, parks or suspends.

    handler ── call ──> Engine ── no record ──> Driver: body or wait, record ──┐
       ^                  └── recorded ──┐                                     │ acknowledged
       └────────── outcome, one at a time, in the order of `seq` ── HandOut

A call without a record while records are unconsumed is set aside until they are. The run diverges only when all that
is left is unconsumed records nobody asks for and calls set aside. Waits park on futures; on a park, a suspension or a
loss the handler is cancelled, and whatever it does afterwards is not heard.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from endpoint_sdk import divergence, failures, fan_out, handler, standstill
from endpoint_sdk.async_handler import AsyncHandler
from endpoint_sdk.bodies import Returned
from endpoint_sdk.driver import Driver
from endpoint_sdk.errors import PayloadError, RecordRefused
from endpoint_sdk.handler import Handler
from endpoint_sdk.handout import HandOut
from endpoint_sdk.history import History
from endpoint_sdk.parking import Parking
from endpoint_sdk.pending_call import Call, Outcome
from endpoint_sdk.port import Completed, Diverged, Ended, Failed, Lost, Parked, Port, Suspended
from endpoint_sdk.server_clock import ServerClock
from endpoint_sdk.task_call import Functions
from endpoint_sdk.thread_handler import ThreadHandler
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import Workflow

# The seam an execution works with.
__all__ = ["Completed", "Diverged", "Ended", "Engine", "Failed", "Lost", "Parked", "Port", "RecordRefused", "Suspended"]

_log: Final = logging.getLogger(__name__)
IDLE_SECONDS: Final = 10.0

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
        self._history = History(grant.records, grant.waits)
        self._clock = ServerClock(grant.server_time)
        self._driver = Driver(grant.run.id, port, self, self._history, self._clock)
        self._hand_out = HandOut(self._give_recorded, self._give, self._settled)
        self._parking = Parking(
            port, parked=self._parked, refused=self.hear, failed=self._park_failed, again=self._hand_out.wake
        )
        self._functions = Functions()
        self._pending: dict[Call, None] = {}
        self._aside: list[Call] = []
        self._driving: set[Call] = set()
        self._leaving = False
        self._watch = divergence.Watch(idle_seconds, self._diverge)
        self._ended: Ended | None = None
        self._end_known = asyncio.Event()

    # --- for the execution -------------------------------------------------------------------------------------------
    async def run(self) -> Ended:
        """Runs the handler to an end, a park or a suspension; never raises for user errors.

        When it returns, no task body runs: `async def` bodies were cancelled and awaited, threads awaited.
        """
        if self.over:
            return self._final()
        try:
            self._handler: Handler = handler.make(self._workflow, self._grant, self, self._done)
        except PayloadError as error:
            self._end(Failed(failures.describe(error)))
            return self._final()
        try:
            self._handler.start()
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
        """No further task starts here; `run` returns once every branch waits, or when the handler ends."""
        self._leaving = True
        if self._pending and not self.over:
            self._hand_out.wake()

    def leave_now(self) -> None:
        """The run ends here as suspended: `async def` bodies are cancelled, and `run` returns once no thread's runs."""
        self._end(Suspended())

    def hear(self, signals: Sequence[messages.Record]) -> None:
        """The dispatcher recorded *signals*, in their order, while the run went on: handed out as on a replay."""
        if self.over:
            return
        pending = {call.key: call for call in self._pending}
        for record in signals:
            key = self._history.add(record)
            call = pending.get(key)
            if call is not None:
                call.answer()
                self._hand_out.recorded(record.seq, call)
            elif self._history.called(key):
                self._history.consume(key)

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

    async def call(self, call: Call) -> Outcome:
        """The outcome of a call made by an `async def` handler."""
        assert isinstance(self._handler, AsyncHandler)
        self._handler.enter()
        if self.over:
            await self._handler.late_call()
        self._functions.check(call)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        call.deliver = lambda outcome: None if future.done() else future.set_result(outcome)
        self._admit(call)
        try:
            return await future
        except asyncio.CancelledError:
            self._drop(call)
            raise

    def starter(self, call: Call) -> Callable[["Future[Outcome]"], None]:
        """Makes the call of a `def` handler when called, in the loop; itself for the handler's thread."""
        self._functions.check(call)

        def start(future: "Future[Outcome]") -> None:
            assert isinstance(self._handler, ThreadHandler)
            thread = self._handler
            call.deliver = lambda outcome: thread.deliver(future, outcome)
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

    async def clear(self) -> None:
        """Returns once no park is under way."""
        await self._parking.clear()

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
    def _admit(self, call: Call) -> None:
        if self.over:
            return
        aside = self._history.unconsumed or self._parking.under_way
        call.key = self._history.number(call.address)
        self._pending[call] = None
        record = self._history.meet(call.key)
        if record is not None:
            self._hand_out.recorded(record.seq, call)
        elif aside:
            self._aside.append(call)
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
        if self._pending and not self.over and (self._leaving or all(other.rests for other in self._pending)):
            self._hand_out.wake()

    def _drop(self, call: Call) -> None:
        """The workflow's code gave up waiting for *call*; a record of it is used up all the same."""
        call.drop()
        self._pending.pop(call, None)
        self._history.consume(call.key)
        if self._aside and not self.over:
            self._hand_out.wake()

    # --- outcomes ----------------------------------------------------------------------------------------------------
    def _give_recorded(self, call: Call) -> None:
        record = self._history.meet(call.key)
        if record is None or call.dropped or self.over:
            return
        try:
            outcome = call.read(record, self._grant.run.id)
        except PayloadError as error:
            self._end(Diverged(divergence.unreadable(call.view(), error)))
            return
        self._history.consume(call.key)
        self._give(call, outcome)

    def _give(self, call: Call, outcome: Outcome) -> None:
        if call in self._pending and not self.over:
            del self._pending[call]
            call.deliver(outcome)

    def _settled(self) -> None:
        """The workflow's code has done what it can for now."""
        if self.over or self._parking.under_way:
            return
        if self._aside and not self._history.unconsumed:
            aside, self._aside = self._aside, []
            for call in aside:
                if call in self._pending:
                    self._drive(call)
        self._judge()
        self._watch.set(not self.over and bool(self._new_calls()) and self._history.unconsumed)

    # --- waiting -----------------------------------------------------------------------------------------------------
    def _judge(self) -> None:
        """Parks or suspends the run if nothing is under way and nothing will be soon."""
        under_way = any(call.stage in ("busy", "body", "thread") for call in self._driving)
        if not self._pending or under_way or not self._handler.waits:
            return
        verdict = standstill.judge(
            self._pending, leaving=self.leaving(), left=self._port.remaining(), now=self._clock.now()
        )
        if verdict == "release":
            self._end(Suspended())
        elif verdict == "park":
            self._parking.park([call.wait() for call in self._pending])

    def _parked(self) -> None:
        self._end(Parked())

    def _park_failed(self, error: BaseException) -> None:
        if isinstance(error, RecordRefused):
            self._end(Failed(failures.refused(error)))
        elif not self.over:
            self.abandon(error)

    # --- divergence --------------------------------------------------------------------------------------------------
    def _diverge(self) -> None:
        if self.over or not self._new_calls() or not self._history.unconsumed:
            return
        if self._hand_out.active or self._driving or not self._handler.waits:
            self._watch.set(True)
        else:
            self._end(Diverged(self._difference()))

    def _new_calls(self) -> list[Call]:
        return [call for call in self._aside if call in self._pending]

    def _difference(self) -> dict[str, Any]:
        recorded = self._history.left_over({call.key for call in self._pending})
        return divergence.details(recorded, [call.view() for call in self._new_calls()])

    # --- the end ------------------------------------------------------------------------------------------------------
    def _done(self, returned: Returned) -> None:
        if self.over:
            return
        difference = self._difference()
        if difference["recorded"] and difference["new"]:
            self._end(Diverged(difference))
            return
        if difference["recorded"]:
            _log.warning("run %s: %s", self._grant.run.id, difference["message"])
        self._end(handler.result(self._workflow, returned))

    def _end(self, ended: Ended) -> None:
        """The first end stands, but a park or a loss overrules it: what was decided cannot be written any more."""
        if self._ended is None or (isinstance(ended, Parked | Lost) and not isinstance(self._ended, Parked)):
            self._ended = ended
        self._end_known.set()

    def _final(self) -> Ended:
        assert self._ended is not None
        return self._ended

    async def _wind_down(self) -> None:
        self._watch.set(False)
        await self._parking.stop(at_once=isinstance(self._ended, Lost))
        await self._hand_out.stop()
        for call in self._driving:
            call.drop()
        await self._handler.stop()
        drivers = [call.driver for call in self._driving if call.driver is not None]
        if drivers:
            await asyncio.wait(drivers)
