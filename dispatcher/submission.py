"""Submitting: a run is born with its transition and its outbox entry, all or nothing.

A repeat is harmless: the request id finds the run an earlier copy made, the idempotency key the run its caller named.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from dispatcher import declarations, errors
from dispatcher.lane_keys import as_declared
from dispatcher.queues import Queue
from dispatcher.store import Session, Store, entries, runs, transitions
from endpoint_sdk.wire import clock, identity, limits
from endpoint_sdk.wire.messages import ServedWorkflow
from endpoint_sdk.wire.operating import SubmitRun

PRIORITY_STEP_MS: Final = 10_000


class Submission(NamedTuple):
    """`created`: this request (or an earlier copy of it) made the run. `existed`: nothing new was stored."""

    run: runs.Row
    created: bool
    existed: bool


async def submit(
    store: Store,
    namespace: str,
    request: SubmitRun,
    actor: str,
    default_version: str | None,
    declared: ServedWorkflow | None = None,
) -> Submission:
    """The run is stored, queued or scheduled; its outbox entry is in the same transaction.

    It is deliverable at once, or when it has a place if its workflow is *declared* to bound how many run at once.

    Raises BadRequest (`malformed`: a due time that is none), Unprocessable (`version_unknown`, `tags_too_many`,
    `queue_too_long`), TooLarge (`payload_too_large`) or Conflict (`idempotency_conflict`: the same key with another
    input).
    """
    birth = _birth(namespace, request, default_version)

    def operation(session: Session) -> Submission:
        now = session.now()
        return _insert(session, as_declared(birth, declared, now), actor, now)

    return await store.transact(operation)


async def submit_batch(
    store: Store,
    namespace: str,
    requests: Sequence[tuple[SubmitRun, str | None]],
    actor: str,
    declared: Mapping[tuple[str, str], ServedWorkflow] | None = None,
) -> list[Submission | errors.Refusal]:
    """One outcome per request, in order; each is stored or refused on its own, in one transaction for all.

    What is *declared* of a workflow at a version holds for its runs, as in `submit`.
    """
    births: list[runs.Birth | errors.Refusal] = []
    for request, default_version in requests:
        try:
            births.append(_birth(namespace, request, default_version))
        except errors.Refusal as refusal:
            births.append(refusal)

    def operation(session: Session) -> list[Submission | errors.Refusal]:
        now = session.now()
        refused = {place: birth for place, birth in enumerate(births) if isinstance(birth, errors.Refusal)}
        known = declared or {}
        stored = {
            place: _try(session, as_declared(birth, known.get((birth.workflow, birth.version)), now), actor, now)
            for place, birth in _in_lock_order(births)
        }
        return [stored.get(place) or refused[place] for place in range(len(births))]

    return await store.transact(operation)


def _in_lock_order(births: Sequence[runs.Birth | errors.Refusal]) -> list[tuple[int, runs.Birth]]:
    """Two batches that share keys wait for one another's in one order, so that neither waits for ever."""
    found = [(place, birth) for place, birth in enumerate(births) if not isinstance(birth, errors.Refusal)]
    return sorted(found, key=lambda item: (item[1].workflow, item[1].idempotency_key or "", item[1].request_id or ""))


def _birth(namespace: str, request: SubmitRun, default_version: str | None) -> runs.Birth:
    if len(request.tags) > limits.MAX_TAGS:
        raise errors.Unprocessable("tags_too_many", f"a run has at most {limits.MAX_TAGS} tags")
    payload = b"null" if isinstance(request.input, msgspec.UnsetType) else bytes(request.input)
    if len(payload) > limits.MAX_PAYLOAD:
        raise errors.TooLarge("payload_too_large", f"input has {len(payload)} bytes, at most {limits.MAX_PAYLOAD}")
    version = request.version or default_version
    if version is None:
        raise errors.Unprocessable(
            "version_unknown",
            f"no endpoint has been discovered that serves {request.workflow!r}",
            hint="name a version, or add the endpoint first",
        )
    Queue(namespace, request.workflow, version, request.pool).checked_key()
    return runs.Birth(
        id=identity.new("run"),
        namespace=namespace,
        workflow=request.workflow,
        version=version,
        priority=request.priority,
        pool=request.pool,
        tags=msgspec.json.encode(request.tags, order="sorted").decode(),
        idempotency_key=request.idempotency_key,
        request_id=request.request_id,
        input=payload,
        due_at=_due_at(request),
        delay_ms=request.delay_ms or 0,
    )


