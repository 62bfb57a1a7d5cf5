"""What an operator does to a run: release its claim, requeue it when stalled; and how each such call locks it."""

from collections.abc import Callable
from typing import Any, Final

from dispatcher import discarding, endings, errors, lifecycle
from dispatcher.queues import Queue
from dispatcher.runs import find, view, waits_of
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, entries, runs
from dispatcher.store import children as children_store
from dispatcher.submission import queue_run
from endpoint_sdk.wire.operating import ReleaseRun, RequeueRun, RunView

_TRIES: Final = 5

Change = Callable[[Session, runs.Row, entries.Entry | None], None]


async def release(
    store: Store, settings: Settings, namespace: str, run_id: str, request: ReleaseRun, actor: str
) -> RunView:
    """The run's claim is gone and the run deliverable at once; its former owner is fenced.

    Raises Conflict `illegal_transition` unless the run is running, NotFound.
    """

    def apply(session: Session, run: runs.Row, entry: entries.Entry | None) -> None:
        release_locked(session, settings, run, entry, request.reason, actor)

    return await change(store, settings, namespace, run_id, apply)


def release_locked(
    session: Session, settings: Settings, run: runs.Row, entry: entries.Entry | None, reason: str, actor: str
) -> None:
    """As `release`, for a run the caller has locked, and its *entry* before it."""
    if run.status != "running" or entry is None:
        raise illegal(run, "release")
    endings.release(
        session,
        settings.stalling,
        entry,
        reason=reason or "released",
        actor=actor,
        request_id=None,
        delay_ms=0,
        endings=entry.endings,
        kills=entry.kills,
    )


async def requeue(
    store: Store, settings: Settings, namespace: str, run_id: str, request: RequeueRun, actor: str
) -> RunView:
    """The stalled run is queued again with fresh counters and a fresh clock, on `version` if one is given.

    With `discardUnconsumed` the records its code did not ask for, which the stall of a diverged run lists, are gone.

    Raises Conflict `illegal_transition` unless the run is stalled, Unprocessable (`nothing_to_discard`,
    `queue_too_long`), NotFound.
    """

    def apply(session: Session, run: runs.Row, _entry: entries.Entry | None) -> None:
        requeue_locked(session, run, request, actor)

    return await change(store, settings, namespace, run_id, apply, children=request.discard_unconsumed)


def requeue_locked(session: Session, run: runs.Row, request: RequeueRun, actor: str) -> None:
    """As `requeue`, for a run the caller has locked, and its children before it if something is to be discarded."""
    if run.status != "stalled":
        raise illegal(run, "requeue")
    version = request.version or run.version
    Queue(run.namespace, run.workflow, version, run.pool).checked_key()
    details: dict[str, Any] = {}
    if request.discard_unconsumed:
        details["discarded"] = discarding.discard(session, run)
    if version != run.version:
        details["version"] = [run.version, version]
    moved = runs.move(
        session,
        run.id,
        run.revision,
        run.status,
        "queued",
        reason="requeued",
        actor=actor,
        version=version,
        details=details,
    )
    assert moved is not None, "the run is locked"
    queue_run(session, moved, session.now())


async def change(
    store: Store, settings: Settings, namespace: str, run_id: str, apply: Change, *, children: bool = False
) -> RunView:
    """Entry, then run, locked, the *children* of its calls before them if asked for; *apply* called; the run then.

    Raises NotFound, Unavailable when the run moves between the two locks again and again, and what *apply* raises.
    """

    def operation(session: Session) -> RunView | None:
        locked = _lock(session, namespace, run_id, children=children)
        if locked is None:
            return None
        apply(session, *locked)
        moved, entry = find(session, namespace, run_id)
        return view(moved, entry, settings.recovery, waits_of(session, moved))

    for _ in range(_TRIES):
        changed = await store.transact(operation)
        if changed is not None:
            return changed
    raise errors.being_moved()


def lock(
    session: Session, namespace: str, run_id: str, *, children: bool = False
) -> tuple[runs.Row, entries.Entry | None]:
    """The run and its entry, locked in their order, after the *children* of its calls if asked for.

    Raises NotFound, Unavailable when the run moves meanwhile.
    """
    locked = _lock(session, namespace, run_id, children=children)
    if locked is None:
        raise errors.being_moved()
    return locked


def _lock(
    session: Session, namespace: str, run_id: str, *, children: bool
) -> tuple[runs.Row, entries.Entry | None] | None:
    """As `lock`, None when the run moves meanwhile."""
    if children:
        children_store.lock(session, run_id)
    entry = entries.lock(session, run_id)
    run = runs.lock(session, run_id)
    if run is None or run.namespace != namespace:
        raise errors.NotFound("run_not_found", "there is no such run")
    return None if is_moving(run, entry) else (run, entry)


def is_moving(run: runs.Row, entry: entries.Entry | None) -> bool:
    """Whether the run moved after its *entry* was locked and before itself was: its entry now is not locked.

    Locking that one would be against the order.
    """
    return (entry is None) == (run.status in lifecycle.DELIVERABLE)


def illegal(run: runs.Row, verb: str) -> errors.Conflict:
    """The refusal of an operation that a run in this status does not know."""
    return errors.Conflict(
        "illegal_transition",
        f"{verb}: the run is {run.status}",
        hint="pointsman run why ID says what can be done",
        details={"status": run.status, "operation": verb},
    )
