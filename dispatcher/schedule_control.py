"""What an operator does to a schedule: run it now, pause and resume it, start occurrences that are past, change it.

A schedule of the configuration file or of the code is changed there; here it can be paused, resumed, run and
backfilled.
"""

from itertools import islice, takewhile
from typing import Final

import msgspec

from dispatcher import errors, schedules, settings_schedules
from dispatcher.queues import Queue
from dispatcher.registry import Registry
from dispatcher.runs import find
from dispatcher.runs import view as run_view
from dispatcher.schedule_firing import birth_of, born
from dispatcher.schedule_owners import first, put
from dispatcher.schedule_views import not_found, view
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, fleet
from dispatcher.store import schedules as schedule_store
from dispatcher.store.schedules import Definition, Row
from dispatcher.submission import born as born_run
from endpoint_sdk.wire import clock, limits
from endpoint_sdk.wire.operating import Submitted
from endpoint_sdk.wire.scheduling import Backfill, Backfilled, BackfilledRun, PutSchedule, RunNow, ScheduleView

MAX_BACKFILL: Final = 500


async def run_now(
    store: Store, registry: Registry, settings: Settings, namespace: str, name: str, request: RunNow, actor: str
) -> tuple[Submitted, bool]:
    """A run of the schedule is queued now, whatever runs and whether it is paused; its occurrences stay as they are.

    Answers the run, and whether an earlier copy of the request had made it. Raises NotFound `schedule_not_found`,
    Unprocessable `version_unknown`, Conflict `idempotency_conflict`.
    """
    version = await _version(store, registry, namespace, name)

    def operation(session: Session) -> tuple[Submitted, bool]:
        row = _locked(session, namespace, name)
        birth = msgspec.structs.replace(
            birth_of(row, version, session.now()),
            idempotency_key=None,
            request_id=request.request_id,
            due_at=None,
            scheduled_for=None,
        )
        done = born_run(session, birth, actor, session.now())
        run, entry = find(session, namespace, done.run.id)
        return Submitted(run_view(run, entry, settings.recovery), done.created), done.existed

    return await store.transact(operation)


async def backfill(store: Store, registry: Registry, namespace: str, name: str, request: Backfill) -> Backfilled:
    """Each occurrence of the range has a run, queued now unless it was started before; those to come are left out.

    Raises BadRequest `malformed`, NotFound `schedule_not_found`, Unprocessable (`backfill_too_long`: more than 500
    occurrences, `version_unknown`, `schedule_invalid`).
    """
    begin, end = _moment(request.from_, "from"), _moment(request.to, "to")
    if begin >= end:
        raise errors.BadRequest("malformed", "from has to be earlier than to")
    version = await _version(store, registry, namespace, name)

    def operation(session: Session) -> Backfilled:
        row, now = _locked(session, namespace, name), session.now()
        rule = schedules.rule(row.cron, row.timezone, row.every_ms)
        last = min(end, now + 1)
        try:
            # Times before 1970 have no words on the wire.
            found = list(islice(takewhile(lambda at: at < last, rule.after(max(begin, 0) - 1)), MAX_BACKFILL + 1))
        except schedules.BrokenRuleError as error:
            raise errors.Unprocessable("schedule_invalid", str(error)) from None
        if len(found) > MAX_BACKFILL:
            raise errors.Unprocessable(
                "backfill_too_long",
                f"There are more than {MAX_BACKFILL} occurrences from {request.from_} to {request.to}.",
                hint=f"Begin with a part of them: the 500th is at {clock.to_wire(found[-2])}.",
            )
        return Backfilled([_backfilled(session, row, version, at, now) for at in found])

    return await store.transact(operation)


async def pause(store: Store, namespace: str, name: str) -> ScheduleView:
    """The schedule starts nothing until it is resumed; what comes due meanwhile is never made up for.

    Raises NotFound `schedule_not_found`.
    """

    def operation(session: Session) -> ScheduleView:
        row = _locked(session, namespace, name)
        if not row.paused:
            schedule_store.set_paused(session, row, paused=True)
        return view(session, _locked(session, namespace, name))

    return await store.transact(operation)


async def resume(store: Store, namespace: str, name: str) -> ScheduleView:
    """The paused schedule goes on with its next occurrence from now; one that is not paused stays as it is.

    Raises NotFound `schedule_not_found`.
    """

    def operation(session: Session) -> ScheduleView:
        row = _locked(session, namespace, name)
        if row.paused:
            schedule_store.set_paused(session, row, paused=False)
            if row.active:
                state = first(row, session.now())
                schedule_store.set_state(session, row, state)
                if state.wake_at is not None:
                    session.announce("schedule", str(state.wake_at))
        return view(session, _locked(session, namespace, name))

    return await store.transact(operation)


