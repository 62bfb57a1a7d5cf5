"""What a request to start children asks for: which are there, which are to be born, and what their calls record."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dispatcher import declarations, errors
from dispatcher.lane_keys import Lane, lane_of, lane_of_call
from dispatcher.queues import Queue
from dispatcher.store import Session, children, records, runs, waits
from endpoint_sdk.wire import identity, limits
from endpoint_sdk.wire.child_messages import ChildStart, StartedChild
from endpoint_sdk.wire.messages import ServedWorkflow

Started = StartedChild | errors.Refusal


class Call(NamedTuple):
    """A call of the workflow, and those of its children that a request names with their places in the request."""

    address: waits.Address
    starts: list[tuple[int, ChildStart]]

    @property
    def key(self) -> str:
        return children.call_of(self.address)


class Plan(NamedTuple):
    """By their places: what is answered already, what is to be born, and what names the same child as another place."""

    results: dict[int, Started]
    births: list[tuple[int, runs.Birth]]
    repeats: dict[int, int]


def calls_of(starts: Sequence[ChildStart]) -> list[Call]:
    """The calls of a request, in the order in which it names them first.

    Raises BadRequest `malformed` for a place a call of that kind does not have.
    """
    found: dict[waits.Address, Call] = {}
    for place, child in enumerate(starts):
        if child.index >= child.total or (child.kind == "child" and child.total > 1):
            raise errors.BadRequest("malformed", f"a call of kind {child.kind} has no child number {child.index}")
        address = waits.Address(child.kind, child.workflow, child.args_hash, child.ordinal)
        found.setdefault(address, Call(address, [])).starts.append((place, child))
    return list(found.values())


def plan(session: Session, parent: runs.Row, calls: Sequence[Call], now: int) -> Plan:
    """What has to be done for *calls* of the locked *parent*, nothing of it done yet.

    Children that are due at once, under a bound, have their turns in the order of their ids: that of the request.
    """
    ids = iter(identity.ascending("run", sum(len(call.starts) for call in calls)))
    there = _there(session, parent, calls)
    declared: dict[tuple[str, str], ServedWorkflow | None] = {}
    made = Plan({}, [], {})
    seen: dict[tuple[str, int], int] = {}
    for call in calls:
        for place, child in call.starts:
            key = (call.key, child.index)
            if key in there:
                made.results[place] = StartedChild(there[key])
            elif key in seen:
                made.repeats[place] = seen[key]
            else:
                seen[key] = place
                workflow = (child.workflow, child.version)
                if workflow not in declared:
                    declared[workflow] = declarations.find(session, parent.namespace, *workflow)
                try:
                    made.births.append((place, _birth(next(ids), parent, call, child, declared[workflow], now)))
                except errors.Refusal as refusal:
                    made.results[place] = refusal
    return made


def _there(session: Session, parent: runs.Row, calls: Sequence[Call]) -> dict[tuple[str, int], str]:
    """The ids of the children that have started, by call and index."""
    if not parent.children:
        return {}
    single = [call.key for call in calls if call.address.kind == "child"]
    found = (
        {(call, 0): run_id for call, run_id in children.singles(session, parent.id, single).items()} if single else {}
    )
    for call in calls:
        if call.address.kind == "children":
            indexes = [child.index for _place, child in call.starts]
            places = children.places(session, parent.id, call.key, first=min(indexes), last=max(indexes))
            found.update({(call.key, index): run_id for index, run_id in places.items()})
    return found


def _birth(
    run_id: str, parent: runs.Row, call: Call, child: ChildStart, declared: ServedWorkflow | None, now: int
) -> runs.Birth:
    payload = bytes(child.input)
    if len(payload) > limits.MAX_PAYLOAD:
        raise errors.TooLarge("payload_too_large", f"input has {len(payload)} bytes, at most {limits.MAX_PAYLOAD}")
    tags = msgspec.json.decode(parent.tags, type=dict[str, str]) | (child.tags or {})
    if len(tags) > limits.MAX_TAGS:
        raise errors.Unprocessable("tags_too_many", f"a run has at most {limits.MAX_TAGS} tags")
    pool = child.pool or parent.pool
    Queue(parent.namespace, child.workflow, child.version, pool).checked_key()
    lane = lane_of(declared, parent.namespace, child.workflow, tags) or _lane(parent, call, child)
    timeout_ms = None if declared is None else declared.timeout_ms
    return runs.Birth(
        id=run_id,
        namespace=parent.namespace,
        workflow=child.workflow,
        version=child.version,
        priority=parent.priority,
        pool=pool,
        tags=msgspec.json.encode(tags, order="sorted").decode(),
        idempotency_key=child.idempotency_key,
        request_id=None,
        input=payload,
        parent_id=parent.id,
        parent_call=call.key,
        parent_index=child.index,
        lane=None if lane is None else lane.key,
        lane_limit=None if lane is None else lane.limit,
        expires_at=None if timeout_ms is None else now + timeout_ms,
    )


def _lane(parent: runs.Row, call: Call, child: ChildStart) -> Lane | None:
    """The children of one call share a bound of the call's own."""
    return None if child.limit is None else lane_of_call(parent.id, call.key, child.limit)


def value_of(session: Session, parent_id: str, call: Call, results: dict[int, Started]) -> bytes | None:
    """What the record of the call says, None while not all of its children have started."""
    place, child = call.starts[0]
    result = results[place]
    if child.kind == "child":
        return msgspec.json.encode({"id": result.id}) if isinstance(result, StartedChild) else None
    if children.tally(session, parent_id, call.key).total < child.total:
        return None
    return msgspec.json.encode({"total": child.total})


def record_of(run_id: str, call: Call, value: bytes, claim_id: str, now: int) -> records.Row:
    """The record of a call that has started all of its children; its number is not given yet."""
    return records.Row(
        run_id=run_id,
        seq=0,
        kind=call.address.kind,
        name=call.address.name,
        args_hash=call.address.args_hash,
        ordinal=call.address.ordinal,
        phase="started",
        state="started",
        attempt=1,
        claim_id=claim_id,
        value=value,
        error=None,
        preview=call.starts[0][1].preview,
        started_at=now,
        finished_at=now,
        next_attempt_at=None,
    )
