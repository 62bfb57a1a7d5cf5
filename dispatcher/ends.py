"""The end of a run: the one place where it becomes completed, failed or cancelled, and where what follows is done."""

from functools import partial
from typing import Any, Final

from dispatcher import on_failure, parents
from dispatcher.store import Session, entries, runs, waits
from endpoint_sdk.wire.messages import Status

_REVISION_AFTER_A_PARK: Final = 3  # born 0, claimed 1, parked 2, ended 3


def end(
    session: Session,
    run_id: str,
    revision: int,
    before: Status,
    after: Status,
    *,
    actor: str,
    reason: str | None = None,
    request_id: str | None = None,
    note: str | None = None,
    details: dict[str, Any] | None = None,
    result: bytes | None = None,
    error: bytes | None = None,
) -> runs.Row:
    """The run, whose entry is locked if it has one, has ended: no entry, no wait of it is left.

    If it failed, the run its workflow declares for that is there. A parent that waits for it is queued with the last
    statements of the transaction. Whoever waits for its result hears of it after the commit.
    """
    moved = runs.move(
        session,
        run_id,
        revision,
        before,
        after,
        reason=reason,
        actor=actor,
        request_id=request_id,
        note=note,
        details=details,
        result=result,
        error=error,
        deliveries=entries.delete(session, run_id),
    )
    assert moved is not None, "the run is locked"
    if moved.revision >= _REVISION_AFTER_A_PARK:
        waits.clear(session, run_id)
    if after == "failed":
        on_failure.start(session, moved, actor)
    if moved.parent_id is not None and moved.parent_call is not None:
        session.defer(moved.parent_id, partial(parents.tell, child=moved))
    if moved.cascade:
        session.announce("cascade", run_id)
    session.announce("finished", run_id)
    return moved
