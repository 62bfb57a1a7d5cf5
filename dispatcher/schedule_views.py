"""Looking at schedules: what the API, the command line and the dashboard show of them."""

from itertools import islice

import msgspec
from msgspec import Raw

from dispatcher import errors, schedules
from dispatcher.store import Session, Store
from dispatcher.store import schedules as schedule_store
from dispatcher.store.schedules import Row
from endpoint_sdk.wire import clock
from endpoint_sdk.wire.scheduling import ScheduledRun, ScheduleState, ScheduleView

_SHOWN = 5


async def list_(store: Store, namespace: str, *, limit: int, after: str) -> tuple[list[ScheduleView], str | None]:
    """Up to *limit* schedules beyond the name *after*, in the order of their names, and the next page's `after`."""

    def operation(session: Session) -> list[ScheduleView]:
        found = schedule_store.page(session, namespace, after=after, limit=limit + 1)
        return [view(session, row) for row in found]

    found = await store.transact(operation)
    return found[:limit], found[limit - 1].name if len(found) > limit else None


async def get(store: Store, namespace: str, name: str) -> ScheduleView:
    """The schedule as everybody sees it. Raises NotFound `schedule_not_found`."""

    def operation(session: Session) -> ScheduleView:
        row = schedule_store.get(session, namespace, name)
        if row is None:
            raise not_found(name)
        return view(session, row)

    return await store.transact(operation)


def not_found(name: str) -> errors.NotFound:
    """The refusal for a schedule that does not exist."""
    return errors.NotFound(
        "schedule_not_found", f"There is no schedule {name!r}.", hint="List them: pointsman schedule list"
    )


def view(session: Session, row: Row) -> ScheduleView:
    """The wire's picture of a schedule."""
    state: ScheduleState = "paused" if row.paused else "active" if row.active and row.next_at else "inactive"
    return ScheduleView(
        name=row.name,
        namespace=row.namespace,
        workflow=row.workflow,
        version=row.version,
        cron=row.cron,
        timezone=row.timezone,
        every_ms=row.every_ms,
        input=Raw(row.input),
        overlap=row.overlap,
        catch_up=row.catch_up,
        jitter_ms=row.jitter_ms,
        pool=row.pool,
        tags=msgspec.json.decode(row.tags, type=dict[str, str]),
        priority=row.priority,
        owner=row.owner,
        state=state,
        problem=row.problem,
        next=_next(row, session.now()) if state == "active" else [],
        last=_last(session, row),
        skipped=row.skipped,
        created_at=clock.to_wire(row.created_at),
        updated_at=clock.to_wire(row.updated_at),
    )


def _next(row: Row, now: int) -> list[str]:
    rule = schedules.rule(row.cron, row.timezone, row.every_ms)
    try:
        return [clock.to_wire(at) for at in islice(rule.after(now), _SHOWN)]
    except schedules.BrokenRuleError:
        return []


def _last(session: Session, row: Row) -> ScheduledRun | None:
    if row.last_at is None or row.last_run_id is None:
        return None
    status = schedule_store.status_of(session, row.last_run_id)
    return ScheduledRun(row.last_run_id, clock.to_wire(row.last_at), status)
