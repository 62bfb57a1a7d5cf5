"""What one run waits for and what was sent to it, by the dispatcher's rules (infra/docs/protocol.md, I9)."""

from collections.abc import Iterable, Sequence

import msgspec

from endpoint_sdk.wire import clock, messages
from tests.unit.sdk.nursery import Nursery

Address = tuple[str, str, str, int]


class WaitingRoom:
    """*records* is the run's history, which this appends outcomes to; `now_ms` is the dispatcher's time."""

    def __init__(self, records: list[messages.RecordIn], now_ms: int, nursery: Nursery | None = None) -> None:
        self.records = records
        self.nursery = nursery or Nursery(records)
        self.now_ms = now_ms
        self.signal_seq = 0
        self.parked = False
        self.armed: dict[Address, messages.WaitFor] = {}
        self._mail: list[tuple[str, msgspec.Raw, int]] = []
        self.written: list[int] = []

    # --- from outside ------------------------------------------------------------------------------------------------
    def send(self, name: str, value: object) -> None:
        """An event arrives; a run that is parked for it is awake then."""
        self._mail.append((name, msgspec.Raw(msgspec.json.encode(value)), self.now_ms))
        self.signal_seq += 1
        self._wake()

    def advance(self) -> None:
        """Time goes on to the earliest deadline of what is armed."""
        deadlines = [clock.from_wire(wait.deadline) for wait in self.armed.values() if wait.deadline is not None]
        self.now_ms = max(self.now_ms, min(deadlines, default=self.now_ms))
        self._wake()

    def wake(self) -> None:
        """An operator ends every wait."""
        self._settle(self.armed.values(), woken=True)
        self.parked = False

    def cancel(self) -> None:
        """The run is to be cancelled: parked, it goes on with the outcomes it has."""
        self._settle(list(self.armed.values()))
        self.parked = False

    def child_ended(self) -> None:
        """A child of the run has ended; a run that is parked for it is awake then."""
        self.signal_seq += 1
        self._wake()

    # --- from the executor -------------------------------------------------------------------------------------------
    def park(self, waits: Sequence[messages.WaitFor], signal_seq: int, *, refused: bool = False) -> bool:
        """Whether the run is parked now; a refusal records the outcome of every wait that has an answer.

        *refused* says that a cancel stands that the executor has not told its workflow of.
        """
        wanted = [self.armed.get(_address(wait), wait) if wait.kind != "retry" else wait for wait in waits]
        before = len(self.records)
        self._settle(wanted)
        recorded = {_address(record) for record in self.records if record.phase == "ended"}
        has_outcome = any(_address(wait) in recorded for wait in wanted if wait.kind != "retry")
        if refused or signal_seq != self.signal_seq or len(self.records) > before or has_outcome:
            return False
        self.armed = {_address(wait): wait for wait in wanted}
        self.parked = True
        return True

    def lacking(self, after: int, before: int | None = None) -> list[messages.Record]:
        """The outcomes numbered over *after* and, where that is given, under *before*."""
        return [
            numbered(seq, self.records[seq - 1])
            for seq in self.written
            if seq > after and (before is None or seq < before)
        ]

    # --- the rules ---------------------------------------------------------------------------------------------------
    def _wake(self) -> None:
        if not self.parked:
            return
        before, rows = len(self.records), len(self.armed)
        self._settle(list(self.armed.values()))
        self.parked = len(self.records) == before and len(self.armed) == rows

    def _settle(self, waits: Iterable[messages.WaitFor], *, woken: bool = False) -> None:
        recorded = {_address(record) for record in self.records if record.phase == "ended"}
        for wait in sorted(waits, key=lambda each: (each.kind, each.name, each.ordinal)):
            if wait.kind == "retry":
                self._settle_retry(wait, woken)
            elif _address(wait) not in recorded and (outcome := self._outcome(wait, woken)) is not None:
                self.records.append(outcome)
                self.written.append(len(self.records))
                self.armed.pop(_address(wait), None)

    def _settle_retry(self, wait: messages.WaitFor, woken: bool) -> None:
        if self._is_over(wait):
            self.armed.pop(_address(wait), None)
        elif woken:
            self.armed[_address(wait)] = msgspec.structs.replace(wait, deadline=clock.to_wire(self.now_ms))

    def _outcome(self, wait: messages.WaitFor, woken: bool) -> messages.RecordIn | None:
        if wait.kind in ("child", "children"):
            return self.nursery.outcome(wait, self.now_ms)
        over = self._is_over(wait)
        if wait.kind == "sleep":
            if not (over or woken):
                return None
            return self._record(wait, msgspec.Raw(b"null" if over else b'"woken"'))
        for index, (name, value, at) in enumerate(self._mail):
            if name == wait.name and (wait.deadline is None or at <= clock.from_wire(wait.deadline)):
                del self._mail[index]
                return self._record(wait, value)
        return self._record(wait, None) if over or woken else None

    def _record(self, wait: messages.WaitFor, value: msgspec.Raw | None) -> messages.RecordIn:
        return messages.RecordIn(
            wait.kind,  # type: ignore[arg-type]
            wait.name,
            wait.args_hash,
            wait.ordinal,
            "ended",
            "failed" if value is None else "completed",
            1,
            msgspec.UNSET if value is None else value,
            messages.ErrorObject("WaitTimeout", "none came", retryable=False) if value is None else None,
            finished_at=clock.to_wire(self.now_ms),
        )

    def _is_over(self, wait: messages.WaitFor) -> bool:
        return wait.deadline is not None and clock.from_wire(wait.deadline) <= self.now_ms


def numbered(seq: int, record: messages.RecordIn) -> messages.Record:
    """*record* as the dispatcher numbers it."""
    return messages.Record(seq=seq, **{name: getattr(record, name) for name in record.__struct_fields__})


def _address(item: messages.WaitFor | messages.RecordIn) -> Address:
    return item.kind, item.name, item.args_hash, item.ordinal
