"""Writes what calls leave: one record per attempt or wait, acknowledged before anybody sees its outcome."""

import logging
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from endpoint_sdk import failures
from endpoint_sdk.cancelling import Cancelling
from endpoint_sdk.errors import RecordRefused
from endpoint_sdk.pending_call import Call, Outcome, Stage
from endpoint_sdk.port import Port
from endpoint_sdk.wire import clock, messages

_log: Final = logging.getLogger(__name__)


class Floor(Protocol):
    """What the engine decides for a driver."""

    cancelling: Cancelling

    def leaving(self) -> bool:
        """Whether no further body may start."""

    @property
    def over(self) -> bool:
        """Whether this execution has ended, so that nothing may be started or recorded."""

    async def clear(self) -> None:
        """Returns once no park is on its way: while one is, nothing may be started or recorded."""

    def moved(self) -> None:
        """Hears that a call waits now."""

    def hand_out(self, call: Call, outcome: Outcome) -> None:
        """Takes the acknowledged outcome of *call*."""

    def abandon(self, error: BaseException) -> None:
        """Hears that a write's outcome will never be known, or that the claim is lost."""


class Gone(Exception):
    """This call's outcome is not wanted any more."""


class Ledger:
    """The records of one run; *now* is the dispatcher's time in epoch milliseconds."""

    def __init__(self, port: Port, floor: Floor, now: Callable[[], int]) -> None:
        self._port = port
        self._floor = floor
        self.now: Final = now

    def ended(
        self,
        call: Call,
        attempt: int,
        started: int,
        *,
        value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET,
        error: messages.ErrorObject | None = None,
        due: int | None = None,
    ) -> messages.RecordIn:
        """The record of an attempt that ends now; *due* is when the next one may start."""
        return messages.RecordIn(
            *call.key.address,
            ordinal=call.key.ordinal,
            phase="ended",
            state="completed" if error is None else "failed",
            attempt=attempt,
            value=value,
            error=error,
            preview=call.preview,
            started_at=clock.to_wire(started),
            finished_at=clock.to_wire(self.now()),
            next_attempt_at=None if due is None else clock.to_wire(due),
        )

    def started(self, call: Call, attempt: int) -> messages.RecordIn:
        """The record of an attempt or wait that starts now; of a wait it names the deadline."""
        due = None if call.due_ms is None or call.address.kind == "task" else clock.to_wire(call.due_ms)
        ended = self.ended(call, attempt, self.now())
        return msgspec.structs.replace(ended, phase="started", state="started", finished_at=None, next_attempt_at=due)

    async def write(self, call: Call, record: messages.RecordIn) -> messages.RecordIn:
        """What stands recorded now: *record*, or the failure a definite refusal makes of it."""
        self.wanted(call)
        try:
            await self._port.write(record)
        except RecordRefused as refusal:
            return await self._write_refusal(record, refusal)
        return record

    async def note(self, call: Call, record: messages.RecordIn) -> None:
        """*record*, which the run can do without, is stored, or refused and missing."""
        self.wanted(call)
        try:
            await self._port.write(record)
        except RecordRefused as refusal:
            _log.warning("the deadline of %s %s could not be recorded: %s", record.kind, record.name, refusal.code)

    async def boundary(self, call: Call) -> None:
        """Returns when *call* may begin: not before a cancel is raised, and never when the run leaves this executor."""
        await self._floor.clear()
        self.wanted(call)
        while self._floor.leaving() or self._floor.cancelling.holds(call):
            self.enter(call, "held")
            await self._floor.cancelling.released()
            self.wanted(call)
        call.stage = "busy"

    def enter(self, call: Call, stage: Stage) -> None:
        """*call* waits now; raises Gone when nobody waits for it, who may have left while something was written."""
        self.wanted(call)
        call.stage = stage
        self._floor.moved()

    def wanted(self, call: Call) -> None:
        """Raises Gone when nobody waits for *call*, or this execution has ended."""
        if call.dropped or self._floor.over:
            raise Gone

    async def _write_refusal(self, record: messages.RecordIn, refusal: RecordRefused) -> messages.RecordIn:
        failed = msgspec.structs.replace(
            record,
            phase="ended",
            state="failed",
            value=msgspec.UNSET,
            error=failures.refused(refusal),
            finished_at=clock.to_wire(self.now()),
            next_attempt_at=None,
        )
        try:
            await self._port.write(failed)
        except RecordRefused as again:
            _log.warning("the failure of %s %s could not be recorded: %s", record.kind, record.name, again.code)
        return failed
