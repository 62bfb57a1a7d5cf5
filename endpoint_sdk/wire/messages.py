"""Every message on the wire, as frozen Structs: snake_case here, camelCase in JSON.

Submit and operator calls refuse unknown fields; executor calls, deliveries, discovery and all answers ignore them,
because SDK and dispatcher are deployed apart. Times are RFC 3339 strings (`wire.clock`), durations milliseconds.
Payloads stay `Raw`: the dispatcher stores and forwards their bytes and never looks inside.
"""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from endpoint_sdk.wire import limits

Status = Literal[
    "scheduled",
    "queued",
    "running",
    "paused",
    "sleeping",
    "awaiting_event",
    "awaiting_retry",
    "awaiting_child",
    "stalled",
    "completed",
    "failed",
    "cancelled",
]
RecordKind = Literal["task", "sleep", "event", "child", "children", "cancel"]
OF_CHILDREN: Final = frozenset({"child", "children"})
Phase = Literal["started", "ended"]
RecordState = Literal["started", "completed", "failed"]
Stop = Literal["pause", "cancel"]
Platform = Literal["generic", "lambda-url", "api-gateway", "alb", "cloud-run", "web-function"]
LossCode = Literal["revision_conflict", "cancelled", "run_not_found"]
Scope = Literal["admin", "operate", "submit", "read", "execute"]
Overlap = Literal["skip", "allow", "cancel_previous"]
ResultHeader = Literal["settled", "busy", "retry", "unknown-workflow", "unauthorized", "invalid", "discovered"]

Name = Annotated[str, Meta(min_length=1, max_length=limits.MAX_NAME, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]+\Z")]
Tag = Annotated[str, Meta(max_length=limits.MAX_TAG, pattern=r"\A[^\x00]*\Z")]
Reason = Annotated[str, Meta(max_length=1_000, pattern=r"\A[^\x00]*\Z")]
Id = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"\A[^\x00]*\Z")]
Natural = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Millis = Annotated[int, Meta(ge=0, le=2**53)]
Wait = Annotated[int, Meta(ge=0, le=limits.MAX_WAIT_MS)]

HEADER_SDK = "pointsman-sdk"
HEADER_CLOCK = "pointsman-clock"
HEADER_RESULT = "pointsman-result"
HEADER_REQUEST_ID = "pointsman-request-id"
HEADER_NAMESPACE = "pointsman-namespace"


