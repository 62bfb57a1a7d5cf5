"""A run as a dispatcher keeps it, in memory: records, waits, mailbox, status (infra/docs/protocol.md, I9).

Whoever holds the claim calls `record` and `park`; events, time, an operator and children come in by `send`, `wake_due`,
`cancel` and `answer_child`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from endpoint_sdk.wire import clock, messages

SERVER: Final = "server"
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
_PARKED: Final[tuple[tuple[str, messages.Status], ...]] = (
    ("event", "awaiting_event"),
    ("child", "awaiting_child"),
    ("children", "awaiting_child"),
    ("retry", "awaiting_retry"),
    ("sleep", "sleeping"),
)
_NULL: Final = msgspec.Raw(b"null")
_GRACE_MS: Final = 300_000

Address = tuple[str, str, str, int]


class Mail(msgspec.Struct):
    """An event that no wait has taken yet."""

    name: str
    value: msgspec.Raw
    at: int


class Answer(NamedTuple):
    """What became of *wait* at the moment *at*; a retry that is due has no outcome but its task's."""

    at: int
    wait: messages.WaitFor
    value: msgspec.Raw | None = None
    error: messages.ErrorObject | None = None
    mail: Mail | None = None


class MemoryRun:
    """The run *run*, queued; times are milliseconds since the epoch."""

    def __init__(self, run: messages.GrantedRun) -> None:
        self.run = run
        self.status: messages.Status = "queued"
        self.revision = 0
        self.records: list[messages.Record] = []
        self.armed: dict[Address, messages.WaitFor] = {}
        self.signal_seq = 0
        self.stop: messages.Stop | None = None
        self.cancel_reason = ""
        self.result: msgspec.Raw | None = None
        self.error: messages.ErrorObject | None = None
        self.forced_at: int | None = None
        self.expires_at: int | None = None
        self._seq = 0
        self._next_attempt = False
        self._mail: list[Mail] = []
        self._ends: dict[Address, Answer] = {}

    @property
    def ended(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.status in TERMINAL or self.status == "stalled"

    def move(self, status: messages.Status) -> None:
        """Its next revision has *status*."""
        self.status = status
        self.revision += 1
        if self.ended:
            self.armed.clear()
            self.forced_at = self.expires_at = None
        elif status == "queued" and self._next_attempt:
            self._next_attempt = False
            self.run = msgspec.structs.replace(self.run, attempt=self.run.attempt + 1)

    # --- from the executor -------------------------------------------------------------------------------------------
    def claim(self, now: int) -> messages.Grant:
        """A claim of the queued run."""
        self.move("running")
        return self.grant(now)

    def grant(self, now: int) -> messages.Grant:
        """What whoever holds the run has to know."""
        return messages.Grant(
            run=self.run,
            revision=self.revision,
            claim_id=f"clm_{self.revision}",
            token="",
            idle_timeout_ms=90_000,
            claim_refresh_interval_ms=30_000,
            server_time=clock.to_wire(now),
            signal_seq=self.signal_seq,
            stop=self.stop,
            stop_reason=self.cancel_reason if self.stop == "cancel" else None,
            records=list(self.records),
            waits=list(self.armed.values()),
        )

    def record(self, record: messages.RecordIn, claim_id: str) -> messages.Record:
        """*record* with its number; one that is known keeps what stands."""
        known = next((each for each in self.records if _identity(each) == _identity(record)), None)
        if known is not None:
            return known
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        self._seq += 1
        numbered = messages.Record(seq=self._seq, claim_id=claim_id, **fields)
        self.records.append(numbered)
        return numbered

    def park(
        self, waits: Iterable[messages.WaitFor], signal_seq: int, now: int, *, told: bool = False
    ) -> list[messages.Record] | None:
        """None once the run is parked for *waits*; if that is refused, what was recorded of them since."""
        wanted = [wait if wait.kind == "retry" else self.armed.get(address_of(wait), wait) for wait in waits]
        recorded = {address_of(each) for each in self.records if each.phase == "ended"}
        stale = any(address_of(wait) in recorded for wait in wanted if wait.kind != "retry")
        answered = [answer for answer in self._answers(wanted, now) if answer.value is not None or answer.error]
        unseen = signal_seq != self.signal_seq and not told
        if unseen or answered or stale or (self.stop == "cancel" and not told):
            return self._settle(answered, now)
        self.armed = {address_of(wait): wait for wait in wanted}
        kinds = {wait.kind for wait in wanted}
        self.move(next(status for kind, status in _PARKED if kind in kinds))
        return None

    def retry(self, error: messages.ErrorObject, due: int, unsuccessful: Collection[Address] = ()) -> None:
        """The run waits for its next attempt, at *due*, and makes the calls again that failed in the end.

        So are those whose children were *unsuccessful*, whether or not it had heard of that.
        """
        at_most_once = {address_of(each) for each in self.records if each.kind == "task" and each.phase == "started"}
        failed = {address_of(each) for each in self.records if _is_final(each) and each.state == "failed"}
        failed.update(unsuccessful)
        self._ends = {address: end for address, end in self._ends.items() if address not in failed}
        self.records = [each for each in self.records if address_of(each) not in failed - at_most_once]
        self.error = error
        self._next_attempt = True
        wait = messages.WaitFor("retry", self.run.workflow, 0, "", clock.to_wire(due))
        self.armed = {address_of(wait): wait}
        self.move("awaiting_retry")

    def restart(self, value: msgspec.Raw) -> None:
        """The run begins anew with another input and no history; events nobody was handed stay."""
        generation = self.run.generation + 1
        self.run = msgspec.structs.replace(self.run, input=value, attempt=1, generation=generation)
        self.records, self.armed, self._ends = [], {}, {}
        self.move("queued")

    # --- from outside ------------------------------------------------------------------------------------------------
    def send(self, name: str, value: bytes, now: int) -> None:
        """An event is in the mailbox; a run that waits for one of its name goes on."""
        self._mail.append(Mail(name, msgspec.Raw(value), now))
        self.signal_seq += 1
        if any(wait.kind == "event" and wait.name == name for wait in self._waiting()):
            self._wake(now)

    def answer_child(self, address: Address, answer: Answer, now: int) -> None:
        """What a child that *address* started has come to."""
        if address in self._ends or self.ended:
            return
        self._ends[address] = answer
        if any(address_of(wait) == address for wait in self._waiting()):
            self._wake(now)

    @property
    def due(self) -> int | None:
        """When the first of its waits is over by itself, its own time is, or a cancel's grace."""
        dues = [_deadline(wait) for wait in self._waiting()] + [self.forced_at, self.expires_at]
        return min((due for due in dues if due is not None), default=None)

    def wake_due(self, now: int) -> None:
        """What is due by *now* is over."""
        if self.expires_at is not None and self.expires_at <= now:
            self.cancel("timed_out", now)
        elif self.forced_at is not None and self.forced_at <= now:
            self.move("cancelled")
        elif self.due is not None and self.due <= now:
            self._wake(now)

    def cancel(self, reason: str, now: int) -> None:
        """The run is asked to cancel itself, and goes on so that it can; one that never ran is cancelled at once."""
        if self.stop == "cancel" or self.ended:
            return
        self.stop, self.cancel_reason = "cancel", reason
        self.forced_at, self.expires_at = now + _GRACE_MS, None
        if self.revision == 0:
            self.move("cancelled")
        elif self.status not in ("queued", "running"):
            self._settle(self._answers(self._waiting(), now), now)
            self.move("queued")

    # --- the rules ---------------------------------------------------------------------------------------------------
    def _waiting(self) -> list[messages.WaitFor]:
        return [] if self.status in ("queued", "running") or self.ended else list(self.armed.values())

    def _wake(self, now: int) -> None:
        answers = self._answers(self._waiting(), now)
        if answers:
            self._settle(answers, now)
            self.move("queued")

    def _answers(self, waits: Sequence[messages.WaitFor], now: int) -> list[Answer]:
        """What is known at *now*, in the order it came about; events go to the waits of their name as these came."""
        mail = list(self._mail)
        found: list[Answer] = []
        for wait in sorted(waits, key=lambda each: each.ordinal):
            found += self._answer(wait, mail, now)
        return sorted(found, key=lambda answer: answer.at)

    def _answer(self, wait: messages.WaitFor, mail: list[Mail], now: int) -> Iterator[Answer]:
        deadline = _deadline(wait)
        over = deadline is not None and deadline <= now
        if wait.kind in messages.OF_CHILDREN:
            if (end := self._ends.get(address_of(wait))) is not None:
                yield end
            return
        letter = next((each for each in mail if each.name == wait.name), None) if wait.kind == "event" else None
        if letter is not None and (deadline is None or letter.at <= deadline):
            mail.remove(letter)
            yield Answer(letter.at, wait, letter.value, None, letter)
        elif over:
            assert deadline is not None
            late = messages.ErrorObject("WaitTimeout", "the event did not come in time", retryable=False)
            match wait.kind:
                case "retry":
                    yield Answer(deadline, wait)
                case "sleep":
                    yield Answer(deadline, wait, _NULL)
                case _:
                    yield Answer(deadline, wait, None, late)

    def _settle(self, answers: Iterable[Answer], now: int) -> list[messages.Record]:
        recorded = []
        for answer in answers:
            self.armed.pop(address_of(answer.wait), None)
            if answer.value is None and answer.error is None:
                continue
            if answer.mail is not None:
                self._mail.remove(answer.mail)
            recorded.append(self.record(_outcome(answer, now), SERVER))
        return recorded


def address_of(item: messages.WaitFor | messages.RecordIn | messages.Record) -> Address:
    """The call *item* belongs to."""
    return item.kind, item.name, item.args_hash, item.ordinal


def _is_final(record: messages.Record) -> bool:
    return record.phase == "ended" and record.next_attempt_at is None


def _outcome(answer: Answer, now: int) -> messages.RecordIn:
    wait = answer.wait
    assert wait.kind != "retry"
    return messages.RecordIn(
        kind=wait.kind,
        name=wait.name,
        args_hash=wait.args_hash,
        ordinal=wait.ordinal,
        phase="ended",
        state="completed" if answer.error is None else "failed",
        attempt=1,
        value=msgspec.UNSET if answer.value is None else answer.value,
        error=answer.error,
        finished_at=clock.to_wire(now),
    )


def _identity(record: messages.RecordIn | messages.Record) -> tuple[Any, ...]:
    return (*address_of(record), record.attempt, record.phase)


def _deadline(wait: messages.WaitFor) -> int | None:
    return None if wait.deadline is None else clock.from_wire(wait.deadline)
