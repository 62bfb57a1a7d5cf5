"""What an operator does to a run: release its claim, requeue it when stalled; and how each such call locks it."""

from collections.abc import Callable
from typing import Any

from dispatcher import endings, errors, lifecycle
from dispatcher.runs import find, view, waits_of
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, entries, runs
from dispatcher.submission import queue_run
from endpoint_sdk.wire.messages import Status
from endpoint_sdk.wire.operating import ReleaseRun, RequeueRun, RunView

Change = Callable[[Session, runs.Row, entries.Entry | None], None]


async def release(
    store: Store, settings: Settings, namespace: str, run_id: str, request: ReleaseRun, actor: str
) -> RunView:
    """The run's claim is gone and the run deliverable at once; its former owner is fenced.

    Raises Conflict `illegal_transition` unless the run is running, NotFound.
    """

    def apply(session: Session, run: runs.Row, entry: entries.Entry | None) -> None:
        if run.status != "running" or entry is None:
            raise illegal(run, "release")
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

    return await change(store, settings, namespace, run_id, apply)


async def requeue(
    store: Store, settings: Settings, namespace: str, run_id: str, request: RequeueRun, actor: str
) -> RunView:
    """The stalled run is queued again with fresh counters and a fresh clock, on `version` if one is given.

    Raises Conflict `illegal_transition` unless the run is stalled, Unprocessable `not_supported_yet`, NotFound.
    """
    if request.discard_unconsumed:
        raise errors.Unprocessable("not_supported_yet", "discardUnconsumed is not supported yet")

    def apply(session: Session, run: runs.Row, _entry: entries.Entry | None) -> None:
        if run.status != "stalled":
            raise illegal(run, "requeue")
        moved = _move(session, run, "queued", "requeued", actor, 0, version=request.version)
        queue_run(session, moved, session.now())

    return await change(store, settings, namespace, run_id, apply)


async def change(store: Store, settings: Settings, namespace: str, run_id: str, apply: Change) -> RunView:
    """Entry, then run, locked; *apply* called; the run as it is then.

    Raises NotFound, Unavailable when the run moves meanwhile, and what *apply* raises.
    """

    def operation(session: Session) -> RunView:
        entry = entries.lock(session, run_id)
        run = runs.lock(session, run_id)
        if run is None or run.namespace != namespace:
            raise errors.NotFound("run_not_found", "there is no such run")
        if (entry is None) == (run.status in lifecycle.DELIVERABLE):
            # The run moved between the two locks; locking its entry now would be against the order.
            raise errors.Unavailable("unavailable", "the run is being moved; try again", retry_after=1)
        apply(session, run, entry)
        moved, entry = find(session, namespace, run_id)
        return view(moved, entry, settings.recovery, waits_of(session, moved))

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


def illegal(run: runs.Row, verb: str) -> errors.Conflict:
    """The refusal of an operation that a run in this status does not know."""
    return errors.Conflict(
        "illegal_transition",
        f"{verb}: the run is {run.status}",
        hint="pointsman run why ID says what can be done",
        details={"status": run.status, "operation": verb},
    )
