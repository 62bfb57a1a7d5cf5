"""Doing it again: a run's next attempt, which keeps what succeeded, and its next generation, which keeps nothing.

Both are endings of a claim. The children that calls of the run started are locked before its entry: a child's end locks
the child and then its parent.
"""

from dispatcher import parking
from dispatcher.store import Session, children, entries, events, records, restarts, runs, waits
from dispatcher.submission import queue_run
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import OF_CHILDREN, Progress


def retry(
    session: Session, entry: entries.Entry, request: Progress, reason: str, error: bytes, delay_ms: int, actor: str
) -> None:
    """The run waits for its next attempt, which begins in *delay_ms*; its *error* can be seen until then.

    Every call that failed in the end is forgotten, so that it is made again, and so is the start of a child that failed
    or was cancelled; the failure of a task that runs once at most stays (I7). What the run was waiting for beside it is
    waited for anew. Under a request to pause the run is paused and waits on once it is resumed.
    """
    run = runs.lock(session, entry.run_id)
    assert run is not None
    wake_at = session.now() + delay_ms
    dropped = _forget_failures(session, run)
    waits.clear(session, run.id)
    waits.insert(session, [waits.Row(run.id, "retry", run.workflow, "", 0, wake_at)])
    parking.to_wait(
        session,
        entry,
        run,
        request,
        "awaiting_retry",
        wake_at,
        reason=reason,
        actor=actor,
        details={"attempt": run.attempt, "forgotten": dropped},
        error=error,
    )


def _forget_failures(session: Session, run: runs.Row) -> int:
    """Children that failed are started again, told or not; one that was only not waited for any longer goes on."""
    failed = records.of_failed_calls(session, run.id)
    numbers = {row.seq for row in failed if row.kind not in OF_CHILDREN or row.phase == "ended"}
    unsuccessful = children.unsuccessful_calls(session, run.id) if run.children else set()
    for started in restarts.started(session, run.id, limits.MAX_RECORDS + 1) if unsuccessful else ():
        if started.call in unsuccessful:
            children.forget(session, run.id, started.call)
            numbers.add(started.seq)
    return records.delete(session, run.id, sorted(numbers))


def begin_anew(session: Session, run: runs.Row, request: Progress, payload: bytes, actor: str) -> None:
    """The locked *run* is queued at the first attempt of its next generation, with *payload* as its input.

    Nothing it recorded is left, nor anything it waited for; its children go on by themselves, and events nobody was
    handed wait in its mailbox. Under a request to pause it is paused instead.
    """
    forgotten = records.clear(session, run.id)
    waits.clear(session, run.id)
    events.forget_consumed(session, run.id)
    children.forget(session, run.id)
    begun = runs.begin_anew(session, run.id, payload)
    paused = run.stop == "pause"
    moved = runs.move(
        session,
        run.id,
        run.revision,
        "running",
        "paused" if paused else "queued",
        reason="restarted",
        actor=actor,
        request_id=request.request_id,
        note=request.note,
        details={"generation": begun.generation, "forgotten": forgotten},
        deliveries=entries.delete(session, run.id),
        parked_as="queued" if paused else None,
    )
    assert moved is not None, "the run is locked"
    if not paused:
        queue_run(session, moved, session.now())
