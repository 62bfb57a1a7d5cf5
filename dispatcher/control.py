"""What an operator does to a run that waits or shall wait: pause it, resume it, wake it early.

A paused run keeps what it waits for, and the time goes on: when it resumes, whatever was answered meanwhile wakes it.
"""

from dispatcher import errors, lifecycle, waking
from dispatcher.operations import change, illegal
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, entries, runs, waits
from endpoint_sdk.wire.operating import Nothing, RunView


async def wake(
    store: Store,
    settings: Settings,
    namespace: str,
    run_id: str,
    request: Nothing,  # noqa: ARG001 - every operation of an operator has one
    actor: str,
) -> RunView:
    """The scheduled or parked run is queued now: sleeps are over, and events it waited for have not come in time.

    Raises Conflict `illegal_transition` for any other run, NotFound.
    """

    def apply(session: Session, run: runs.Row, _entry: entries.Entry | None) -> None:
        wake_locked(session, run, actor)

    return await change(store, settings, namespace, run_id, apply)


def wake_locked(session: Session, run: runs.Row, actor: str) -> None:
    """As `wake`, for a run the caller has locked."""
    if waking.is_parked(run):
        now, waiting = session.now(), waits.of_run(session, run.id)
        waking.wake(session, run, "woken", actor=actor, now=now, waiting=waiting, woken=True)
    elif run.status == "scheduled":
        waking.to_queue(session, run, "woken", actor=actor, due_at=session.now())
    else:
        raise illegal(run, "wake")


async def pause(
    store: Store,
    settings: Settings,
    namespace: str,
    run_id: str,
    request: Nothing,  # noqa: ARG001 - every operation of an operator has one
    actor: str,
) -> RunView:
    """The run is paused; a running one is asked to stop at its next task boundary, and is paused then.

    Raises Conflict (`illegal_transition` for a stalled or ended run, `cancel_requested`), NotFound.
    """

    def apply(session: Session, run: runs.Row, entry: entries.Entry | None) -> None:
        pause_locked(session, run, entry, actor)

    return await change(store, settings, namespace, run_id, apply)


def pause_locked(session: Session, run: runs.Row, entry: entries.Entry | None, actor: str) -> None:
    """As `pause`, for a run the caller has locked, and its *entry* before it."""
    if run.status == "paused":
        return
    if run.status == "stalled" or lifecycle.is_terminal(run.status):
        raise illegal(run, "pause")
    if run.stop == "cancel":
        raise errors.Conflict("cancel_requested", "pause: the run is being cancelled, which nothing withdraws")
    if run.status == "running":
        runs.set_stop(session, run.id, "pause")
        return
    deliveries = 0 if entry is None else entries.delete(session, run.id)
    # Pausing is no progress: what was counted is counted on when the run is queued again.
    counted = None if entry is None else {"endings": entry.endings, "kills": entry.kills}
    runs.move(
        session,
        run.id,
        run.revision,
        run.status,
        "paused",
        reason="paused",
        actor=actor,
        details=counted,
        deliveries=deliveries,
        parked_as=run.status,
    )


async def resume(
    store: Store,
    settings: Settings,
    namespace: str,
    run_id: str,
    request: Nothing,  # noqa: ARG001 - every operation of an operator has one
    actor: str,
) -> RunView:
    """The paused run goes on where it was, queued if anything it waits for was answered meanwhile or is due.

    Of a running one the request to pause is withdrawn. Raises Conflict `illegal_transition` for others, NotFound.
    """

    def apply(session: Session, run: runs.Row, _entry: entries.Entry | None) -> None:
        resume_locked(session, run, actor)

    return await change(store, settings, namespace, run_id, apply)


def resume_locked(session: Session, run: runs.Row, actor: str) -> None:
    """As `resume`, for a run the caller has locked."""
    if run.status == "running" and run.stop == "pause":
        runs.set_stop(session, run.id, None)
    elif run.status == "paused":
        _resume(session, run, actor)
    else:
        raise illegal(run, "resume")


def _resume(session: Session, run: runs.Row, actor: str) -> None:
    now = session.now()
    if run.parked_as in lifecycle.PARKED:
        waiting = waits.of_run(session, run.id)
        if not waking.wake(session, run, "resumed", actor=actor, now=now, waiting=waiting):
            _wait_on(session, run, waking.earliest(waiting), actor)
    elif run.parked_as == "scheduled" and run.due_at is not None and run.due_at > now:
        _wait_on(session, run, run.due_at, actor)
    else:
        waking.to_queue(session, run, "resumed", actor=actor, due_at=now)


def _wait_on(session: Session, run: runs.Row, wake_at: int | None, actor: str) -> None:
    """Nothing has ended the wait of the paused *run*: it goes on."""
    assert run.parked_as is not None
    runs.move(session, run.id, run.revision, "paused", run.parked_as, reason="resumed", actor=actor, wake_at=wake_at)
    if wake_at is not None:
        session.announce("timed", str(wake_at))
