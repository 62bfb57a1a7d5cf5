"""Where a graceful cancel reaches the workflow's code: at one call, and at the same one on every replay.

    asked ── nothing is left to hand out, and a call has not begun ──> its place is recorded ──> raised there
      ^                                                                        │
      └──────────────── the call was answered or given up before ──────────────┘

The record takes its turn in `seq` like any other. Tasks and starts that were asked for before the cancel was raised and
have not begun are held: they begin only when the workflow waits for nothing else.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Literal

import msgspec

from endpoint_sdk.addresses import Address, Key
from endpoint_sdk.errors import CancelRequested
from endpoint_sdk.history import History, place_of_cancel
from endpoint_sdk.pending_call import Call, Outcome
from endpoint_sdk.wait_call import WaitCall
from endpoint_sdk.wire import clock, messages

State = Literal["none", "asked", "recording", "raised"]


class CancelCall(Call):
    """Records that the cancel is raised at *place*, the *number*-th such record of the run; *reason* is its reason."""

    def __init__(self, place: Call, number: int, reason: Callable[[], str]) -> None:
        super().__init__(Address("cancel", place.address.name, place.address.args_hash), place.preview)
        self.key = place_of_cancel(place.key)
        self.place: Final = place.key
        self._number = number
        self._reason = reason

    def record(self, now: int) -> messages.RecordIn:
        """The place, raised at *now*."""
        moment = clock.to_wire(now)
        return messages.RecordIn(
            *self.address,
            ordinal=self.place.ordinal,
            phase="ended",
            state="completed",
            attempt=self._number,
            value=msgspec.Raw(msgspec.json.encode({"kind": self.place.address.kind, "phase": self.place.phase})),
            preview=self.preview,
            started_at=moment,
            finished_at=moment,
        )

    def read(self, record: messages.Record, run_id: str) -> Outcome:
        """CancelRequested."""
        del run_id
        return self.outcome(clock.known_ms(record.finished_at))

    def outcome(self, finished_ms: int) -> Outcome:
        """CancelRequested, as of that moment."""
        return Outcome(None, CancelRequested(self._reason()), finished_ms)

    def wait(self) -> messages.WaitFor:
        """It waits for nothing."""
        raise NotImplementedError


class Cancelling:
    """The cancel of one execution: *pending* are the calls without an outcome, in the order they were made.

    *drive* takes a call to its outcome, *expect* hands the record of that number to a call when its turn comes, and
    *asked* picks those that the workflow's code is seen to wait for.
    """

    def __init__(
        self,
        pending: dict[Call, None],
        history: History,
        *,
        drive: Callable[[Call], None],
        expect: Callable[[int, Call], None],
        asked: Callable[[Collection[Call]], Collection[Call]],
    ) -> None:
        self._pending = pending
        self._history = history
        self._drive = drive
        self._expect = expect
        self._asked = asked
        self._state: State = "none"
        self._reason = ""
        self._written = 0
        self._expected: set[Key] = set()
        self._held: set[Call] = set()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def asked(self) -> bool:
        """Whether the run is to be cancelled, raised or not."""
        return self._state != "none"

    @property
    def due(self) -> bool:
        """Whether it is still to be raised: until then nothing begins."""
        return self._state in ("asked", "recording")

    @property
    def raised(self) -> bool:
        """Whether the workflow's code was told."""
        return self._state == "raised"

    def ask(self, reason: str | None) -> None:
        """The run is to be cancelled, for *reason* where that is known by now."""
        self._reason = reason or self._reason
        if self._state == "none":
            self._state = "asked"

    def met(self, call: Call) -> None:
        """*call* was made: if the records say that the cancel was raised there, it is, in its turn."""
        record = self._history.meet(place_of_cancel(call.key))
        if record is not None and call.key not in self._expected:
            self._expected.add(call.key)
            self._expect(record.seq, self._stop(call, record.attempt))

    def begin(self) -> None:
        """Nothing is left to hand out: records the place, if there is one."""
        if self._state != "asked":
            return
        place = next((call for call in self._asked(self._pending) if self._unbegun(call)), None)
        if place is not None:
            self._state = "recording"
            self._written += 1
            self._drive(self._stop(place, self._history.cancels + self._written))

    def holds(self, call: Call) -> bool:
        """Whether *call* may not begin: the cancel comes first, or came first."""
        forward = self.due and not isinstance(call, WaitCall | CancelCall)
        return (forward and not self._history.started(call.key)) or call in self._held

    def sets_aside(self, call: Call) -> bool:
        """Whether nothing at all may be done for *call* yet; a task started at most once only has its end recorded."""
        return (self.due and not self._history.started(call.key)) or call in self._held

    async def released(self) -> None:
        """Returns when calls held may look again; maybe never."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def release(self) -> bool:
        """Lets what is held begin, if the workflow waits for nothing else; whether that is so."""
        if not self._held or any(call not in self._held for call in self._pending):
            return False
        self._held.clear()
        self._look_again()
        return True

    def _stop(self, place: Call, number: int) -> CancelCall:
        stop = CancelCall(place, number, lambda: self._reason)
        stop.deliver = lambda outcome: self._raise(place.key, outcome)
        self._pending[stop] = None
        return stop

    def _raise(self, key: Key, outcome: Outcome) -> None:
        # Found by its key: the end of one child may be asked for by several.
        place = next((call for call in self._pending if call.key == key), None)
        if place is None:
            self._state = "asked"
            return
        self._state = "raised"
        del self._pending[place]
        # What may yet be recorded of it is nobody's.
        self._history.consume(key)
        self._held = {call for call in self._pending if not isinstance(call, WaitCall) and self._unbegun(call)}
        place.deliver(outcome)
        place.drop()
        self._look_again()

    def _unbegun(self, call: Call) -> bool:
        """Whether *call* waits, or has left no trace of having begun."""
        at_boundary = call.stage in ("parked", "held", "retry", "waiting")
        return at_boundary and not isinstance(call, CancelCall) and not self._history.started(call.key)

    def _look_again(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
