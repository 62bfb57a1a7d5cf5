"""Restarting a run from one of its records: a new run that has already done what came before it."""

import msgspec

from dispatcher import declarations, ends, errors, lifecycle
from dispatcher.operations import illegal
from dispatcher.runs import find, view
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, children, entries, restarts, runs, transitions
from dispatcher.submission import queue_run
from endpoint_sdk.wire import identity
from endpoint_sdk.wire.operating import RestartRun, RunView


async def restart(
    store: Store, settings: Settings, namespace: str, run_id: str, request: RestartRun, actor: str
) -> RunView:
    """The new run: of the same workflow, version, input, pool, tags, priority and generation, with no idempotency key.

    It has the records of the ended or stalled run before record `from`, and the children they started. A task with a
    record on either side is forgotten whole. A stalled original is cancelled, and its parent, if it has one, waits for
    the new run instead. A request that was sent before under its request id is answered with the run it made. Raises
    Conflict (`illegal_transition` for a run that goes on, `idempotency_conflict`), NotFound, Unavailable.
    """

    def operation(session: Session) -> RunView:
        # A child's end locks the child, then its parent.
        children.lock(session, run_id)
        entries.lock(session, run_id)
        old = runs.lock(session, run_id)
        if old is None or old.namespace != namespace:
            raise errors.NotFound("run_not_found", "there is no such run")
        if old.status != "stalled" and not lifecycle.is_terminal(old.status):
            raise illegal(old, "restart")
        new_id = _repeated(session, old, request) or _begin(session, old, request, actor).id
        row, entry = find(session, namespace, new_id)
        return view(row, entry, settings.recovery)

    return await store.transact(operation)


def _repeated(session: Session, old: runs.Row, request: RestartRun) -> str | None:
    """The run that an earlier copy of the request made. Raises Conflict where its id was given to something else."""
    if request.request_id is None:
        return None
    made = runs.by_request(session, old.namespace, request.request_id)
    if made is None:
        return None
    birth = transitions.at(session, made.id, 0)
    told = msgspec.json.decode(birth.details) if birth is not None and birth.details else {}
    if (told.get("runId"), told.get("asked", told.get("from"))) == (old.id, request.from_):
        return made.id
    raise errors.Conflict(
        "idempotency_conflict",
        "requestId already names another request",
        hint="use a new one for a new request",
        details={"runId": made.id},
    )


def _begin(session: Session, old: runs.Row, request: RestartRun, actor: str) -> runs.Row:
    now = session.now()
    if old.status == "stalled":
        children.leave(session, old.id)
    new = runs.insert(session, _birth(session, old, request.request_id, now), now)
    if new is None:
        raise errors.Unavailable("unavailable", "the request id was taken at this moment; try again", retry_after=1)
    before, calls = _children(session, old, request.from_)
    copied = restarts.copy(session, old.id, new.id, before)
    moved = restarts.move_children(session, old.id, new.id, calls)
    if moved:
        children.count(session, old.id, -moved)
    restarts.hand_down(session, new.id, generation=old.generation, children=moved, ever_claimed=copied > 0)
    details = {"runId": old.id, "from": before, "records": copied}
    if before != request.from_:
        details["asked"] = request.from_
    transitions.append(
        session,
        new.id,
        0,
        None,
        "queued",
        reason="restart_of",
        actor=actor,
        request_id=request.request_id,
        details=details,
    )
    queue_run(session, new, now)
    if new.expires_at is not None:
        session.announce("timed", str(new.expires_at))
    if old.status == "stalled":
        told = {"runId": new.id}
        ends.end(
            session, old.id, old.revision, "stalled", "cancelled", reason="restarted_as", actor=actor, details=told
        )
    return new


def _birth(session: Session, old: runs.Row, request_id: str | None, now: int) -> runs.Birth:
    inherits = old.status == "stalled"  # its parent has not been told of an end
    declared = declarations.find(session, old.namespace, old.workflow, old.version)
    timeout_ms = None if declared is None else declared.timeout_ms
    return runs.Birth(
        id=identity.new("run"),
        namespace=old.namespace,
        workflow=old.workflow,
        version=old.version,
        priority=old.priority,
        pool=old.pool,
        tags=old.tags,
        idempotency_key=None,
        request_id=request_id,
        input=old.input,
        parent_id=old.parent_id if inherits else None,
        parent_call=old.parent_call if inherits else None,
        parent_index=old.parent_index if inherits else None,
        lane=old.lane,
        lane_limit=old.lane_limit,
        expires_at=None if timeout_ms is None else now + timeout_ms,
    )


def _children(session: Session, old: runs.Row, wanted: int) -> tuple[int, list[str]]:
    """Where the copy ends, and the calls whose children go with it.

    What the code did once it was told of a cancel is not repeated: nobody cancels the new run.

    Where an earlier restart has taken the children already, the call that started them has to be made again, and
    whatever came after it.
    """
    told = restarts.first_cancel(session, old.id)
    wanted = wanted if told is None else min(wanted, told)
    calls: list[str] = []
    there = children.calls(session, old.id) if old.children else set()
    for started in restarts.started(session, old.id, wanted):
        if started.call not in there:
            return started.seq, calls
        calls.append(started.call)
    return wanted, calls
