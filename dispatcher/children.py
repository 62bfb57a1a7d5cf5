"""Starting children: runs of their own whose ends their parent is told of (infra/docs/protocol.md, Children).

A write of the claim holder, fenced as its progress is. Each child is found again by the call that starts it and its
place there, so that a repeat starts nothing twice; a child that cannot start is refused by itself.
"""

from typing import Final

import msgspec

from dispatcher import births, child_starts, claims, errors, submission
from dispatcher.child_starts import Call, Started
from dispatcher.records import to_wire
from dispatcher.secrets import ServerKeys
from dispatcher.store import Session, Store, children, entries, records, runs
from dispatcher.waking import SERVER
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.child_messages import ChildrenStarted, StartChildren, StartedChild
from endpoint_sdk.wire.messages import ErrorObject, HeldClaim

_ACTOR: Final = "executor"


async def start(store: Store, keys: ServerKeys, run_id: str, request: StartChildren, token: str) -> ChildrenStarted:
    """Every child of *request* that can start is there, once, and each call all of whose children are has its record.

    All in one transaction. Children have the pool, the tags and the priority of their parent but for what is given.

    Raises Unauthorized for a token of another claim, Conflict (`revision_conflict`, `cancelled`), NotFound,
    Unprocessable `history_limit`, or Unavailable where a child's idempotency key is being taken.
    """
    if not keys.check_write_token(token, run_id, request.expected_revision, request.claim_id):
        raise errors.Unauthorized("unauthorized", "the write token is not this claim's")
    calls = child_starts.calls_of(request.children)
    keyed = any(child.idempotency_key is not None for child in request.children)

    def operation(session: Session) -> ChildrenStarted:
        entry = entries.lock_held(session, run_id, request.expected_revision, request.claim_id)
        if entry is None:
            raise _loss(session, run_id, request)
        if keyed:
            children.lock_forgotten(session, run_id)
        parent = runs.lock(session, run_id)
        assert parent is not None
        now = session.now()
        results = _start(session, parent, calls, now)
        first, new = _record(session, parent, calls, results, request.claim_id, now)
        stamp = entries.note_progress if new else entries.refresh
        seen = stamp(session, run_id, entry.revision, request.claim_id)
        assert seen is not None, "the entry is locked"
        signals = records.by_claim(session, run_id, SERVER, after=request.signals_after) if entry.signals else []
        return ChildrenStarted(
            [_answer(results[place]) for place in range(len(request.children))],
            seen.stop,
            seen.signal_seq,
            [to_wire(row) for row in signals if first is None or row.seq < first],
        )

    return await store.transact(operation)


def _loss(session: Session, run_id: str, request: StartChildren) -> errors.Refusal:
    code = claims.loss(session, HeldClaim(run_id, request.expected_revision, request.claim_id, ""))
    return errors.CODES[code](code, "this claim no longer holds the run")


def _start(session: Session, parent: runs.Row, calls: list[Call], now: int) -> dict[int, Started]:
    """What became of every start, by its place in the request."""
    plan = child_starts.plan(session, parent, calls, now)
    results = plan.results
    nameless = [(place, birth) for place, birth in plan.births if birth.idempotency_key is None]
    if nameless:
        births.bear(session, [birth for _place, birth in nameless], _ACTOR, now)
        results.update({place: StartedChild(birth.id, created=True) for place, birth in nameless})
    named = [(place, birth) for place, birth in plan.births if birth.idempotency_key is not None]
    # Two requests that share keys wait for one another's in one order, so that neither waits for ever.
    for place, birth in sorted(named, key=lambda item: (item[1].workflow, item[1].idempotency_key or "")):
        results[place] = _named(session, parent, birth, now)
    for place, other in plan.repeats.items():
        same = results[other]
        results[place] = StartedChild(same.id) if isinstance(same, StartedChild) else same
    born = sum(isinstance(result, StartedChild) and result.created for result in results.values())
    if born:
        children.count(session, parent.id, born)
    return results


def _named(session: Session, parent: runs.Row, birth: runs.Birth, now: int) -> Started:
    """The child under its idempotency key: a new one, or one of the same parent whose call that has forgotten."""
    try:
        done = submission.born(session, birth, _ACTOR, now)
    except errors.Conflict as refusal:
        return refusal
    if done.created:
        return StartedChild(done.run.id, created=True)
    assert birth.parent_call is not None
    if children.adopt(session, done.run.id, parent.id, birth.parent_call, birth.parent_index or 0):
        return StartedChild(done.run.id)
    return errors.Conflict(
        "idempotency_conflict",
        "idempotencyKey already names a run that is no child of this call",
        hint="use a key of the call's own, or none",
        details={"runId": done.run.id},
    )


def _record(
    session: Session, parent: runs.Row, calls: list[Call], results: dict[int, Started], claim_id: str, now: int
) -> tuple[int | None, bool]:
    """The lowest number of the calls' records, None if no call has one, and whether anything is new."""
    born = any(isinstance(result, StartedChild) and result.created for result in results.values())
    new: list[records.Row] = []
    old: list[records.Row] = []
    for call in calls:
        value = child_starts.value_of(session, parent.id, call, results)
        if value is not None:
            row = child_starts.record_of(parent.id, call, value, claim_id, now)
            stored = None if _is_new(call, results) else records.at(session, row)
            (new if stored is None else old).append(row if stored is None else stored)
    last = records.last_seq(session, parent.id) if new else 0
    if last + len(new) > limits.MAX_RECORDS:
        raise errors.Unprocessable("history_limit", f"a run holds at most {limits.MAX_RECORDS} records")
    rows = [msgspec.structs.replace(row, seq=last + place) for place, row in enumerate(new, 1)]
    if records.insert_many(session, rows) != len(rows):
        raise errors.Unprocessable("record_conflict", "a call that starts children was recorded as something else")
    return min((row.seq for row in [*old, *rows]), default=None), born or bool(rows)


def _is_new(call: Call, results: dict[int, Started]) -> bool:
    """Whether no record of the call can be there: it starts one child, which is born in this transaction."""
    result = results[call.starts[0][0]]
    return call.address.kind == "child" and isinstance(result, StartedChild) and result.created


def _answer(result: Started) -> StartedChild:
    if isinstance(result, StartedChild):
        return result
    return StartedChild(error=ErrorObject(result.code, result.message, result.details, retryable=False))
