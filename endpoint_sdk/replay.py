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
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any, Final

import msgspec

from endpoint_sdk import addresses, divergence, failures, handler, standstill
from endpoint_sdk.aside import Aside
from endpoint_sdk.async_handler import AsyncHandler
from endpoint_sdk.bodies import Returned
from endpoint_sdk.cancelling import Cancelling
from endpoint_sdk.decided import End
from endpoint_sdk.driver import Driver
from endpoint_sdk.errors import PayloadError, RecordRefused
from endpoint_sdk.handler import Handler
from endpoint_sdk.handout import HandOut
from endpoint_sdk.history import History
from endpoint_sdk.parking import Parking
from endpoint_sdk.pending_call import Call, Outcome
from endpoint_sdk.port import (
    Completed,
    Decided,
    Diverged,
    Ended,
    Failed,
    Lost,
    Parked,
    Port,
    Restarted,
    Suspended,
)
from endpoint_sdk.reading import Reader
from endpoint_sdk.task_call import Functions
from endpoint_sdk.thread_handler import ThreadHandler
from endpoint_sdk.timing import REAL, Timing
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import Workflow

# The seam an execution works with.
__all__ = ["Completed", "Diverged", "Ended", "Engine", "Failed", "Lost", "Parked", "Port", "RecordRefused", "Suspended"]

_log: Final = logging.getLogger(__name__)
IDLE_SECONDS: Final = 10.0


