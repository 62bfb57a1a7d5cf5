"""The records a claim came with, by call: what replay hands out, what it goes on from."""

import functools
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from endpoint_sdk.addresses import Address, Key
from endpoint_sdk.wire import clock, limits, messages


class _Place(messages.Lenient, frozen=True):
    kind: messages.RecordKind
    phase: messages.Phase = "ended"


_place: Final = msgspec.json.Decoder(_Place)

_MANY: Final = 2_000

_log: Final = logging.getLogger(__name__)


class History:
    """Numbers the calls of this execution and knows what earlier ones left for each; *waits* are those parked for.

    At 2 000 records a warning names what to do about it, once in a process.

    Handed out are ended records without a next attempt. A started task without an end asks for its call too, or a
    changed argument would run an at-most-once task a second time; a failed attempt does not, so that a bug in a call's
    arguments can be fixed between attempts, and neither does a wait that goes on.
    """

    def __init__(
        self, records: Iterable[messages.Record], waits: Iterable[messages.WaitFor] = (), run_id: str = ""
    ) -> None:
        self._run_id = run_id
        self._numbers: Counter[Address] = Counter()
        self._outcomes: dict[Key, messages.Record] = {}
        self._attempts: dict[Key, messages.Record] = {}
        self._first_starts: dict[Key, int] = {}
        self._deadlines: dict[Key, int] = {}
        self._unconsumed: dict[Key, messages.Record] = {}
        self.cancels = 0
        self._size = 0
        self._gap: int | None = None
        started: dict[Key, messages.Record] = {}
        for record in sorted(records, key=lambda each: each.seq):
            key = self._found(record)
            self.grow()
            if self._gap is None and record.seq > self._size:
                self._gap = self._size
            self.cancels += record.kind == "cancel"
            if record.phase == "ended" or record.kind in messages.OF_CHILDREN:
                self._take(key, record)
            elif record.kind == "task":
                started[key] = record
            elif record.next_attempt_at is not None:
                self._deadlines[key] = clock.from_wire(record.next_attempt_at)
            if record.started_at is not None:
                self._first_starts.setdefault(key, clock.from_wire(record.started_at))
        for wait in waits:
            if wait.deadline is not None:
                self._deadlines[_waiting(wait)] = clock.from_wire(wait.deadline)
        self._started = {key: record for key, record in started.items() if key not in self._outcomes}
        self._unmet = set(self._started)

    def _take(self, key: Key, record: messages.Record) -> None:
        if record.next_attempt_at is not None:
            self._attempts[key] = record
        elif key not in self._outcomes:
            self._outcomes[key] = self._unconsumed[key] = record

    @property
    def unconsumed(self) -> bool:
        """Whether an outcome was not handed out yet, or a started task not called again."""
        return bool(self._unconsumed or self._unmet)

    def forgive(self) -> bool:
        """Waits no longer for calls of what is unconsumed, if something was forgotten before it; whether that is so.

        A retry of the run forgets failures and keeps what succeeded after them: its code calls the failed first. What
        is recorded stays, for calls that are made later. A started task that was not called again is not forgiven.
        """
        first = min((record.seq for record in self._unconsumed.values()), default=0)
        if self._unmet or self._gap is None or self._gap > first:
            return False
        self._unconsumed.clear()
        return True

    def grow(self) -> None:
        """Notes that there is one record more."""
        self._size += 1
        if self._size == _MANY:
            _warn_of_length(self._run_id)

    def add(self, record: messages.Record) -> Key:
        """The call *record* belongs to, which the dispatcher wrote while this execution went on."""
        key = key_of(record)
        self.grow()
        if record.phase == "ended":
            self._take(key, record)
        return key

    def _found(self, record: messages.Record) -> Key:
        """The call *record* belongs to; a child that ended without having started is a start that was refused."""
        key = key_of(record)
        refused = record.kind in messages.OF_CHILDREN and record.phase == "ended" and key.start not in self._outcomes
        return key.start if refused else key

    def called(self, key: Key) -> bool:
        """Whether the workflow made the call *key* in this execution."""
        return key.ordinal < self._numbers[key.address]

    def number(self, address: Address) -> Key:
        """The next call at *address*."""
        key = Key(address, self._numbers[address])
        self._numbers[address] += 1
        return key

    def meet(self, key: Key) -> messages.Record | None:
        """Notes that *key* was called; its outcome, if one is recorded."""
        self._unmet.discard(key)
        return self._outcomes.get(key)

    def consume(self, key: Key) -> None:
        """Notes that the outcome of *key* was handed out, or that nobody waits for it."""
        self._unconsumed.pop(key, None)

    def started(self, key: Key) -> bool:
        """Whether an earlier claim started *key* at most once and left no outcome."""
        return key in self._started

    def next_attempt(self, key: Key) -> tuple[int, int | None]:
        """The attempt to make now, from 1, and the earliest moment for it in epoch milliseconds.

        A deadline of a parked retry overrules that of the record, which an operator may have cut short; one from
        before the last attempt is no longer about it.
        """
        last = self._attempts.get(key)
        if last is None or last.next_attempt_at is None:
            return 1, None
        parked = self._deadlines.get(key)
        if parked is None or parked <= clock.known_ms(last.finished_at):
            return last.attempt + 1, clock.from_wire(last.next_attempt_at)
        return last.attempt + 1, parked

    def deadline(self, key: Key) -> int | None:
        """When the wait *key*, which was asked for before, is over by itself; None where nobody wrote it down."""
        return self._deadlines.get(key)

    def first_start(self, key: Key) -> int | None:
        """When the first recorded attempt of *key* started, in epoch milliseconds."""
        return self._first_starts.get(key)

    def left_over(self, called: set[Key]) -> list[dict[str, Any]]:
        """Recorded calls the workflow did not make: those unconsumed, and not among the pending *called*."""
        waiting = [record for key, record in self._unconsumed.items() if key not in called]
        waiting += [self._started[key] for key in self._unmet]
        return [_view(record) for record in sorted(waiting, key=lambda each: each.seq)]


@functools.lru_cache(maxsize=1_000)
def _warn_of_length(run_id: str) -> None:
    _log.warning(
        "run %s has %d records, which every claim of it reads, and it can hold %d: go on with run.restart(input)",
        run_id,
        _MANY,
        limits.MAX_RECORDS,
    )


def key_of(record: messages.Record) -> Key:
    """The call *record* belongs to; the start of a child and its end are two."""
    if record.kind == "cancel":
        place = _place_of(record)
        return place_of_cancel(Key(Address(place.kind, record.name, record.args_hash), record.ordinal, place.phase))
    phase = record.phase if record.kind in messages.OF_CHILDREN else "ended"
    return Key(Address(record.kind, record.name, record.args_hash), record.ordinal, phase)


def _place_of(record: messages.Record) -> _Place:
    try:
        return _place.decode(b"" if not record.value else record.value)
    except msgspec.DecodeError:
        return _Place("cancel")  # no call is there: the run diverges, and says so


def place_of_cancel(key: Key) -> Key:
    """The record of a cancel that is raised at *key*, as a call of its own."""
    kind, name, args_hash = key.address
    return key._replace(address=Address("cancel", f"{kind}:{name}", args_hash))


def _waiting(wait: messages.WaitFor) -> Key:
    kind = "task" if wait.kind == "retry" else wait.kind
    return Key(Address(kind, wait.name, wait.args_hash), wait.ordinal)


def _view(record: messages.Record) -> dict[str, Any]:
    return {
        "kind": record.kind,
        "name": record.name,
        "ordinal": record.ordinal,
        "preview": record.preview,
        "seq": record.seq,
    }
