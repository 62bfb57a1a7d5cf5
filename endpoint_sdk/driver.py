"""Takes one task call from its first attempt to its outcome: bodies, records, and the waits between attempts.

Order per attempt: a slot for a thread, the boundary, the started record of an at-most-once task, the fence, the body
with nothing awaited in between, the ended record (infra/docs/protocol.md, I7 and I15). A result reaches the workflow
only when its record is acknowledged.
"""

import asyncio
import contextlib
import copy
import functools
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from endpoint_sdk import addresses, bodies, failures
from endpoint_sdk.bodies import Returned
from endpoint_sdk.cancelling import CancelCall
from endpoint_sdk.child_call import StartCall
from endpoint_sdk.child_starts import Starter
from endpoint_sdk.context import TaskContext
from endpoint_sdk.errors import PayloadError, RecordRefused
from endpoint_sdk.history import History
from endpoint_sdk.ledger import Floor, Gone, Ledger
from endpoint_sdk.pending_call import Call, Outcome
from endpoint_sdk.port import Port
from endpoint_sdk.server_clock import ServerClock
from endpoint_sdk.task_call import TaskCall
from endpoint_sdk.wait_call import WaitCall
from endpoint_sdk.waiter import Waiter
from endpoint_sdk.wire import clock, messages

_log: Final = logging.getLogger(__name__)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

Body = Callable[[TaskCall, TaskContext], Awaitable[Returned]]