class Engine:
    """One execution of *workflow* under *grant*, whose records are complete; *port* is its claim.

    All methods are for the running loop's thread. *idle_seconds* is how long a replay that waits for nothing but
    unknown calls is given before it counts as diverged.
    """

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        grant: messages.Grant,
        port: Port,
        *,
        idle_seconds: float = IDLE_SECONDS,
        timing: Timing = REAL,
    ) -> None:
        self.note: str | None = None
        self._end = End()
        self._workflow = workflow
        self._grant = grant
        self._port = port
        self._history = History(grant.records, grant.waits, grant.run.id)
        self._chance = timing.chance
        self._clock = timing.clock(grant.server_time)
        self._longest_wait = timing.longest_wait
        scope = addresses.scope(grant.run.id, grant.run.generation)
        self._driver = Driver(grant.run.id, scope, port, self, self._history, self._clock, timing.chance)
        self._reader = Reader(
            port,
            self._history,
            scope,
            diverged=lambda details: self._end.decide(Diverged(details)),
            abandon=self.abandon,
        )
        self._hand_out = HandOut(self._give_recorded, self._give, self._settled, self._reader.fetch, self.abandon)
        self._parking = Parking(
            port, parked=self._parked, refused=self.hear, failed=self._park_failed, again=self._hand_out.wake
        )
        self._functions = Functions()
        self._pending: dict[Call, None] = {}
        self._aside = Aside(self._pending, self._history)
        self._driving: set[Call] = set()
        self._leaving = False
        self.cancelling = Cancelling(
            self._pending, self._history, drive=self._drive, expect=self._hand_out.recorded, asked=self._asked
        )
        if grant.stop == "cancel":
            self.cancelling.ask(grant.stop_reason)
        self._watch = divergence.Watch(idle_seconds, self._diverge)

    # --- for the execution -------------------------------------------------------------------------------------------
    async def run(self) -> Ended:
        """Runs the handler to an end, a park or a suspension; never raises for user errors.

        When it returns, no task body runs: `async def` bodies were cancelled and awaited, threads awaited.
        """
        if self.over:
            return self._end.final
        try:
            self._handler: Handler = handler.make(self._workflow, self._grant, self, self._done)
        except PayloadError as error:
            self._end.decide(Failed(failures.describe(error)))
            return self._end.final
        try:
            self._handler.start()
            await self._end.known.wait()
        except asyncio.CancelledError:
            self._end.decide(Lost())
            raise
        finally:
            await self._wind_down()
        return self._end.final

    def lose(self) -> None:
        """The claim is lost: cancels the handler at its next await or task boundary, and `run` returns Lost."""
        self._end.decide(Lost())

    def leave(self) -> None:
        """No further task starts here; `run` returns once every branch waits, or when the handler ends."""
        self._leaving = True
        if self._pending and not self.over:
            self._hand_out.wake()

    def cancel(self, reason: str | None = None) -> None:
        """The run is to be cancelled, for *reason* where that is known: see `endpoint_sdk.cancelling`."""
        self.cancelling.ask(reason)
        if self._pending and not self.over:
            self._hand_out.wake()

    def leave_now(self) -> None:
        """The run ends here as suspended: `async def` bodies are cancelled, and `run` returns once no thread's runs."""
        self._end.decide(Suspended())

    def hear(self, signals: Sequence[messages.Record]) -> None:
        """The dispatcher recorded *signals*, in their order, while the run went on: handed out as on a replay."""
        if not self.over:
            self._reader.hear(signals, self._pending, self._hand_out.recorded)

    def _asked(self, calls: Collection[Call]) -> Collection[Call]:
        return self._handler.asked(calls)

    @property
    def body_running(self) -> bool:
        """Whether the body of a task runs now."""
        return any(call.stage in ("body", "thread") for call in self._driving)

    @property
    def step(self) -> str | None:
        """The name of a task whose body runs now, if any does; may be read from any thread."""
        return next((call.address.name for call in list(self._driving) if call.stage in ("body", "thread")), None)

    @property
    def computing(self) -> bool:
        """Whether the handler's own thread runs: it is neither blocked in a call nor at its end."""
        handler: Handler | None = getattr(self, "_handler", None)
        return isinstance(handler, ThreadHandler) and handler.computing

    # --- for the run -------------------------------------------------------------------------------------------------
    @property
    def replaying(self) -> bool:
        """Whether recorded outcomes are still to be handed out."""
        return self._history.unconsumed

    @property
    def suspending(self) -> bool:
        """Whether the handler is being unwound without having ended the run."""
        return self.over and not self._end.by_the_handler

    def encode_input(self, value: object) -> bytes:
        """JSON of an input of this run's workflow; raises as Workflow.encode_input."""
        return self._workflow.encode_input(value)

    def restart(self, data: bytes) -> None:
        """This execution ends, and the run begins anew with the input *data*; the handler is not heard any more."""
        if not self.over:
            self._decide(Restarted(msgspec.Raw(data)))

    async def call(self, call: Call) -> Outcome:
        """The outcome of a call made by an `async def` handler."""
        assert isinstance(self._handler, AsyncHandler)
        self._handler.enter(call)
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
            call.waiter = future
            call.deliver = lambda outcome: thread.deliver(future, outcome)
            self._admit(call)

        return start

    # --- for drivers -------------------------------------------------------------------------------------------------
    @property
    def over(self) -> bool:
        """Whether this execution has ended."""
        return self._end.known.is_set()

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
        self._history.grow()
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
        self._end.decide(Lost())

    # --- calls -------------------------------------------------------------------------------------------------------
    def _admit(self, call: Call) -> None:
        if self.over:
            return
        aside = self._history.unconsumed or self._parking.under_way or self.cancelling.due
        call.key = call.keyed(self._history.number)
        self._pending[call] = None
        self.cancelling.met(call)
        record = self._history.meet(call.key)
        if record is not None:
            self._hand_out.recorded(record.seq, call)
        elif aside:
            self._aside.add(call)
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
        resting = all(other.rests or self.cancelling.holds(other) for other in self._pending)
        if self._pending and not self.over and (self._leaving or resting):
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
        outcome = None if self.over else self._reader.outcome(call)
        if outcome is not None:
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
        if not self._history.unconsumed:
            self.cancelling.begin()
            for call in self._aside.take(self.cancelling.sets_aside):
                self._drive(call)
        self._judge()
        self._watch.set(not self.over and bool(self._aside) and self._history.unconsumed)

    # --- waiting -----------------------------------------------------------------------------------------------------
    def _judge(self) -> None:
        """Parks or suspends the run if nothing is under way and nothing will be soon."""
        under_way = any(call.stage in ("busy", "body", "thread") for call in self._driving)
        if not self._pending or under_way or self.cancelling.due or not self._handler.waits:
            return
        if self.cancelling.release():
            self._hand_out.wake()
            return
        resting = [call for call in self._pending if not self.cancelling.holds(call)]
        verdict = standstill.judge(
            resting,
            leaving=self.leaving(),
            left=self._port.remaining(),
            now=self._clock.now(),
            longest=self._longest_wait,
        )
        if verdict == "release":
            self._end.decide(Suspended())
        elif verdict == "park":
            waits = list(dict.fromkeys(call.wait() for call in resting))
            self._parking.park(waits, told=self.cancelling.raised)

    def _parked(self) -> None:
        self._end.decide(Parked())

    def _park_failed(self, error: BaseException) -> None:
        if isinstance(error, RecordRefused):
            self._end.decide(Failed(failures.refused(error)))
        elif not self.over:
            self.abandon(error)

    # --- divergence --------------------------------------------------------------------------------------------------
    def _diverge(self) -> None:
        if self.over or not self._aside or not self._history.unconsumed:
            return
        if self._hand_out.active or self._driving or not self._handler.waits:
            self._watch.set(True)
        elif self._history.forgive():
            self._hand_out.wake()
        else:
            self._end.decide(Diverged(self._aside.difference()))

    # --- the end ------------------------------------------------------------------------------------------------------
    def _done(self, returned: Returned) -> None:
        if not self.over:
            now, cancel = self._clock.now(), self.cancelling
            self._decide(
                handler.result(self._workflow, returned, handler.Try(self._grant.run, now, self._chance, cancel))
            )

    def _decide(self, decided: Decided) -> None:
        difference = self._aside.difference()
        if difference["recorded"] and difference["new"] and not self._history.forgive():
            self._end.decide(Diverged(difference))
            return
        if difference["recorded"]:
            _log.warning("run %s: %s", self._grant.run.id, difference["message"])
        self._end.decide(decided)

    async def _wind_down(self) -> None:
        self._watch.set(False)
        await self._parking.stop(at_once=isinstance(self._end.final, Lost))
        await self._hand_out.stop()
        for call in self._driving:
            call.drop()
        await self._handler.stop()
        drivers = [call.driver for call in self._driving if call.driver is not None]
        if drivers:
            await asyncio.wait(drivers)
