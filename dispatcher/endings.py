"""How a claim or a delivery ends without finishing its run, and the count that stalls a run (I10).

Shared by everything that returns a run to the queue: an executor's release, recovery, an operator, a failed push.
"""

import random
from typing import Any

from dispatcher import backoff, ends
from dispatcher.kills import Kill, same_step
from dispatcher.settings import Publishing, Stalling
from dispatcher.store import Session, entries, records, runs
from endpoint_sdk.wire.messages import Status


def release(
    session: Session,
    limits: Stalling,
    entry: entries.Entry,
    *,
    reason: str,
    actor: str,
    request_id: str | None,
    delay_ms: int,
    endings: int,
    kills: int,
    note: str | None = None,
    at: int | None = None,
    kill: Kill | None = None,
) -> bool:
    """The claim *entry* was locked with is gone and the run queued again, or stalled when the count says so.

    Where a pause was asked for, the run is paused instead of queued. Answers whether it is not stalled. *at* is the
    earliest redelivery in database time, default now; *delay_ms* adds. A *kill* ended the claim, the last of *kills*.
    """
    why = exhausted(limits, endings=endings, kills=kills)
    killed = {} if kill is None else {"killed": kill.told()}
    if why is not None:
        facts = {**_facts(session, entry, endings, kills), **killed}
        if why == "crash_loop" and kill is not None and same_step(session, entry, kill, kills):
            why = "killed_at_step"
        stall(session, entry, why, facts, actor=actor, request_id=request_id, note=note)
        return False
    run = runs.lock(session, entry.run_id)
    assert run is not None
    paused = run.stop == "pause"
    if not paused:
        due_at = (session.now() if at is None else at) + delay_ms
        entries.release(session, entry, due_at=due_at, endings=endings, kills=kills)
    runs.move(
        session,
        entry.run_id,
        entry.revision,
        "running",
        "paused" if paused else "queued",
        reason=reason,
        actor=actor,
        request_id=request_id,
        note=note,
        details={"delayMs": delay_ms, "endings": endings, "kills": kills, **killed},
        deliveries=entries.delete(session, entry.run_id) if paused else 0,
        parked_as="queued" if paused else None,
    )
    if not paused:
        session.announce("queued", entry.run_id)
        session.announce("backlog", entry.queue)
    return True


def exhausted(limits: Stalling, *, endings: int, kills: int) -> str | None:
    """The reason to stall after so many endings and kills without progress, None while there are fewer."""
    if kills >= limits.max_kills_without_progress:
        return "crash_loop"
    if endings >= limits.max_endings_without_progress:
        return "undeliverable"
    return None


def stall(
    session: Session,
    entry: entries.Entry,
    reason: str,
    details: dict[str, Any],
    *,
    actor: str,
    request_id: str | None = None,
    note: str | None = None,
) -> None:
    """The run is stalled with *reason*, neither deliverable nor claimed, until an operator requeues it.

    One that was to be cancelled is cancelled with that reason instead.
    """
    before: Status = "running" if entry.status == "claimed" else "queued"
    run = runs.lock(session, entry.run_id)
    assert run is not None
    if run.stop == "cancel":
        ends.end(
            session,
            entry.run_id,
            entry.revision,
            before,
            "cancelled",
            reason=reason,
            actor=actor,
            request_id=request_id,
            note=note,
            details=details,
        )
        return
    runs.move(
        session,
        entry.run_id,
        entry.revision,
        before,
        "stalled",
        reason=reason,
        actor=actor,
        request_id=request_id,
        note=note,
        details=details,
        deliveries=entries.delete(session, entry.run_id),
    )
    session.announce("finished", entry.run_id)


def _facts(session: Session, entry: entries.Entry, endings: int, kills: int) -> dict[str, Any]:
    last = records.last(session, entry.run_id)
    return {
        "endings": endings,
        "kills": kills,
        "deliveries": entry.push_number,
        "lastRecord": None if last is None else {"name": last.name, "state": last.state, "phase": last.phase},
    }


def unpublish(
    session: Session,
    publishing: Publishing,
    limits: Stalling,
    entry: entries.Entry,
    *,
    reason: str,
    counted: bool,
    delay_ms: int | None,
    ways: int = 1,
) -> bool:
    """The delivery *entry* was leased with has ended unclaimed: the entry is pending again, or its run stalled.

    *delay_ms* None backs off by the number of deliveries in a row that ended so; until each of the *ways* a queue's
    deliveries can go has been tried once more, there is no delay. Answers whether the entry was still published under
    that push number and unclaimed; if not, nothing changed.
    """
    failures = entry.failures + 1
    ended = entry.endings + counted
    due_at = session.now() + after_failure(publishing, failures, ways, delay_ms)
    if not entries.unpublish(session, entry, due_at=due_at, failures=failures, endings=ended):
        return False
    why = exhausted(limits, endings=ended, kills=entry.kills)
    if why is not None:
        facts = {**_facts(session, entry, ended, entry.kills), "lastOutcome": reason}
        stall(session, entry, why, facts, actor="relay")
    return True


def after_failure(publishing: Publishing, failures: int, ways: int, delay_ms: int | None) -> int:
    """Milliseconds until the next delivery after *failures* in a row: none while one of *ways* is still to be tried.

    Then *delay_ms*, the clock of the last outcome, or by default the backoff of as many rounds.
    """
    rounds, tried = divmod(failures, ways)
    if tried:
        return 0
    if delay_ms is not None:
        return delay_ms
    return backoff.after_failures(
        rounds,
        publishing.base_backoff_ms,
        publishing.max_backoff_ms,
        random.random(),  # noqa: S311 - jitter, not a secret
    )