def _due_at(request: SubmitRun) -> int | None:
    if request.due_at is None:
        return None
    if request.delay_ms is not None:
        raise errors.BadRequest("malformed", "dueAt and delayMs exclude one another")
    try:
        return clock.from_wire(request.due_at)
    except ValueError as error:
        raise errors.BadRequest(
            "malformed", "dueAt is not an RFC 3339 time with its offset", hint="for example 2026-12-24T18:00:00Z"
        ) from error


def _try(session: Session, birth: runs.Birth, actor: str, now: int) -> Submission | errors.Refusal:
    try:
        return _insert(session, birth, actor, now)
    except errors.Refusal as refusal:
        return refusal


def born(session: Session, birth: runs.Birth, actor: str, now: int) -> Submission:
    """The run of *birth* is stored within the caller's transaction, or the one that was there is answered.

    What its workflow declares holds for it; of a child the caller has seen to that. Raises Conflict
    `idempotency_conflict`, Unavailable.
    """
    if birth.parent_id is None:
        declared = declarations.find(session, birth.namespace, birth.workflow, birth.version)
        birth = as_declared(birth, declared, now)
    return _insert(session, birth, actor, now)


def _insert(session: Session, birth: runs.Birth, actor: str, now: int) -> Submission:
    run = runs.insert(session, birth, now)
    if run is None:
        return _existing(session, birth)
    transitions.append(
        session, run.id, 0, None, run.status, reason="submitted", actor=actor, request_id=birth.request_id
    )
    if run.wake_at is None:
        queue_run(session, run, now if birth.due_at is None else min(birth.due_at, now))
    else:
        session.announce("timed", str(run.wake_at))
    if run.expires_at is not None:
        session.announce("timed", str(run.expires_at))
    return Submission(run, created=True, existed=False)


def queue_run(session: Session, run: runs.Row, due_at: int) -> None:
    """A run that just became queued from no entry has one, ranked by its due time and priority.

    It is deliverable at once, or held back until its lane has a place for it.
    """
    queue = Queue(run.namespace, run.workflow, run.version, run.pool)
    rank = due_at - run.priority * PRIORITY_STEP_MS
    entries.insert(session, entries.New(run.id, run.revision, queue.key(), rank, due_at, run.attempt, run.lane))


def _existing(session: Session, birth: runs.Birth) -> Submission:
    if birth.request_id is not None:
        repeated = runs.by_request(session, birth.namespace, birth.request_id)
        if repeated is not None:
            _check_same(repeated, birth, "requestId")
            return Submission(repeated, created=True, existed=True)
    named = birth.idempotency_key and runs.by_idempotency_key(
        session, birth.namespace, birth.workflow, birth.idempotency_key
    )
    if not named:
        raise errors.Unavailable("unavailable", "the run of this key is being changed; try again", retry_after=1)
    _check_same(named, birth, "idempotencyKey")
    return Submission(named, created=False, existed=True)


def _check_same(run: runs.Row, birth: runs.Birth, name: str) -> None:
    if run.workflow == birth.workflow and _same(run.input, birth.input):
        return
    raise errors.Conflict(
        "idempotency_conflict",
        f"{name} already names a run with another input",
        hint="use a new key for a new input",
        details={"runId": run.id},
    )


def _same(stored: bytes, sent: bytes) -> bool:
    return stored == sent or _canonical(stored) == _canonical(sent)


def _canonical(payload: bytes) -> bytes:
    # Compared as text: in Python, 1 equals true.
    return msgspec.json.encode(msgspec.json.decode(payload), order="sorted")
