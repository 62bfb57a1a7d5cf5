"""The checker: what must be true of the stored rows at any moment no transaction is open."""

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from dispatcher import lifecycle
from dispatcher.store import child_invariants, lane_invariants
from dispatcher.store.schema import event, outbox_entry, record, run, run_transition, wait
from dispatcher.store.session import Session, Statement
from endpoint_sdk.wire.messages import Status

_RUNS: Final = Statement(
    sa.select(
        run.c.id,
        run.c.status,
        run.c.revision,
        outbox_entry.c.status,
        outbox_entry.c.revision,
        outbox_entry.c.claim_id,
        outbox_entry.c.publisher,
        outbox_entry.c.route,
        outbox_entry.c.published_at,
    ).select_from(run.outerjoin(outbox_entry, outbox_entry.c.run_id == run.c.id))
)
_HISTORY: Final = Statement(
    sa.select(
        run_transition.c.run_id,
        run_transition.c.revision,
        run_transition.c.from_status,
        run_transition.c.status,
        run_transition.c.request_id,
    ).order_by(run_transition.c.run_id, run_transition.c.revision)
)
_DOUBLES: Final = Statement(
    sa.select(record.c.run_id, record.c.name)
    .where(record.c.phase == "ended", record.c.state == "completed")
    .group_by(record.c.run_id, record.c.kind, record.c.name, record.c.args_hash, record.c.ordinal)
    .having(sa.func.count() > 1)
)
_PARKED: Final = Statement(
    sa.select(
        run.c.id,
        run.c.status,
        run.c.stop,
        run.c.due_at,
        run.c.wake_at,
        run.c.parked_as,
        sa.func.count(wait.c.kind),
        sa.func.min(wait.c.deadline_at),
    )
    .select_from(run.outerjoin(wait, wait.c.run_id == run.c.id))
    .group_by(run.c.id)
)
_OF_PARKED: Final = (wait.c.run_id == run.c.id, run.c.status.in_([sa.literal(name) for name in lifecycle.PARKED]))
_UNSEEN: Final = Statement(
    sa.select(run.c.id, event.c.name, event.c.number)
    .join_from(run, wait, sa.and_(*_OF_PARKED, wait.c.kind == sa.literal("event")))
    .join(event, sa.and_(event.c.run_id == run.c.id, event.c.name == wait.c.name, event.c.consumed.is_(None)))
    .where(sa.or_(wait.c.deadline_at.is_(None), event.c.at <= wait.c.deadline_at))
)
_ANSWERED: Final = Statement(
    sa.select(run.c.id, wait.c.kind, wait.c.name)
    .join_from(run, wait, sa.and_(*_OF_PARKED))
    .join(
        record,
        sa.and_(
            record.c.run_id == run.c.id,
            *(record.c[name] == wait.c[name] for name in ("kind", "name", "args_hash", "ordinal")),
            record.c.phase == sa.literal("ended"),
        ),
    )
)


def check(session: Session) -> list[str]:
    """Every breach of I1, I2, I7, I8, I9, I14 that the rows show and of lanes, a sentence each; empty if all is so."""
    found: list[str] = []
    latest: dict[str, tuple[int, str, str | None]] = {}
    for run_id, revision, before, after, request_id in session.all(_HISTORY):
        known = latest.get(run_id)
        found += _history_breaches(run_id, known, revision, before, after)
        latest[run_id] = (revision, after, request_id)
    for run_id, status, revision, entry, entry_revision, claim_id, *delivery in session.all(_RUNS):
        found += _entry_breaches(run_id, status, revision, entry, entry_revision)
        found += _delivery_breaches(run_id, entry, delivery)
        last = latest.get(run_id)
        if last is None or last[:2] != (revision, status):
            found.append(f"I2 {run_id} is {status} at {revision}, its history ends at {last}")
        elif status == "running" and last[2] != claim_id:
            found.append(f"I1 {run_id} is held by a claim its history does not know")
    paced = child_invariants.paced(session)
    for row in session.all(_PARKED):
        found += _wait_breaches(*row, paced=paced)
    found += child_invariants.check(session)
    found += lane_invariants.check(session)
    found += [
        f"I9 {run_id} is parked with event {name} {number} unread" for run_id, name, number in session.all(_UNSEEN)
    ]
    found += [
        f"I9 {run_id} waits for {kind} {name}, which has an outcome" for run_id, kind, name in session.all(_ANSWERED)
    ]
    found += [f"I7 {run_id} completed {name} twice at one address" for run_id, name in session.all(_DOUBLES)]
    return found


def _history_breaches(
    run_id: str, known: tuple[int, str, str | None] | None, revision: int, before: Status | None, after: Status
) -> list[str]:
    expected = (known[0] + 1, known[1]) if known else (0, None)
    breaches = []
    if (revision, before) != expected:
        breaches.append(f"I2 {run_id} moved to {revision} from {before}, expected {expected}")
    if not lifecycle.is_legal(before, after):
        breaches.append(f"{run_id} moved from {before} to {after}, which is not legal")
    return breaches


def _entry_breaches(
    run_id: str, status: str, revision: int, entry: str | None, entry_revision: int | None
) -> list[str]:
    allowed = {"queued": {"pending", "published"}, "running": {"claimed"}}.get(status, {None})
    if entry not in allowed:
        return [f"I8 {run_id} is {status} with entry {entry}"]
    if entry is not None and entry_revision != revision:
        return [f"I8 {run_id} is at {revision}, its entry at {entry_revision}"]
    return []


def _wait_breaches(
    run_id: str,
    status: Status,
    stop: str | None,
    due_at: int | None,
    wake_at: int | None,
    parked_as: Status | None,
    waits: int,
    deadline_at: int | None,
    *,
    paced: dict[str, int],
) -> list[str]:
    """A parked run waits for something, and the timers know until when; nobody else is in their list."""
    breaches = []
    due = {"scheduled": due_at}.get(status, deadline_at if status in lifecycle.PARKED else None)
    if wake_at != due and not _is_early(wake_at, due, paced.get(run_id)):
        breaches.append(f"I9 {run_id} is {status}, due at {due}, and the timers know {wake_at}")
    if status in lifecycle.PARKED and not waits:
        breaches.append(f"I9 {run_id} is {status} and waits for nothing")
    if (status == "paused") != (parked_as is not None):
        breaches.append(f"{run_id} is {status} and would go back to {parked_as}")
    if stop == "pause" and status != "running":
        breaches.append(f"{run_id} is {status} under a request to pause")
    return breaches


def _is_early(wake_at: int | None, due: int | None, latest: int | None) -> bool:
    """Whether the run is to be woken before its deadline, and in time, by a child that has ended."""
    return latest is not None and wake_at is not None and wake_at <= latest and (due is None or wake_at < due)


def _delivery_breaches(run_id: str, entry: str | None, delivery: Sequence[object]) -> list[str]:
    """A published entry says to whom, by which route and when; a pending one says nothing of the kind."""
    if entry == "published" and None in delivery:
        return [f"I14 {run_id} is published, and not to whom, by which route or when"]
    if entry == "pending" and any(value is not None for value in delivery):
        return [f"I14 {run_id} is pending and published at once"]
    return []
