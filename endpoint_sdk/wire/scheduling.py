"""Schedules as people and programs see and change them."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from endpoint_sdk.wire.messages import Lenient, Name, Overlap, Status, Strict, Tag

ScheduleOwner = Literal["code", "yaml", "api"]
ScheduleState = Literal["active", "paused", "inactive"]


class PutSchedule(Strict, frozen=True):
    """What a caller wants started by the clock: by *cron* in *timezone*, or every *every_ms*, one of the two."""

    workflow: Name
    version: Name | None = None
    cron: Annotated[str, Meta(max_length=200)] | None = None
    timezone: Annotated[str, Meta(max_length=100)] = "UTC"
    every_ms: Annotated[int, Meta(ge=1_000, le=366 * 86_400_000)] | None = None
    input: Raw | UnsetType = UNSET
    overlap: Overlap = "skip"
    catch_up: Annotated[int, Meta(ge=0, le=100)] = 1
    jitter_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    pool: Name = "default"
    tags: dict[Tag, Tag] = msgspec.field(default_factory=dict)
    priority: Annotated[int, Meta(ge=0, le=9)] = 5


class RunNow(Strict, frozen=True):
    """*request_id* makes a repeat harmless."""

    request_id: Name | None = None


class Backfill(Strict, frozen=True, rename={"from_": "from"}):
    """The occurrences from *from_* on and before *to*, RFC 3339 times; those still to come are left out."""

    from_: Annotated[str, Meta(max_length=50)]
    to: Annotated[str, Meta(max_length=50)]


class ScheduledRun(Lenient, frozen=True):
    """The run of an occurrence; *status* is null once the run is gone."""

    run_id: str
    scheduled_for: str
    status: Status | None


class ScheduleView(Lenient, frozen=True):
    """A schedule: *next* are the next five occurrences, *last* the run of the latest that started.

    *skipped* counts occurrences that never started: their predecessor ran, or they were missed and not made up for.
    *problem* says why the schedule cannot start anything now, or is not active.
    """

    name: str
    namespace: str
    workflow: str
    version: str | None
    cron: str | None
    timezone: str
    every_ms: int | None
    input: Raw
    overlap: Overlap
    catch_up: int
    jitter_ms: int
    pool: str
    tags: dict[str, str]
    priority: int
    owner: ScheduleOwner
    state: ScheduleState
    problem: str | None
    next: list[str]
    last: ScheduledRun | None
    skipped: int
    created_at: str
    updated_at: str


class ScheduleAnswer(Lenient, frozen=True):
    schedule: ScheduleView


class BackfilledRun(Lenient, frozen=True):
    """The run of an occurrence; `created` is False for one that had started before."""

    run_id: str
    scheduled_for: str
    created: bool


class Backfilled(Lenient, frozen=True):
    runs: list[BackfilledRun]