async def define(store: Store, namespace: str, name: str, request: PutSchedule) -> tuple[ScheduleView, bool]:
    """The schedule of the API is as asked for, from now on; and whether it is new.

    Raises Conflict (`schedule_owned_by_yaml`, `schedule_owned_by_code`), TooLarge, Unprocessable (`schedule_invalid`,
    `timezone_unknown`, `tags_too_many`, `queue_too_long`).
    """
    given = _checked(namespace, name, request)

    def operation(session: Session) -> tuple[ScheduleView, bool]:
        fleet.lock(session)  # two that take the same name at once queue here
        row = schedule_store.lock(session, namespace, name)
        if row is not None:
            _check_owner(row)
        put(session, given, "api")
        return view(session, _locked(session, namespace, name)), row is None

    return await store.transact(operation)


async def delete(store: Store, namespace: str, name: str) -> None:
    """There is no such schedule any more; runs it started go on. One that code left behind can be deleted, too.

    Raises NotFound `schedule_not_found`, Conflict (`schedule_owned_by_yaml`, `schedule_owned_by_code`).
    """

    def operation(session: Session) -> None:
        row = _locked(session, namespace, name)
        if row.active:
            _check_owner(row)
        schedule_store.delete(session, namespace, name)

    await store.transact(operation)


def _locked(session: Session, namespace: str, name: str) -> Row:
    row = schedule_store.lock(session, namespace, name)
    if row is None:
        raise not_found(name)
    return row


async def _version(store: Store, registry: Registry, namespace: str, name: str) -> str:
    row = await store.transact(lambda session: schedule_store.get(session, namespace, name))
    if row is None:
        raise not_found(name)
    version = row.version or await registry.default_version(namespace, row.workflow)
    if version is None:
        raise errors.Unprocessable(
            "version_unknown",
            f"Nobody has served the workflow {row.workflow!r}, so its version is not known.",
            hint="Name a version in the schedule, or add the endpoint first.",
        )
    return version


def _backfilled(session: Session, row: Row, version: str, at: int, now: int) -> BackfilledRun:
    # Ranked by now: what is long past would be handed out before everything else.
    birth = msgspec.structs.replace(birth_of(row, version, at), due_at=None)
    run_id, created = born(session, birth, now)
    return BackfilledRun(run_id, clock.to_wire(at), created)


def _moment(text: str, name: str) -> int:
    try:
        return clock.from_wire(text)
    except ValueError:
        raise errors.BadRequest(
            "malformed",
            f"{name} is not an RFC 3339 time with its offset",
            hint="for example 2026-12-24T18:00:00Z",
        ) from None


def _checked(namespace: str, name: str, request: PutSchedule) -> Definition:
    payload = b"null" if isinstance(request.input, msgspec.UnsetType) else bytes(request.input)
    if len(payload) > limits.MAX_PAYLOAD:
        raise errors.TooLarge("payload_too_large", f"input has {len(payload)} bytes, at most {limits.MAX_PAYLOAD}")
    if len(request.tags) > limits.MAX_TAGS:
        raise errors.Unprocessable("tags_too_many", f"a run has at most {limits.MAX_TAGS} tags")
    _check_rule(request)
    Queue(namespace, request.workflow, request.version or "", request.pool).checked_key()
    return Definition(
        namespace=namespace,
        name=name,
        workflow=request.workflow,
        version=request.version,
        cron=request.cron,
        timezone=request.timezone,
        every_ms=request.every_ms,
        input=payload,
        pool=request.pool,
        tags=msgspec.json.encode(request.tags, order="sorted").decode(),
        priority=request.priority,
        overlap=request.overlap,
        catch_up=request.catch_up,
        jitter_ms=request.jitter_ms,
    )


def _check_rule(request: PutSchedule) -> None:
    if (request.cron is None) == (request.every_ms is None):
        raise errors.Unprocessable("schedule_invalid", "A schedule has cron or everyMs, one of the two.")
    if request.cron is not None and (fault := schedules.cron_fault(request.cron)):
        raise errors.Unprocessable("schedule_invalid", fault, hint="For example 0 7 * * 1-5: at seven on weekdays.")
    if fault := schedules.timezone_fault(request.timezone):
        near = settings_schedules.nearest_timezone(request.timezone)
        raise errors.Unprocessable(
            "timezone_unknown", fault, hint=f"Did you mean {near!r}?" if near else "For example Europe/Berlin, or UTC."
        )


def _check_owner(row: Row) -> None:
    if row.owner == "yaml":
        raise errors.Conflict(
            "schedule_owned_by_yaml",
            f"The schedule {row.name!r} is described in the configuration file.",
            hint="Change it there; pause, resume, run-now and backfill work here.",
        )
    if row.owner == "code":
        raise errors.Conflict(
            "schedule_owned_by_code",
            f"The schedule {row.name!r} is declared by the code of workflow {row.workflow!r}.",
            hint="Change it there; pause, resume, run-now and backfill work here.",
        )
