"""Answering waits: the one place that writes what became of them, and moves a parked run back to the queue (I9).

The outcome of a wait is a record under the claim id `server`: replay obeys it. Whatever ends a wait - an event, a
deadline, an operator, a refused park - comes here with the run's row locked.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dispatcher import child_outcomes, lifecycle
from dispatcher.store import Session, entries, events, records, runs, transitions, waits
from dispatcher.submission import queue_run
from endpoint_sdk.wire.messages import ErrorObject, Status

SERVER: Final = "server"
"""The claim id of the records the dispatcher writes."""

_TIMED: Final = frozenset({"sleep", "retry"})
_FEW: Final = 20
_NULL: Final = b"null"
_WOKEN: Final = b'"woken"'


class Answer(NamedTuple):
    """What became of *wait* at the moment *at*; a wait to try a task again has no *outcome* but the task's."""

    wait: waits.Row
    at: int
    outcome: records.Row | None
    event: events.Row | None = None


def answers(
    session: Session, run_id: str, waiting: Iterable[waits.Row], now: int, *, woken: bool = False
) -> list[Answer]:
    """What is known at *now* of each wait that has an answer, in the order in which the answers came.

    Events go to the waits of their name in the order of the calls, none to a wait whose deadline had passed when it
    came, and no child that ended after it. With *woken* an operator answers whatever has no other answer, but for
    children.
    """
    named: defaultdict[str, list[waits.Row]] = defaultdict(list)
    found: list[Answer] = []
    wanted = list(waiting)
    ended = child_outcomes.known(session, run_id, wanted, now)
    for wait in wanted:
        if wait.kind == "event":
            named[wait.name].append(wait)
        elif (of_child := ended.get(wait.address)) and of_child.at <= (wait.deadline_at or of_child.at):
            outcome = _record(wait, now, value=of_child.value, error=of_child.error)
            found.append(Answer(wait, of_child.at, outcome))
        elif _is_over(wait, now) or (woken and wait.kind in _TIMED):
            found.append(Answer(wait, min(now, wait.deadline_at or now), _over(wait, now)))
    there = events.unread_names(session, run_id) if len(named) > _FEW else named.keys()
    for name, calls in named.items():
        calls.sort(key=lambda wait: wait.ordinal)
        mail = events.oldest(session, run_id, name, len(calls)) if name in there else []
        found += _mail(calls, mail, now, woken=woken)
    return sorted(found, key=lambda answer: answer.at)


def _mail(calls: list[waits.Row], mail: list[events.Row], now: int, *, woken: bool) -> Iterator[Answer]:
    for wait in calls:
        if mail and (wait.deadline_at is None or mail[0].at <= wait.deadline_at):
            event = mail.pop(0)
            outcome = _record(wait, now, value=event.value, preview=event.event_id)
            yield Answer(wait, event.at, outcome, event)
        elif wait.deadline_at is not None and _is_over(wait, now):
            yield Answer(wait, wait.deadline_at, _timed_out(wait, now, "the event did not come in time"))
        elif woken:
            yield Answer(wait, now, _timed_out(wait, now, "the run was woken before the event came"))


def settle(session: Session, run_id: str, found: Iterable[Answer]) -> int:
    """Each answer is recorded and its wait gone, its event handed out; answers the number of the newest record.

    An address that has a record keeps it, and the event stays in the mailbox. A retry that is due before its time stays
    armed for now: its task's record names the time it would have had.
    """
    answered = list(found)
    seq = records.last_seq(session, run_id) if answered else 0
    for answer in answered:
        if answer.outcome is None:
            continue
        if records.insert(session, msgspec.structs.replace(answer.outcome, seq=seq + 1)):
            seq += 1
            if answer.event is not None:
                events.consume(session, run_id, answer.event.number, seq)
    waits.delete(session, [answer.wait for answer in answered])
    early = [answer for answer in answered if answer.outcome is None and not _is_over(answer.wait, answer.at)]
    waits.insert(session, [msgspec.structs.replace(answer.wait, deadline_at=answer.at) for answer in early])
    return seq


