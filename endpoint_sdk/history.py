"""The records a claim came with, by call: what replay hands out, what it goes on from."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from endpoint_sdk.addresses import Address, Key
from endpoint_sdk.wire import clock, messages


class History:
    """Numbers the calls of this execution and knows what earlier ones left for each.

    Handed out are ended records without a next attempt. A started record without an end asks for its call too, or a
    changed argument would run an at-most-once task a second time; a failed attempt does not, so that a bug in a call's
    arguments can be fixed between attempts.
    """

    def __init__(self, records: Iterable[messages.Record]) -> None:
        self._numbers: Counter[Address] = Counter()
        self._outcomes: dict[Key, messages.Record] = {}
        self._attempts: dict[Key, messages.Record] = {}
        self._first_starts: dict[Key, int] = {}
        started: dict[Key, messages.Record] = {}
        for record in sorted(records, key=lambda each: each.seq):
            key = Key(Address(record.kind, record.name, record.args_hash), record.ordinal)
            if record.phase == "started":
                started[key] = record
            elif record.next_attempt_at is None:
                self._outcomes.setdefault(key, record)
            else:
                self._attempts[key] = record
            if record.started_at is not None:
                self._first_starts.setdefault(key, clock.from_wire(record.started_at))
        self._started = {key: record for key, record in started.items() if key not in self._outcomes}
        self._unmet = set(self._started)
        self._unconsumed = dict(self._outcomes)

    @property
    def unconsumed(self) -> bool:
        """Whether an outcome was not handed out yet, or a started task not called again."""
        return bool(self._unconsumed or self._unmet)

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
        """The attempt to make now, from 1, and the earliest moment for it in epoch milliseconds."""
        last = self._attempts.get(key)
        if last is None or last.next_attempt_at is None:
            return 1, None
        return last.attempt + 1, clock.from_wire(last.next_attempt_at)

    def first_start(self, key: Key) -> int | None:
        """When the first recorded attempt of *key* started, in epoch milliseconds."""
        return self._first_starts.get(key)

    def left_over(self, called: set[Key]) -> list[dict[str, Any]]:
        """Recorded calls the workflow did not make: those unconsumed, and not among the pending *called*."""
        waiting = [record for key, record in self._unconsumed.items() if key not in called]
        waiting += [self._started[key] for key in self._unmet]
        return [_view(record) for record in sorted(waiting, key=lambda each: each.seq)]


def _view(record: messages.Record) -> dict[str, Any]:
    return {
        "kind": record.kind,
        "name": record.name,
        "ordinal": record.ordinal,
        "preview": record.preview,
        "seq": record.seq,
    }
