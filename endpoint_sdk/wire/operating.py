"""What people and submitting programs send and see: submits, operator calls, the registry and keys.

A request with a field we do not know is refused: there it is a mistake, not another version.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import (
    ErrorObject,
    ExecutorInfo,
    Id,
    Lenient,
    Millis,
    Name,
    Platform,
    Reason,
    Scope,
    ServedWorkflow,
    Status,
    Stop,
    Strict,
    Tag,
    WaitKind,
)


# --- submitting and operating ----------------------------------------------------------------------------------------
class SubmitRun(Strict, frozen=True):
    workflow: Name
    version: Name | None = None
    input: Raw | UnsetType = UNSET
    idempotency_key: Name | None = None
    due_at: str | None = None
    delay_ms: Millis | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    pool: Name = "default"
    tags: dict[Tag, Tag] = msgspec.field(default_factory=dict)
    request_id: Name | None = None


class SubmitBatch(Strict, frozen=True):
    runs: Annotated[list[Raw], Meta(min_length=1, max_length=limits.MAX_BATCH)]


class ClaimView(Lenient, frozen=True):
    executor: ExecutorInfo
    claimed_at: str
    refreshed_at: str
    stale_at: str


class WaitView(Lenient, frozen=True):
    """Something the run waits for; at *deadline*, if there is one, the wait is over whatever happens."""

    kind: WaitKind
    name: str
    ordinal: int
    deadline: str | None


class RunView(Lenient, frozen=True):
    """*wake_at* is when a scheduled or parked run is due; *waits* is empty in lists of runs.

    *schedule* is the name of the schedule that started it.
    """

    id: str
    namespace: str
    workflow: str
    version: str
    status: Status
    reason: str | None
    revision: int
    attempt: int
    priority: int
    pool: str
    tags: dict[str, str]
    idempotency_key: str | None
    note: str | None
    parent_id: str | None
    scheduled_for: str | None
    created_at: str
    queued_at: str | None
    due_at: str | None
    updated_at: str
    finished_at: str | None
    claim: ClaimView | None
    stop: Stop | None
    cancel_forced_at: str | None
    deliveries: int
    endings_without_progress: int
    kills: int
    input: Raw
    result: Raw
    error: ErrorObject | None
    wake_at: str | None = None
    waits: list[WaitView] = msgspec.field(default_factory=list)
    schedule: str | None = None


class Submitted(Lenient, frozen=True):
    run: RunView
    created: bool


class RunAnswer(Lenient, frozen=True):
    run: RunView


class TransitionView(Lenient, frozen=True):
    revision: int
    from_: Status | None = msgspec.field(name="from")
    to: Status
    reason: str | None
    actor: str
    at: str
    details: dict[str, Any] | None


class RunResult(Lenient, frozen=True):
    status: Status
    result: Raw | UnsetType = UNSET
    error: ErrorObject | None = None


class Why(Lenient, frozen=True):
    sentence: str
    facts: dict[str, Any]
    next: str | None


class CancelRun(Strict, frozen=True):
    reason: Reason = ""
    now: bool = False


class Nothing(Strict, frozen=True):
    """An operator call without arguments."""


class ReleaseRun(Strict, frozen=True):
    reason: Reason = ""


class RequeueRun(Strict, frozen=True):
    version: Name | None = None
    discard_unconsumed: bool = False


class RestartRun(Strict, frozen=True, rename={"from_": "from", "request_id": "requestId"}):
    """*from_* is the number of the first record that is forgotten; *request_id* makes a repeat harmless."""

    from_: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    request_id: Name | None = None


class SendEvent(Strict, frozen=True):
    """*event_id* makes a repeat harmless: a run takes one event of a name and an id."""

    name: Name
    value: Raw
    event_id: Id | None = None


class EventSent(Lenient, frozen=True):
    """*stored* is False for an event the run had already."""

    event_id: str
    stored: bool


class KeyedRun(Strict, frozen=True):
    """A run by the key its caller gave it."""

    workflow: Name
    idempotency_key: Name


class SendToMany(Strict, frozen=True):
    name: Name
    value: Raw
    targets: Annotated[list[Id | KeyedRun], Meta(min_length=1, max_length=limits.MAX_BATCH)]
    event_id: Id | None = None


class SentToOne(Lenient, frozen=True):
    run_id: str
    event_id: str
    stored: bool


class EventView(Lenient, frozen=True):
    """An event in the mailbox of a run; *consumed_by* is the number of the record that handed it out, null for none."""

    number: int
    name: str
    event_id: str
    value: Raw
    at: str
    consumed_by: int | None


class ChildView(Lenient, frozen=True):
    """A child of a run: which call of its parent started it, and at which place there.

    *kind*, *name*, *args_hash*, *ordinal* and *index* are null where the parent has forgotten the call: it began again
    since.
    """

    id: str
    workflow: str
    version: str
    status: Status
    reason: str | None
    kind: Literal["child", "children"] | None
    name: str | None
    args_hash: str | None
    ordinal: int | None
    index: int | None
    created_at: str
    finished_at: str | None


# --- registry and keys -----------------------------------------------------------------------------------------------
class AddEndpoint(Strict, frozen=True):
    name: Name
    url: Annotated[str, Meta(min_length=1, max_length=2_000)]
    platform: Platform = "generic"
    secret: Annotated[str, Meta(max_length=200)] | None = None
    max_in_flight: Annotated[int, Meta(ge=1, le=10_000)] = 50
    allow_http: bool = False
    allow_addresses: Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=100)] = msgspec.field(
        default_factory=list
    )


class KeyView(Lenient, frozen=True):
    hint: str
    created_at: str


class EndpointView(Lenient, frozen=True):
    id: str
    name: str
    url: str
    platform: Platform
    state: str
    reason: str | None
    max_in_flight: int
    owner: Literal["api", "yaml"]
    sdk: str | None
    workflows: list[ServedWorkflow]
    keys: list[KeyView]
    created_at: str
    discovered_at: str | None


PublisherType = Literal["push", "sqs", "redis", "memory"]
PublisherOwner = Literal["api", "yaml"]


class PublisherView(Lenient, frozen=True):
    """A publisher of any type. *state* is active, unverified, unreachable or misconfigured; *advice* a sentence."""

    id: str
    name: str
    type: PublisherType
    url: str
    state: str
    reason: str | None
    advice: str | None
    owner: PublisherOwner
    max_in_flight: int | None
    republish_ms: int | None
    keys: list[KeyView]
    created_at: str


class EndpointAdded(Lenient, frozen=True):
    endpoint: EndpointView
    secret: str | None = None
    test: "EndpointTested | None" = None


class EndpointTested(Lenient, frozen=True):
    ok: bool
    code: str | None
    message: str | None
    status: int | None
    ms: int
    workflows: list[ServedWorkflow]


class CreateKey(Strict, frozen=True):
    name: Name
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=5)]
    namespace: Name = "default"


class ApiKeyView(Lenient, frozen=True):
    id: str
    name: str
    scopes: list[Scope]
    namespace: str
    created_at: str
    revoked_at: str | None


class KeyCreated(Lenient, frozen=True):
    id: str
    key: str
    scopes: list[Scope]
    namespace: str


# --- views of the backlog --------------------------------------------------------------------------------------------
class Warned(Lenient, frozen=True):
    """Something an operator should see to: what it is, and what to do."""

    code: str
    message: str
    hint: str


class QueueView(Lenient, frozen=True):
    """A queue that holds entries; ages in milliseconds by the database's clock.

    *publishers* may deliver from it, in order of preference; *polled_ago_ms* is how long ago a poller last asked for
    its workflow and version, null if none ever did. *held* entries wait for places in their lanes, and are not pending.
    *warning* says that nobody serves what waits in it.
    """

    namespace: str
    workflow: str
    version: str
    pool: str
    pending: int
    published: int
    claimed: int
    held: int
    oldest_age_ms: int | None
    publishers: list[str]
    polled_ago_ms: int | None
    warning: Warned | None = None


class ExecutorView(Lenient, frozen=True):
    """An executor that holds claims; the one longest without a refresh is *oldest_refresh_age_ms* old."""

    id: str
    kind: str
    host: str
    sdk: str
    claims: int
    oldest_refresh_age_ms: int
