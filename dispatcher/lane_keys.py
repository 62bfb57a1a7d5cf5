"""Lanes: which runs share a bound on how many of them are handed out at once, as their workflow declares it.

The key of a lane of a workflow is its namespace, its name and `key=value` of the tag that runs in it have in common,
each percent-encoded, joined by colons. Other lanes, of the children of one call, have keys with more colons.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from dispatcher.store import runs
from endpoint_sdk.wire.messages import ServedWorkflow

_LONGEST_TAG: Final = 1_000
_CALL: Final = "call"


class Lane(NamedTuple):
    """A lane and how many places it has."""

    key: str
    limit: int


class OfWorkflow(NamedTuple):
    """What the key of a workflow's lane says; *tag* is `key=value`, empty where all runs share one lane.

    Of a tag too long for an index it is `#` and its digest.
    """

    namespace: str
    workflow: str
    tag: str


def lane_of(declared: ServedWorkflow | None, namespace: str, workflow: str, tags: Mapping[str, str]) -> Lane | None:
    """The lane its workflow puts a run with these tags into, if it declares a bound.

    Runs without the tag are alike in that: they share a lane.
    """
    if declared is None or declared.concurrency is None:
        return None
    key = declared.concurrency.key
    tag = "" if key is None else quote(f"{key}={tags.get(key, '')}", safe="")
    if len(tag) > _LONGEST_TAG:
        tag = "#" + hashlib.sha256(tag.encode()).hexdigest()
    return Lane(f"{quote(namespace, safe='')}:{quote(workflow, safe='')}:{tag}", declared.concurrency.limit)


def lane_of_call(parent_id: str, call: str, limit: int) -> Lane:
    """The lane that the children of one call of *parent_id* share."""
    return Lane(f"{_CALL}:{parent_id}:{call}", limit)


def of_workflow(key: str) -> OfWorkflow | None:
    """What *key* says, None if it is the lane of a call."""
    parts = key.split(":")
    return OfWorkflow(*(unquote(part) for part in parts)) if len(parts) == len(OfWorkflow._fields) else None


def parent_of(key: str) -> str:
    """The run whose children share the lane *key* of a call."""
    return key.split(":")[1]


def as_declared(birth: runs.Birth, declared: ServedWorkflow | None, now: int) -> runs.Birth:
    """*birth* with the lane and the time its workflow declares; the time counts from when the run is due, or *now*."""
    if declared is None:
        return birth
    tags = msgspec.json.decode(birth.tags, type=dict[str, str])
    lane = lane_of(declared, birth.namespace, birth.workflow, tags)
    due_at = max(now, birth.due_at or now) + birth.delay_ms
    return msgspec.structs.replace(
        birth,
        lane=None if lane is None else lane.key,
        lane_limit=None if lane is None else lane.limit,
        expires_at=None if declared.timeout_ms is None else due_at + declared.timeout_ms,
    )
