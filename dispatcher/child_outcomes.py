"""What became of children, as the waits of their parent are told: one child's result, or the end of a whole call's.

Read under the lock of the parent's row, by a statement after it: whatever has ended by then is seen, and whatever ends
later finds the parent parked and wakes it (infra/docs/protocol.md, I9).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from dispatcher.store import Session, children, waits
from dispatcher.store.children import Child
from endpoint_sdk.wire.messages import ErrorObject

_NULL: Final = b"null"
_DECODER: Final = msgspec.json.Decoder(ErrorObject)


class Ended(NamedTuple):
    """What a wait for children is told, and when that became so: a value, or the error of the child that decided it."""

    at: int
    value: bytes | None = None
    error: bytes | None = None


def known(session: Session, run_id: str, waiting: Iterable[waits.Row], now: int) -> dict[waits.Address, Ended]:
    """What can be said at *now* of those that wait for children, by their addresses; of others nothing.

    A wait for many is over with the last of them, and before that with the first that fails or is cancelled.
    """
    rows = list(waiting)
    found: dict[waits.Address, Ended] = {}
    single = {children.call_of(row.address): row.address for row in rows if row.kind == "child"}
    if single:
        started = {child.parent_call: child for child in children.of_calls(session, run_id, single)}
        for call, address in single.items():
            ended = _of_one(started.get(call), now)
            if ended is not None:
                found[address] = ended
    for row in rows:
        if row.kind == "children":
            ended = _of_many(session, run_id, children.call_of(row.address), now)
            if ended is not None:
                found[row.address] = ended
    return found


def _of_one(child: Child | None, now: int) -> Ended | None:
    if child is None:
        return _never_started(now)
    if child.finished_at is None:
        return None
    if child.status == "completed":
        return Ended(child.finished_at, value=child.result or _NULL)
    return Ended(child.finished_at, error=failure(child))


def _of_many(session: Session, run_id: str, call: str, now: int) -> Ended | None:
    unsuccessful = children.first_unsuccessful(session, run_id, call)
    if unsuccessful is not None:
        return _of_one(unsuccessful, now)
    tally = children.tally(session, run_id, call)
    if not tally.total:
        return _never_started(now)
    if tally.open:
        return None
    return Ended(now if tally.last_at is None else tally.last_at, value=msgspec.json.encode({"total": tally.total}))


def failure(child: Child) -> bytes:
    """The error a parent is told of a child that failed or was cancelled: ChildFailed, and in its details of what."""
    if child.status == "failed" and child.error is not None:
        error = _DECODER.decode(child.error)
        kind, message, details = error.type, error.message, error.details
    else:
        kind, message, details = child.status, child.reason or f"the run was {child.status}", None
    told = {
        "runId": child.id,
        "workflow": child.workflow,
        "index": child.parent_index,
        "status": child.status,
        "type": kind,
        "details": details,
    }
    return msgspec.json.encode(ErrorObject("ChildFailed", message, told, retryable=False))


def _never_started(now: int) -> Ended:
    """Nothing would ever end such a wait."""
    told = {"runId": None, "status": None, "type": "child_not_found", "details": None}
    error = ErrorObject("ChildFailed", "this call of the run has started no child", told, retryable=False)
    return Ended(now, error=msgspec.json.encode(error))
