"""What operators send and see of actions on many runs at once."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import Id, Lenient, Millis, Name, Reason, Status, Strict, Tag

Action = Literal["cancel", "pause", "resume", "requeue", "wake", "release"]


class WhichRuns(Strict, frozen=True):
    """Every condition that is given has to hold; with *ids*, one of them has to be the run's."""

    status: Status | None = None
    reason: Name | None = None
    workflow: Name | None = None
    version: Name | None = None
    idempotency_key: Name | None = None
    stuck_for_ms: Millis | None = None
    tags: dict[Tag, Tag] = msgspec.field(default_factory=dict)
    ids: Annotated[list[Id], Meta(max_length=limits.MAX_BATCH)] = msgspec.field(default_factory=list)


class BulkAction(Strict, frozen=True):
    """What is to be done to the runs of *filter* that it applies to by their status.

    *reason* and *now* are for a cancel, *reason* for a release too; *version* and *discard_unconsumed* for a requeue.
    """

    action: Action
    filter: WhichRuns
    reason: Reason = ""
    now: bool = False
    version: Name | None = None
    discard_unconsumed: bool = False
    dry_run: bool = False


class ActionStarted(Lenient, frozen=True):
    """How many runs match; *id* is null where nothing was started, for none or because it was to be dry."""

    id: str | None
    matched: int
    started: bool


class ActionView(Lenient, frozen=True):
    """How far an action has come: *applied* and *refused* of the runs that *matched* when it was started."""

    id: str
    action: Action
    filter: WhichRuns
    actor: str
    matched: int
    applied: int
    refused: int
    created_at: str
    finished_at: str | None