def wake(
    session: Session,
    run: runs.Row,
    reason: str,
    *,
    actor: str,
    now: int,
    waiting: Sequence[waits.Row],
    woken: bool = False,
) -> bool:
    """The parked *run*, locked, is queued again if any of what it is *waiting* for has an answer; the rest stays armed.

    Under a request to pause it is paused instead. Answers whether it moved: with *woken* it always does.
    """
    found = answers(session, run.id, waiting, now, woken=woken)
    if not found and not woken:
        runs.set_wake_at(session, run.id, earliest(waiting))
        return False
    settle(session, run.id, found)
    due_at = min([now, *(answer.at for answer in found)])
    to_queue(session, run, reason, actor=actor, due_at=due_at, details=_of_children(waiting, found))
    return True


def _of_children(waiting: Iterable[waits.Row], found: Iterable[Answer]) -> dict[str, Any] | None:
    """How many waits for single children were answered and how many are left: what the pace of later ones goes by."""
    ended = sum(answer.wait.kind == "child" for answer in found)
    return {"ended": ended, "left": sum(wait.kind == "child" for wait in waiting) - ended} if ended else None


def to_queue(
    session: Session, run: runs.Row, reason: str, *, actor: str, due_at: int, details: dict[str, Any] | None = None
) -> runs.Row:
    """The *run*, locked and without an entry, is queued and ranked by *due_at*, or paused where that was asked for."""
    after: Status = "paused" if run.stop == "pause" else "queued"
    paused = transitions.last(session, run.id) if run.status == "paused" else None
    moved = runs.move(
        session,
        run.id,
        run.revision,
        run.status,
        after,
        reason=reason,
        actor=actor,
        parked_as="queued" if after == "paused" else None,
        details=details,
    )
    assert moved is not None, "the run is locked"
    if run.error is not None:
        # It waited for its next attempt, which this is.
        waits.clear(session, run.id)
    if after == "queued":
        queue_run(session, moved, due_at)
        _count_on(session, run.id, paused)
    return moved


def _count_on(session: Session, run_id: str, paused: transitions.Transition | None) -> None:
    """What was counted of the run when it was *paused* is counted on."""
    details: dict[str, Any] = msgspec.json.decode(paused.details) if paused and paused.details else {}
    endings, kills = details.get("endings", 0), details.get("kills", 0)
    if endings or kills:
        entries.set_counters(session, run_id, endings=endings, kills=kills)


def is_parked(run: runs.Row) -> bool:
    """Whether the run waits for something that `wake` could answer."""
    return run.status in lifecycle.PARKED


def earliest(waiting: Iterable[waits.Row]) -> int | None:
    """The first deadline of these waits, None if none has one."""
    return min((wait.deadline_at for wait in waiting if wait.deadline_at is not None), default=None)


def _is_over(wait: waits.Row, now: int) -> bool:
    return wait.deadline_at is not None and wait.deadline_at <= now


def _over(wait: waits.Row, now: int) -> records.Row | None:
    if wait.kind == "retry":
        return None
    if wait.kind == "sleep":
        return _record(wait, now, value=_NULL if _is_over(wait, now) else _WOKEN)
    return _timed_out(wait, now, "the time for this wait is over")


def _timed_out(wait: waits.Row, now: int, message: str) -> records.Row:
    return _record(wait, now, error=msgspec.json.encode(ErrorObject("WaitTimeout", message, retryable=False)))


def _record(
    wait: waits.Row, now: int, *, value: bytes | None = None, error: bytes | None = None, preview: str | None = None
) -> records.Row:
    return records.Row(
        run_id=wait.run_id,
        seq=0,
        kind=wait.kind,
        name=wait.name,
        args_hash=wait.args_hash,
        ordinal=wait.ordinal,
        phase="ended",
        state="completed" if error is None else "failed",
        attempt=1,
        claim_id=SERVER,
        value=value,
        error=error,
        preview=preview,
        started_at=None,
        finished_at=now,
        next_attempt_at=None,
    )