class Strict(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A request from a person or a submitting program: a field we do not know is a mistake."""


class Lenient(Struct, frozen=True, rename="camel"):
    """A message between deployments of different ages: fields we do not know are skipped."""


class Compact(Struct, frozen=True, rename="camel", omit_defaults=True):
    """As Lenient, leaving out what has its default."""


# --- errors ----------------------------------------------------------------------------------------------------------
class ErrorBody(Lenient, frozen=True):
    code: str
    message: str
    hint: str | None = None
    request_id: str | None = None
    details: dict[str, Any] | None = None


class ErrorAnswer(Lenient, frozen=True):
    error: ErrorBody


class ErrorObject(Lenient, frozen=True):
    """How a task or a run failed, as stored and shown; `details` is the user's, JSON."""

    type: str
    message: str
    details: Any = None
    retryable: bool = True
    traceback: str | None = None


# --- deliveries and discovery ----------------------------------------------------------------------------------------
class Concurrency(Compact, frozen=True):
    """At most *limit* runs of the workflow are handed out at once: of those alike in tag *key*, if any."""

    limit: Annotated[int, Meta(ge=1, le=10_000)]
    key: Tag | None = None


class Schedule(Compact, frozen=True):
    """When the workflow is started by the clock: by *cron* in *timezone*, or every *every_ms*, one of the two.

    *catch_up* is how many missed occurrences are made up for at most; each may start up to *jitter_ms* late.
    """

    cron: Annotated[str, Meta(max_length=200, pattern=r"\A[^\x00]*\Z")] | None = None
    timezone: Annotated[str, Meta(max_length=100, pattern=r"\A[^\x00]*\Z")] = "UTC"
    every_ms: Annotated[int, Meta(ge=1_000, le=2**53)] | None = None
    overlap: Overlap = "skip"
    catch_up: Annotated[int, Meta(ge=0, le=100)] = 1
    jitter_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0


class WorkflowRef(Lenient, frozen=True):
    name: Name
    version: Name


class ServedWorkflow(Lenient, frozen=True):
    """A workflow as its code declares it; *timeout_ms* is how long a run may take once it is due.

    A run of it that fails starts one of *on_failure*.
    """

    name: Name
    version: Name
    accepts: list[Name] = []
    concurrency: Concurrency | None = None
    schedule: Schedule | None = None
    on_failure: WorkflowRef | None = None
    timeout_ms: Annotated[int, Meta(ge=1, le=2**53)] | None = None


class Delivery(Compact, frozen=True, tag_field="type", tag="run.ready"):
    """Run X is ready at revision N; carries the only credential its claim needs."""

    run_id: str
    namespace: str
    workflow: str
    version: str
    revision: int
    attempt: int
    audience: str
    url: str
    token: str
    push_number: int | None = None
    traceparent: str | None = None


class Discover(Compact, frozen=True, tag_field="type", tag="endpoint.discover"):
    audience: str
    url: str


class Discovered(Lenient, frozen=True):
    sdk: str
    build_id: str
    workflows: list[ServedWorkflow]
    max_duration_ms: int | None = None
    key_hint: str | None = None


class Signed(Lenient, frozen=True):
    """A signed delivery where a route has no headers of its own: a Redis member, a direct Lambda invoke."""

    headers: dict[str, str]
    body: str


# --- executing -------------------------------------------------------------------------------------------------------
class ExecutorInfo(Compact, frozen=True):
    id: Name
    kind: Annotated[str, Meta(max_length=64)] = "endpoint"
    host: Annotated[str, Meta(max_length=255)] = ""
    sdk: Annotated[str, Meta(max_length=64)] = ""


class RecordIn(Compact, frozen=True):
    """What an executor writes; the dispatcher numbers it."""

    kind: RecordKind
    name: Name
    args_hash: Annotated[str, Meta(max_length=64, pattern=r"\A[^\x00]*\Z")]
    ordinal: Natural
    phase: Phase
    state: RecordState
    attempt: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    value: Raw | UnsetType = UNSET
    error: ErrorObject | None = None
    preview: Annotated[str, Meta(max_length=limits.MAX_PREVIEW, pattern=r"\A[^\x00]*\Z")] | None = None
    started_at: str | None = None
    finished_at: str | None = None
    next_attempt_at: str | None = None


class Record(Compact, frozen=True):
    """A stored record: a RecordIn with its place in the run's history."""

    seq: int
    kind: RecordKind
    name: str
    args_hash: str
    ordinal: int
    phase: Phase
    state: RecordState
    attempt: int
    value: Raw | UnsetType = UNSET
    error: ErrorObject | None = None
    preview: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    next_attempt_at: str | None = None
    claim_id: str | None = None


class ClaimRun(Lenient, frozen=True):
    expected_revision: Natural
    claim_id: Id
    executor: ExecutorInfo
    refresh_interval_ms: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    push_number: Natural | None = None


class GrantedRun(Lenient, frozen=True):
    id: str
    namespace: str
    workflow: str
    version: str
    attempt: int
    input: Raw
    created_at: str
    tags: dict[str, str] = {}
    parent_id: str | None = None
    scheduled_for: str | None = None
    idempotency_key: str | None = None
    generation: int = 0


class Grant(Lenient, frozen=True):
    run: GrantedRun
    revision: int
    claim_id: str
    token: str
    idle_timeout_ms: int
    claim_refresh_interval_ms: int
    server_time: str
    signal_seq: int = 0
    stop: Stop | None = None
    records: list[Record] = []
    records_after: int | None = None
    waits: list["WaitFor"] = []
    stop_reason: str | None = None


class WantedWorkflow(Lenient, frozen=True):
    """A workflow a poller serves, with every version it can run."""

    name: Name
    versions: Annotated[list[Name], Meta(min_length=1, max_length=100)]


class ClaimMany(Lenient, frozen=True):
    """A poll: claims up to *limit* runs of these queues.

    With a limit of 0 it claims none: it says what the caller serves, and learns what is held under its request id.

    The claim id of a run is the request id, an underscore and the run's id, and holds 100 characters as any other.
    """

    workflows: Annotated[list[WantedWorkflow], Meta(min_length=1, max_length=limits.MAX_BATCH)]
    request_id: Annotated[str, Meta(min_length=1, max_length=limits.MAX_POLL_ID, pattern=r"\A[^\x00]*\Z")]
    executor: ExecutorInfo
    refresh_interval_ms: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    pools: Annotated[list[Name], Meta(min_length=1, max_length=100)] = field(default_factory=lambda: ["default"])
    limit: Annotated[int, Meta(ge=0, le=limits.MAX_CLAIMS)] = 1
    wait_ms: Wait = 0
    declares: Annotated[list[ServedWorkflow], Meta(max_length=limits.MAX_BATCH)] = []


class Claimed(Lenient, frozen=True):
    claims: list[Grant]


class HeldClaim(Compact, frozen=True):
    """A claim as its holder names it: the fence (run, expectedRevision, claimId) and the write token.

    *step* is the task whose body it is in, one of them if there are several.
    """

    run_id: str
    expected_revision: Natural
    claim_id: Annotated[str, Meta(max_length=100)]
    token: Annotated[str, Meta(max_length=200)]
    step: Name | None = None


class Refresh(Lenient, frozen=True):
    claims: Annotated[list[HeldClaim], Meta(max_length=10_000)]


class Held(Lenient, frozen=True):
    run_id: str
    expected_revision: int
    stop: Stop | None = None


class Lost(Lenient, frozen=True):
    run_id: str
    expected_revision: int
    code: LossCode


class Refreshed(Lenient, frozen=True):
    held: list[Held]
    lost: list[Lost]


class Complete(Lenient, frozen=True, tag_field="kind", tag="complete"):
    result: Raw


class Fail(Lenient, frozen=True, tag_field="kind", tag="fail"):
    error: ErrorObject


class Release(Lenient, frozen=True, tag_field="kind", tag="release"):
    reason: Literal["handoff", "drain", "pause", "unknown_version"]
    delay_ms: Millis | None = None


class Stall(Lenient, frozen=True, tag_field="kind", tag="stall"):
    reason: Literal["divergence"]
    details: dict[str, Any] = {}


WaitKind = Literal["sleep", "event", "child", "children", "retry"]


class WaitFor(Compact, frozen=True):
    """One thing a parked run waits for; `deadline` is when it stops waiting, None for never."""

    kind: WaitKind
    name: Annotated[str, Meta(max_length=limits.MAX_NAME, pattern=r"\A[^\x00]*\Z")]
    ordinal: Natural
    args_hash: Annotated[str, Meta(max_length=64, pattern=r"\A[^\x00]*\Z")] = ""
    deadline: str | None = None


class Park(Lenient, frozen=True, tag_field="kind", tag="park"):
    """Gives the claim up until one of *waits* is answered; *told* says that the executor knows of a standing cancel."""

    waits: Annotated[list[WaitFor], Meta(min_length=1, max_length=10_000)]
    told: bool = False


class Cancelled(Lenient, frozen=True, tag_field="kind", tag="cancelled"):
    """Ends a run that was asked to cancel itself, once it has undone what it did."""


class Retry(Lenient, frozen=True, tag_field="kind", tag="retry"):
    """The run failed with *error* and begins its next attempt in *delay_ms*: what succeeded stays recorded."""

    error: ErrorObject
    delay_ms: Millis


class Restart(Lenient, frozen=True, tag_field="kind", tag="restart"):
    """The run begins anew with *input* and an empty history, under the same id."""

    input: Raw


Ending = Complete | Fail | Release | Stall | Park | Cancelled | Retry | Restart


class Progress(Lenient, frozen=True):
    """`signal_seq` is what the last answer said; `signals_after` the number of the newest outcome of a wait it has."""

    expected_revision: Natural
    claim_id: Id
    request_id: Id
    signal_seq: int = 0
    signals_after: Natural = 0
    note: Reason | None = None
    records: Annotated[list[RecordIn], Meta(max_length=1_000)] = []
    ending: Ending | None = None


class Progressed(Lenient, frozen=True):
    """`revision` is the one sent, or the next after the call's own ending; never another owner's.

    `stop_reason` is what was given with the request for the cancel that `stop` tells of.
    """

    revision: int
    stop: Stop | None = None
    signal_seq: int = 0
    parked: bool | None = None
    signals: list[Record] = []
    stop_reason: str | None = None
