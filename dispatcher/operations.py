"""What an operator does to a run: cancel it, release its claim, requeue it when stalled."""

from collections.abc import Callable
from typing import Any

from dispatcher import endings, errors, lifecycle
from dispatcher.runs import find, view
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, entries, runs
from dispatcher.submission import queue_run
from endpoint_sdk.wire.messages import Status
from endpoint_sdk.wire.operating import CancelRun, ReleaseRun, RequeueRun, RunView

Change = Callable[[Session, runs.Row, entries.Entry | None], None]


async def cancel(
    store: Store, settings: Settings, namespace: str, run_id: str, request: CancelRun, actor: str
) -> RunView:
    """The run is cancelled, its claim gone and every later write of its executor refused.

    A run cancelled before is answered as it is; one that was stalled keeps the stall's reason. Without `now`, only a
    run that was never claimed or is stalled can be cancelled yet: Unprocessable `not_supported_yet` otherwise. Raises
    Conflict `run_finished`, NotFound.
    """

    def change(session: Session, run: runs.Row, _entry: entries.Entry | None) -> None:
        if run.status == "cancelled":
            return
        if lifecycle.is_terminal(run.status):
            raise errors.Conflict("run_finished", f"the run has {run.status} already")
        if run.ever_claimed and not request.now and run.status != "stalled":
            raise errors.Unprocessable(
                "not_supported_yet",
                "a run that was claimed can only be cancelled at once yet",
                hint="repeat with now: true (pointsman run cancel --now)",
            )
        deliveries = entries.delete(session, run_id)
        reason = run.reason if run.status == "stalled" else request.reason or None
        _move(session, run, "cancelled", reason, actor, deliveries, details={"reason": request.reason})
        session.announce("finished", run_id)

    return await _change(store, settings, namespace, run_id, change)


async def release(
    store: Store, settings: Settings, namespace: str, run_id: str, request: ReleaseRun, actor: str
) -> RunView:
    """The run's claim is gone and the run deliverable at once; its former owner is fenced.

    Raises Conflict `illegal_transition` unless the run is running, NotFound.
    """

    def change(session: Session, run: runs.Row, entry: entries.Entry | None) -> None:
        if run.status != "running" or entry is None:
            raise _illegal(run, "release")
        endings.release(
            session,
            settings.stalling,
            entry,
            reason=request.reason or "released",
            actor=actor,
            request_id=None,
            delay_ms=0,
            endings=entry.endings,
            kills=entry.kills,
        )

    return await _change(store, settings, namespace, run_id, change)


async def requeue(
    store: Store, settings: Settings, namespace: str, run_id: str, request: RequeueRun, actor: str
) -> RunView:
    """The stalled run is queued again with fresh counters and a fresh clock, on `version` if one is given.

    Raises Conflict `illegal_transition` unless the run is stalled, Unprocessable `not_supported_yet`, NotFound.
    """
    if request.discard_unconsumed:
        raise errors.Unprocessable("not_supported_yet", "discardUnconsumed is not supported yet")

    def change(session: Session, run: runs.Row, _entry: entries.Entry | None) -> None:
        if run.status != "stalled":
            raise _illegal(run, "requeue")
        moved = _move(session, run, "queued", "requeued", actor, 0, version=request.version)
        queue_run(session, moved, session.now())

    return await _change(store, settings, namespace, run_id, change)


async def _change(store: Store, settings: Settings, namespace: str, run_id: str, change: Change) -> RunView:
    """Entry, then run, locked; *change* applied; the run as it is then."""

    def operation(session: Session) -> RunView:
        entry = entries.lock(session, run_id)
        run = runs.lock(session, run_id)
        if run is None or run.namespace != namespace:
            raise errors.NotFound("run_not_found", "there is no such run")
        if (entry is None) == (run.status in lifecycle.DELIVERABLE):
            # The run moved between the two locks; locking its entry now would be against the order.
            raise errors.Unavailable("unavailable", "the run is being moved; try again", retry_after=1)
        change(session, run, entry)
        return view(*find(session, namespace, run_id), settings.recovery)

    return await store.transact(operation)


def _move(
    session: Session,
    run: runs.Row,
    after: Status,
    reason: str | None,
    actor: str,
    deliveries: int,
    version: str | None = None,
    details: dict[str, Any] | None = None,
) -> runs.Row:
    moved = runs.move(
        session,
        run.id,
        run.revision,
        run.status,
        after,
        reason=reason,
        actor=actor,
        version=version,
        deliveries=deliveries,
        details=details,
    )
    assert moved is not None, "the run is locked"
    return moved


def _illegal(run: runs.Row, verb: str) -> errors.Conflict:
    return errors.Conflict(
        "illegal_transition",
        f"{verb}: the run is {run.status}",
        hint="pointsman run why ID says what can be done",
        details={"status": run.status, "operation": verb},
    )
