"""Cancelling: at once, or by a request that stands until the run ends, so that its workflow can undo what it did.

A request is answered to the executor with everything it writes. Nothing withdraws it, a repeat changes nothing, and
when its grace has passed the run is ended from whatever status it is in (infra/docs/protocol.md, Lifecycle).
"""

from typing import Any, Final

import msgspec

from dispatcher import ends, errors, lifecycle, waking
from dispatcher.operations import change, is_moving
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, entries, runs, waits
from endpoint_sdk.wire.operating import CancelRun, RunView

TIMED_OUT: Final = "timed_out"
"""Why a run is cancelled that took longer than its workflow declares."""


async def cancel(
    store: Store, settings: Settings, namespace: str, run_id: str, request: CancelRun, actor: str
) -> RunView:
    """The run is cancelled, or asked to cancel itself within `cancelGraceMs` if it was ever claimed and is not stalled.

    With `now` it is cancelled whatever it does, its claim gone and every later write of its executor refused. A run
    cancelled before is answered as it is; one that was stalled keeps the stall's reason. Raises Conflict
    `run_finished`, NotFound.
    """

    def apply(session: Session, run: runs.Row, _entry: entries.Entry | None) -> None:
        cancel_locked(session, settings, run, request, actor)

    return await change(store, settings, namespace, run_id, apply)


def cancel_locked(session: Session, settings: Settings, run: runs.Row, request: CancelRun, actor: str) -> None:
    """As `cancel`, for a run the caller has locked, and its entry before it."""
    if run.status == "cancelled":
        return
    if lifecycle.is_terminal(run.status):
        raise errors.Conflict("run_finished", f"the run has {run.status} already")
    _cancel(session, run, request.reason, settings.runs.cancel_grace_ms, actor, at_once=request.now)


def request(session: Session, run_id: str, reason: str, grace_ms: int, *, actor: str) -> bool:
    """Whether the run, locked here, is cancelled or asked to cancel itself now, as by `cancel`; False if it was before.

    Raises Unavailable when the run moves meanwhile.
    """
    entry = entries.lock(session, run_id)
    run = runs.lock(session, run_id)
    if run is None or lifecycle.is_terminal(run.status) or run.stop == "cancel":
        return False
    if is_moving(run, entry):
        raise errors.being_moved()
    _cancel(session, run, reason, grace_ms, actor)
    return True


def expire(session: Session, run_id: str, now: int, grace_ms: int, *, actor: str) -> bool:
    """Whether the run's time was up at *now* and it is cancelled for that, or asked to cancel itself within *grace_ms*.

    Raises Unavailable when the run moves meanwhile.
    """
    entries.lock(session, run_id)
    run = runs.lock(session, run_id)
    if run is None or run.expires_at is None or run.expires_at > now:
        return False
    runs.forget_expiry(session, run_id)
    return request(session, run_id, TIMED_OUT, grace_ms, actor=actor)


def force(session: Session, run_id: str, now: int, *, actor: str) -> bool:
    """Whether the grace of a standing request had passed at *now*: then the run is cancelled, its claim gone."""
    entries.lock(session, run_id)
    run = runs.lock(session, run_id)
    if run is None or run.cancel_forced_at is None or run.cancel_forced_at > now:
        return False
    _end(session, run, run.cancel_reason, actor, {"reason": run.cancel_reason, "forced": True})
    return True


def _cancel(session: Session, run: runs.Row, reason: str, grace_ms: int, actor: str, *, at_once: bool = False) -> None:
    """The locked *run* is cancelled where it has nothing to undo or may not, or else asked to cancel itself, once."""
    if at_once or not run.ever_claimed or run.status == "stalled":
        kept = run.reason if run.status == "stalled" else reason or run.cancel_reason
        _end(session, run, kept, actor, {"reason": reason})
    elif run.stop != "cancel":
        _ask(session, run, reason, session.now() + grace_ms, actor)


def _ask(session: Session, run: runs.Row, reason: str, forced_at: int, actor: str) -> None:
    """The request stands. What waits or is paused goes on, so that it can compensate; its answered waits are told."""
    runs.request_cancel(session, run.id, reason or None, forced_at)
    session.announce("timed", str(forced_at))
    if run.status in lifecycle.DELIVERABLE:
        return
    now = session.now()
    waiting = waits.of_run(session, run.id)
    waking.settle(session, run.id, waking.answers(session, run.id, waiting, now))
    asked = msgspec.structs.replace(run, stop="cancel")
    waking.to_queue(session, asked, "cancel_requested", actor=actor, due_at=now)


def _end(session: Session, run: runs.Row, reason: str | None, actor: str, details: dict[str, Any]) -> None:
    ends.end(
        session, run.id, run.revision, run.status, "cancelled", reason=reason or None, actor=actor, details=details
    )