class _Refused(Exception):
    """The start of an at-most-once task was refused; *outcome* is what the workflow sees."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Driver:
    """Drives every call of one run; idempotency keys of its tasks are made from *scope*."""

    def __init__(
        self,
        run_id: str,
        scope: str,
        port: Port,
        floor: Floor,
        history: History,
        time: ServerClock,
        chance: Callable[[], float],
    ) -> None:
        self._run_id = run_id
        self._scope = scope
        self._port = port
        self._floor = floor
        self._history = history
        self._now = time.now
        self._elapsed = time.elapsed
        self._chance = chance
        self._ledger = Ledger(port, floor, time.now)
        self._waiter = Waiter(self._ledger, floor, history)
        self._starter = Starter(port, self._ledger)

    async def drive(self, call: Call) -> None:
        """Returns once the outcome of *call* was handed out or is not wanted; never raises."""
        try:
            outcome = await self._outcome(call)
        except _Refused as refusal:
            self._floor.hand_out(call, refusal.outcome)
        except Gone:
            return
        except asyncio.CancelledError as cancelled:
            # A drop, or the host's end; a cancellation from nowhere, a timer the body left, must not go unheard.
            if not (call.dropped or call.answered or self._floor.over):
                self._floor.abandon(cancelled)
        except BaseException as error:
            self._floor.abandon(error)
        else:
            self._floor.hand_out(call, outcome)

    async def _outcome(self, call: Call) -> Outcome:
        if isinstance(call, TaskCall):
            return await self._task_outcome(call)
        if isinstance(call, StartCall):
            return await self._starter.outcome(call)
        if isinstance(call, CancelCall):
            return await self._cancel_outcome(call)
        assert isinstance(call, WaitCall)
        return await self._waiter.outcome(call)

    async def _cancel_outcome(self, call: CancelCall) -> Outcome:
        """Where even the place is refused, the cancel is raised all the same: the run can record nothing more."""
        record = call.record(self._now())
        try:
            await self._port.write(record)
        except RecordRefused as refusal:
            _log.warning("run %s: the place of its cancel could not be recorded: %s", self._run_id, refusal.code)
        return call.outcome(clock.known_ms(record.finished_at))

    async def _task_outcome(self, call: TaskCall) -> Outcome:
        if self._history.started(call.key):
            record = self._ledger.ended(call, 1, self._now(), error=failures.unknown(call.key))
            return self._failed(call, await self._ledger.write(call, record))
        attempt, due = self._history.next_attempt(call.key)
        first = self._history.first_start(call.key)
        while True:
            if due is not None:
                await self._wait(call, due)
            returned, started = await self._body(call, attempt)
            first = started if first is None else first
            outcome = await self._conclude(call, attempt, returned, started, first)
            if isinstance(outcome, Outcome):
                return outcome
            attempt, due = attempt + 1, outcome

    # --- one attempt -------------------------------------------------------------------------------------------------
    async def _body(self, call: TaskCall, attempt: int) -> tuple[Returned, int]:
        if call.definition.is_async:
            return await self._start(call, attempt, _in_loop)
        pool = bodies.threads()
        if pool.slots.locked():
            self._ledger.enter(call, "held")
        async with pool.slots:
            return await self._start(call, attempt, functools.partial(_in_thread, pool))

    async def _start(self, call: TaskCall, attempt: int, body: Body) -> tuple[Returned, int]:
        """What *body* gave back and when it started; waits here for good when the run is leaving this executor."""
        await self._ledger.boundary(call)
        if call.definition.at_most_once:
            await self._write_started(call, attempt)
        await self._port.fence()
        while self._floor.cancelling.holds(call) and not call.definition.at_most_once:
            # The claim was refreshed, and the answer told of a cancel.
            await self._ledger.boundary(call)
            await self._port.fence()
        self._ledger.wanted(call)
        started = self._now()
        returned = await body(call, self._context(call, attempt))
        call.stage = "busy"
        await _settle_cancellation(returned)
        self._ledger.wanted(call)
        return returned, started

    def _context(self, call: TaskCall, attempt: int) -> TaskContext:
        key, timeout = call.key, call.definition.timeout
        deadline = None if timeout is None else self._elapsed() + timeout.total_seconds()

        def left() -> timedelta | None:
            host = self._port.remaining()
            if deadline is None:
                return host
            own = timedelta(seconds=max(deadline - self._elapsed(), 0))
            return own if host is None else min(own, host)

        def cancelled() -> bool:
            late = deadline is not None and self._elapsed() >= deadline
            return late or call.dropped or self._floor.over

        task_id = f"{key.address.name}:{key.address.args_hash}:{key.ordinal}"
        dedupe = addresses.idempotency_key(self._scope, key)
        return TaskContext(self._run_id, task_id, attempt, dedupe, left, cancelled)

    # --- what an attempt leaves --------------------------------------------------------------------------------------
    async def _conclude(
        self, call: TaskCall, attempt: int, returned: Returned, started: int, first: int
    ) -> Outcome | int:
        """The outcome this attempt decides, or when the next one is due."""
        if returned.error is not None:
            return await self._concede(call, attempt, returned.error, started, first)
        try:
            return await self._complete(call, attempt, returned.value, started)
        except PayloadError as error:
            record = self._ledger.ended(call, attempt, started, error=failures.describe(error))
            return self._failed(call, await self._ledger.write(call, record), error)

    async def _complete(self, call: TaskCall, attempt: int, value: object, started: int) -> Outcome:
        what, codec = f"result of {call.definition.place}", call.definition.result
        data = codec.encode(value, what)
        seen = codec.decode(data, what)
        record = await self._ledger.write(call, self._ledger.ended(call, attempt, started, value=msgspec.Raw(data)))
        return (
            self._failed(call, record)
            if record.error is not None
            else Outcome(seen, None, clock.known_ms(record.finished_at))
        )

    async def _concede(
        self, call: TaskCall, attempt: int, error: BaseException, started: int, first: int
    ) -> Outcome | int:
        now = self._now()
        wait = call.definition.retry.delay(
            attempt,
            error,
            elapsed=max(now - first, 0) * _MILLISECOND,
            now=_EPOCH + now * _MILLISECOND,
            random=self._chance,
        )
        due = None if wait is None else now - (-wait // _MILLISECOND)
        described = failures.describe(error, retryable=due is not None)
        record = await self._ledger.write(call, self._ledger.ended(call, attempt, started, error=described, due=due))
        if due is None or record.next_attempt_at is None:
            return self._failed(call, record, error)
        return due

    def _failed(self, call: TaskCall, record: messages.RecordIn, cause: BaseException | None = None) -> Outcome:
        assert record.error is not None
        error = failures.raised(call.key, record.attempt, record.error, self._scope)
        error.__cause__ = cause
        return Outcome(None, error, clock.known_ms(record.finished_at))

    # --- writes and waits ---------------------------------------------------------------------------------------------
    async def _write_started(self, call: TaskCall, attempt: int) -> None:
        written = await self._ledger.write(call, self._ledger.started(call, attempt))
        if written.phase == "ended":
            raise _Refused(self._failed(call, written))

    async def _wait(self, call: TaskCall, due: int) -> None:
        call.due_ms = due
        while (left := due - self._now()) > 0:
            self._ledger.enter(call, "retry")
            await asyncio.sleep(left / 1000)


async def _in_loop(call: TaskCall, context: TaskContext) -> Returned:
    call.stage = "body"
    return await bodies.in_loop(_bound(call), context, call.definition.timeout)


async def _in_thread(pool: bodies.Threads, call: TaskCall, context: TaskContext) -> Returned:
    call.stage = "thread"
    return await pool.run(_bound(call), context, call.definition.timeout)


async def _settle_cancellation(returned: Returned) -> None:
    """Lets a cancellation that came while the body ran take effect here.

    It is the body's own, which ends with the body; or that of a drop or of the host, which cancels every task of the
    loop: then the engine has heard of it when this returns.
    """
    task = asyncio.current_task()
    if isinstance(returned.error, asyncio.CancelledError) or (task is not None and task.cancelling()):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


def _bound(call: TaskCall) -> Callable[[], Any]:
    """The body with arguments of its own: what it does to them is not seen by the workflow, on replay neither.

    They are copied where the body runs, so that one that refuses to be copied is a failure of the attempt.
    """

    def body() -> Any:
        args, kwargs = copy.deepcopy((call.args, call.kwargs))
        return call.definition.fn(*args, **kwargs)

    return body
