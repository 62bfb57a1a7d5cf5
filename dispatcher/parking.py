"""Parking: a claim holder gives its claim up until something it waits for is answered (infra/docs/protocol.md, I9).

A park is refused when the executor has not seen all there is to see. What refuses it stays: a signal once numbered, an
outcome once recorded. So once refused, every late copy of it is refused too, and the run goes on under its claim.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec

from dispatcher import errors, waking
from dispatcher.store import Session, children, entries, records, runs, waits
from endpoint_sdk.wire import clock, limits
from endpoint_sdk.wire.messages import Park, Progress, Status, WaitFor

_STATUSES: Final[tuple[tuple[str, Status], ...]] = (
    ("event", "awaiting_event"),
    ("child", "awaiting_child"),
    ("children", "awaiting_child"),
    ("retry", "awaiting_retry"),
    ("sleep", "sleeping"),
)
_TIMED: Final = frozenset({"sleep", "retry"})
_FEW: Final = 20


def rows_of(run_id: str, park: Park) -> list[waits.Row]:
    """What the run would wait for, each address once.

    Raises BadRequest `malformed` for a deadline that is no time, or none where nothing else could end the wait.
    """
    found = {row.address: row for row in (_row(run_id, wait) for wait in park.waits)}
    return list(found.values())


def park(
    session: Session, entry: entries.Entry, request: Progress, ending: Park, asked: Sequence[waits.Row], actor: str
) -> runs.Row | None:
    """None when the run, whose entry the caller has locked, is parked; the run, still running, when that is refused.

    Then the outcomes of the waits that have an answer are recorded, as a wake-up would have done it, but no more than
    one answer can carry: what is left refuses the next park.
    """
    run = runs.lock(session, entry.run_id)
    assert run is not None
    if run.stop == "cancel" and not ending.told:
        return run
    now = session.now()
    armed = waits.of_run(session, run.id)
    wanted = _merged(asked, armed)
    _check_room(session, run.id, wanted)
    answered = _fitting([answer for answer in waking.answers(session, run.id, wanted, now) if answer.outcome])
    unseen = request.signal_seq != run.signal_seq and not ending.told
    if unseen or answered or _has_outcome(session, run.id, wanted):
        seq = waking.settle(session, run.id, answered)
        if answered:
            entries.note_signals(session, run.id, seq)
        return run
    _store(session, armed, [_counted(session, row) for row in wanted])
    _accept(session, entry, run, request, wanted, actor)
    return None


def _fitting(answered: Sequence[waking.Answer]) -> list[waking.Answer]:
    """The first of *answered* whose outcomes a page holds; one always."""
    sizes = accumulate(records.size(answer.outcome) for answer in answered if answer.outcome)
    return list(answered[: max(1, sum(size <= limits.GRANT_BYTES for size in sizes))])


def _check_room(session: Session, run_id: str, wanted: Sequence[waits.Row]) -> None:
    """A wake-up is never refused, so a park is: what answers its waits has to have room in the run's history."""
    outcomes = sum(row.kind != "retry" for row in wanted)
    if records.last_seq(session, run_id) + outcomes > limits.MAX_RECORDS:
        raise errors.Unprocessable(
            "history_limit",
            f"a run holds at most {limits.MAX_RECORDS} records, and {outcomes} waits bring as many",
            hint="continue as new: run.restart(input)",
        )


def _accept(
    session: Session,
    entry: entries.Entry,
    run: runs.Row,
    request: Progress,
    wanted: Sequence[waits.Row],
    actor: str,
) -> None:
    wake_at = waking.earliest(wanted)
    details = {"waits": len(wanted)}
    to_wait(session, entry, run, request, status_of(wanted), wake_at, reason="parked", actor=actor, details=details)


def to_wait(
    session: Session,
    entry: entries.Entry,
    run: runs.Row,
    request: Progress,
    parked: Status,
    wake_at: int | None,
    *,
    reason: str,
    actor: str,
    details: dict[str, Any],
    error: bytes | None = None,
) -> None:
    """The claim of the locked *run* is given up: it is *parked* until *wake_at*, or paused where that was asked for."""
    paused = run.stop == "pause"
    runs.move(
        session,
        run.id,
        entry.revision,
        "running",
        "paused" if paused else parked,
        reason=reason,
        actor=actor,
        request_id=request.request_id,
        note=request.note,
        details={**details, "wakeAt": None if wake_at is None else clock.to_wire(wake_at)},
        error=error,
        deliveries=entries.delete(session, run.id),
        wake_at=None if paused else wake_at,
        parked_as=parked if paused else None,
    )
    if wake_at is not None and not paused:
        session.announce("timed", str(wake_at))


def status_of(waiting: Sequence[waits.Row]) -> Status:
    """The status of a run that waits for these: what only others can end comes before what time ends."""
    kinds = {wait.kind for wait in waiting}
    return next(status for kind, status in _STATUSES if kind in kinds)


def _row(run_id: str, wait: WaitFor) -> waits.Row:
    if wait.deadline is None and wait.kind in _TIMED:
        raise errors.BadRequest("malformed", f"a wait of kind {wait.kind} needs a deadline")
    try:
        deadline = None if wait.deadline is None else clock.from_wire(wait.deadline)
    except ValueError as error:
        raise errors.BadRequest("malformed", "a deadline is not an RFC 3339 time with its offset") from error
    return waits.Row(run_id, wait.kind, wait.name, wait.args_hash, wait.ordinal, deadline)


def _merged(asked: Sequence[waits.Row], armed: Sequence[waits.Row]) -> list[waits.Row]:
    """What is armed already keeps its deadline; only a task's next attempt has one of its own each time."""
    known = {row.address: row for row in armed}
    return [row if row.kind == "retry" else known.get(row.address, row) for row in asked]


def _counted(session: Session, row: waits.Row) -> waits.Row:
    """A wait for many children is stored with how many are open now: each that ends from here on takes one off."""
    if row.kind != "children":
        return row
    return msgspec.structs.replace(row, open=children.tally(session, row.run_id, children.call_of(row.address)).open)


def _has_outcome(session: Session, run_id: str, wanted: Sequence[waits.Row]) -> bool:
    """Whether any wait has an outcome already: a few statements, however many waits and however long the history."""
    kinds: defaultdict[str, defaultdict[tuple[str, str], set[int]]] = defaultdict(lambda: defaultdict(set))
    for row in wanted:
        if row.kind != "retry":
            kinds[row.kind][row.name, row.args_hash].add(row.ordinal)
    return any(_has_ended(session, run_id, kind, calls) for kind, calls in kinds.items())


def _has_ended(session: Session, run_id: str, kind: str, calls: Mapping[tuple[str, str], set[int]]) -> bool:
    if len(calls) > _FEW:
        asked = {waits.Address(kind, *call, ordinal) for call, ordinals in calls.items() for ordinal in ordinals}
        return not asked.isdisjoint(records.ended_of_kind(session, run_id, kind))
    return any(
        not ordinals.isdisjoint(records.ended(session, run_id, kind, *call, first=min(ordinals), last=max(ordinals)))
        for call, ordinals in calls.items()
    )


def _store(session: Session, armed: Sequence[waits.Row], wanted: Sequence[waits.Row]) -> None:
    """A park names all it waits for: what was armed and is not among it is waited for no more."""
    waits.delete(session, [row for row in armed if row not in wanted])
    waits.insert(session, [row for row in wanted if row not in armed])
