"""The checker: what must be true of the stored rows at any moment no transaction is open."""

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from dispatcher import lifecycle
from dispatcher.store.schema import outbox_entry, record, run, run_transition
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


def check(session: Session) -> list[str]:
    """Every breach of I1, I2, I7, I8 and I14 that the rows show, a sentence each; empty when all is well."""
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


def _delivery_breaches(run_id: str, entry: str | None, delivery: Sequence[object]) -> list[str]:
    """A published entry says to whom, by which route and when; a pending one says nothing of the kind."""
    if entry == "published" and None in delivery:
        return [f"I14 {run_id} is published, and not to whom, by which route or when"]
    if entry == "pending" and any(value is not None for value in delivery):
        return [f"I14 {run_id} is pending and published at once"]
    return []
