"""Looking at runs: what the API, the command line and the dashboard show of a stored run."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from dispatcher import errors, lifecycle
from dispatcher.records import to_wire
from dispatcher.settings import Recovery
from dispatcher.store import Session, Store, listing, records, runs, transitions, waits
from dispatcher.store.entries import Entry
from dispatcher.store.listing import RunFilter
from endpoint_sdk.wire import clock
from endpoint_sdk.wire.messages import ErrorObject, ExecutorInfo, Record
from endpoint_sdk.wire.operating import ClaimView, RunResult, RunView, TransitionView, WaitView

__all__ = ["RunFilter", "find", "get", "list_", "records_of", "result", "transitions_of", "view", "waits_of"]

_NULL = Raw(b"null")


async def get(store: Store, settings: Recovery, namespace: str, run_id: str) -> RunView:
    """The run as everybody sees it; raises NotFound (`run_not_found`) outside *namespace* too."""

    def operation(session: Session) -> RunView:
        row, entry = find(session, namespace, run_id)
        return view(row, entry, settings, waits_of(session, row))

    return await store.transact(operation)


async def list_(
    store: Store, settings: Recovery, namespace: str, wanted: RunFilter, *, limit: int, after: str | None
) -> tuple[list[RunView], str | None]:
    """Up to *limit* runs, newest first, and the cursor of the next page."""
    found = await store.transact(lambda session: listing.page(session, namespace, wanted, limit=limit + 1, after=after))
    items = [view(row, entry, settings) for row, entry in found[:limit]]
    return items, items[-1].id if len(found) > limit else None


async def transitions_of(
    store: Store, namespace: str, run_id: str, *, limit: int, after: int
) -> tuple[list[TransitionView], int | None]:
    """The run's history beyond revision *after*, oldest first, and the cursor of the next page."""

    def operation(session: Session) -> list[transitions.Transition]:
        find(session, namespace, run_id)
        return transitions.page(session, run_id, after=after, limit=limit + 1)

    found = await store.transact(operation)
    return [_move(row) for row in found[:limit]], found[limit - 1].revision if len(found) > limit else None


async def records_of(
    store: Store, namespace: str, run_id: str, *, limit: int, after: int
) -> tuple[list[Record], int | None]:
    """The run's records beyond number *after*, in order, and the cursor of the next page."""

    def operation(session: Session) -> list[records.Row]:
        find(session, namespace, run_id)
        return records.page(session, run_id, after=after, limit=limit + 1)

    found = await store.transact(operation)
    return [to_wire(row) for row in found[:limit]], found[limit - 1].seq if len(found) > limit else None


async def result(store: Store, namespace: str, run_id: str) -> RunResult:
    """The run's status, with its result or error once it has ended."""
    row, _ = await store.transact(lambda session: find(session, namespace, run_id))
    error = _error(row) if lifecycle.is_terminal(row.status) else None
    return RunResult(row.status, Raw(row.result) if row.result is not None else msgspec.UNSET, error)


def find(session: Session, namespace: str, run_id: str) -> tuple[runs.Row, Entry | None]:
    """The run and its entry; raises NotFound when *namespace* has no such run."""
    found = listing.one(session, namespace, run_id)
    if found is None:
        raise errors.NotFound("run_not_found", "there is no such run", hint="pointsman run list shows the runs")
    return found


def waits_of(session: Session, run: runs.Row) -> list[waits.Row]:
    """What the run waits for: nothing, unless it is parked, or paused while it was."""
    waiting = run.status in lifecycle.PARKED or run.parked_as in lifecycle.PARKED
    return waits.of_run(session, run.id) if waiting else []


def view(row: runs.Row, entry: Entry | None, settings: Recovery, waiting: Sequence[waits.Row] = ()) -> RunView:
    """The wire's picture of a run, its outbox entry and what it is *waiting* for."""
    return RunView(
        id=row.id,
        namespace=row.namespace,
        workflow=row.workflow,
        version=row.version,
        status=row.status,
        reason=row.reason,
        revision=row.revision,
        attempt=row.attempt,
        priority=row.priority,
        pool=row.pool,
        tags=msgspec.json.decode(row.tags, type=dict[str, str]),
        idempotency_key=row.idempotency_key,
        note=row.note,
        parent_id=row.parent_id,
        scheduled_for=_time(row.scheduled_for),
        created_at=clock.to_wire(row.created_at),
        queued_at=_time(row.queued_at),
        due_at=_time(row.due_at),
        updated_at=clock.to_wire(row.updated_at),
        finished_at=_time(row.finished_at),
        claim=_claim(entry, settings),
        stop=row.stop,
        cancel_forced_at=_time(row.cancel_forced_at),
        deliveries=row.deliveries + (entry.push_number if entry else 0),
        endings_without_progress=entry.endings if entry else 0,
        kills=entry.kills if entry else 0,
        input=Raw(row.input),
        result=_NULL if row.result is None else Raw(row.result),
        error=_error(row),
        wake_at=_time(row.wake_at),
        waits=[WaitView(wait.kind, wait.name, wait.ordinal, _time(wait.deadline_at)) for wait in waiting],  # type: ignore[arg-type]
        schedule=row.schedule,
    )


def _claim(entry: Entry | None, settings: Recovery) -> ClaimView | None:
    if entry is None or entry.refreshed_at is None or entry.claimed_at is None or entry.executor is None:
        return None
    return ClaimView(
        executor=msgspec.json.decode(entry.executor, type=ExecutorInfo),
        claimed_at=clock.to_wire(entry.claimed_at),
        refreshed_at=clock.to_wire(entry.refreshed_at),
        stale_at=clock.to_wire(entry.refreshed_at + settings.claim_idle_timeout_ms),
    )


def _error(row: runs.Row) -> ErrorObject | None:
    if row.error is None:
        return None
    return msgspec.json.decode(row.error, type=ErrorObject)


def _move(row: transitions.Transition) -> TransitionView:
    return TransitionView(
        revision=row.revision,
        from_=row.from_status,  # type: ignore[arg-type]
        to=row.status,  # type: ignore[arg-type]
        reason=row.reason,
        actor=row.actor,
        at=clock.to_wire(row.at),
        details=None if row.details is None else msgspec.json.decode(row.details),
    )


def _time(stamp: int | None) -> str | None:
    return None if stamp is None else clock.to_wire(stamp)
