"""What a claim holder sends to start children, and reads of their ends."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, UnsetType, field

from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import Compact, ErrorObject, Id, Lenient, Name, Natural, Record, Status, Stop, Tag


class ChildStart(Compact, frozen=True):
    """Child number *index* of *total* that the call (kind, workflow, args_hash, ordinal) of a run starts.

    A call of kind `child` starts one; one of kind `children` starts many, which are waited for together: at most
    *limit* of them are handed out at once, None for no limit but the workflow's own.
    """

    kind: Literal["child", "children"]
    workflow: Name
    version: Name
    args_hash: Annotated[str, Meta(max_length=64, pattern=r"\A[^\x00:]*\Z")]
    ordinal: Natural
    input: Raw
    index: Natural = 0
    total: Annotated[int, Meta(ge=1, le=limits.MAX_CHILDREN)] = 1
    idempotency_key: Name | None = None
    pool: Name | None = None
    tags: dict[Tag, Tag] | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    preview: Annotated[str, Meta(max_length=limits.MAX_PREVIEW, pattern=r"\A[^\x00]*\Z")] | None = None


class StartChildren(Lenient, frozen=True):
    """Fenced as Progress is. Repeats are harmless: a child is found again by its call and index."""

    expected_revision: Natural
    claim_id: Id
    children: Annotated[list[ChildStart], Meta(min_length=1, max_length=limits.MAX_BATCH)]
    signals_after: Natural = 0


class StartedChild(Lenient, frozen=True):
    """The child at its place in the request, or why it was refused; `created` is False for one that was there."""

    id: str | None = None
    created: bool = False
    error: ErrorObject | None = None


class ChildrenStarted(Lenient, frozen=True):
    """What was asked for, in its order, and what every answer to a claim holder carries.

    Of each call all of whose children have started, a record of phase `started` is kept: its value is {"id"} for a
    child, {"total"} for many.
    """

    children: list[StartedChild]
    stop: Stop | None = None
    signal_seq: int = 0
    signals: list[Record] = field(default_factory=list)


class ChildOutcome(Lenient, frozen=True):
    """A child of a call of kind `children`, as `GET /v1/runs/{id}/children/outcomes` answers a claim holder."""

    index: int
    id: str
    status: Status
    result: Raw | UnsetType = UNSET
    error: ErrorObject | None = None


class ChildOutcomes(Lenient, frozen=True):
    items: list[ChildOutcome]
    next: int | None = None
