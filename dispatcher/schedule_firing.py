"""Firing schedules: each occurrence starts one run, once, whoever looks, and within moments of its time.

As the timers do, one process keeps one alarm for the earliest moment it knows of. A schedule is fired in a transaction
of its own that locks it, stores its runs and moves it on, so that one that is broken holds up no other.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from dispatcher import cancelling, errors, schedules, submission
from dispatcher.alarm import Alarm
from dispatcher.queues import Queue
from dispatcher.schedule_owners import RETRY_MS, first
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, runs
from dispatcher.store import schedules as schedule_store
from dispatcher.store.schedules import Key, Row, State
from endpoint_sdk.wire import identity

_BATCH: Final = 100
_BATCHES: Final = 10
_AT_ONCE: Final = 4
_HELD_MS: Final = 20  # somebody else fires a schedule that is due, or it could not be fired just now
_CANCELLED: Final = 100  # of the runs that an occurrence takes the place of, so many at most

_Versions = Callable[[str, str], Awaitable[str | None]]

log = logging.getLogger(__name__)


class Fired(NamedTuple):
    """What became of the occurrences of a schedule that were due; *problem* is new if there is one."""

    started: int = 0
    skipped: int = 0
    problem: str | None = None


class FireSchedules:
    """The daemon that starts what schedules say; any number of replicas may run it at once."""

    name: Final = "fireSchedules"

    def __init__(self, store: Store, settings: Settings, default_version: _Versions) -> None:
        self._store = store
        self._grace_ms = settings.runs.cancel_grace_ms
        self._default_version = default_version
        self._alarm = Alarm()

    def reload(self, settings: Settings) -> None:
        """From the next occurrence on *settings* hold."""
        self._grace_ms = settings.runs.cancel_grace_ms

    def hears(self, wake_at: str) -> bool:
        """Whether a tick is needed for *wake_at*, which a write of this process announced."""
        return self._alarm.hears(wake_at)

    async def once(self) -> dict[str, int]:
        """What one tick did: {started, skipped, more, dueInMs}; the last until the next occurrence, if any."""
        self._alarm.clear()
        started = skipped = more = 0
        for _ in range(_BATCHES):
            due = await self._store.transact(_due)
            fired = await self._fire_all(due)
            started += sum(item.started for item in fired)
            skipped += sum(item.skipped for item in fired)
            more = int(len(due) == _BATCH)
            if not more or not fired:
                break
        counts = {"started": started, "skipped": skipped, "more": more}
        now, upcoming = await self._store.transact(_upcoming)
        if upcoming is None:
            return counts
        self._alarm.found(upcoming)
        return {**counts, "dueInMs": upcoming - now if upcoming > now else _HELD_MS}

    async def _fire_all(self, due: list[Key]) -> list[Fired]:
        """What was fired, by this process and now."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def fire_one(key: Key) -> Fired | None:
            async with gate:
                return await self._fire(key)

        found = await asyncio.gather(*(fire_one(key) for key in due))
        return [item for item in found if item is not None]

    async def _fire(self, key: Key) -> Fired | None:
        try:
            version = key.version or await self._default_version(key.namespace, key.workflow)
            fired = await self._store.transact(partial(fire, key=key, version=version, grace_ms=self._grace_ms))
        except errors.Unavailable as error:
            log.warning("schedule not fired for now", extra={"schedule": key.name, "cause": error.message})
            return None
        except errors.Refusal as refusal:
            fired = await self._set_aside(key, f"Its run was refused: {refusal.message}")
        except Exception as error:
            log.exception("schedule not fired", extra={"schedule": key.name})
            fired = await self._set_aside(key, f"It could not be started: {type(error).__name__}.")
        if fired is not None and fired.problem is not None:
            log.warning("schedule cannot start", extra={"schedule": key.name, "problem": fired.problem})
        return fired

    async def _set_aside(self, key: Key, problem: str) -> Fired | None:
        """The schedule is looked at again later: what is wrong with it is its own affair."""
        try:
            return await self._store.transact(partial(_delay, key=key, problem=problem))
        except errors.Unavailable:
            return None


def fire(session: Session, key: Key, version: str | None, grace_ms: int) -> Fired | None:
    """What is due of the schedule has started, or never will; None if it is not due, or somebody else is at it.

    Raises Refusal for a run that cannot be stored.
    """
    row, now = schedule_store.lock_if_free(session, key.namespace, key.name), session.now()
    if row is None or row.paused or row.wake_at is None or row.wake_at > now:
        return None
    if row.next_at is None:
        state = first(row, now)
        schedule_store.set_state(session, row, state)
        return Fired(problem=state.problem if state.problem != row.problem else None)
    rule = schedules.rule(row.cron, row.timezone, row.every_ms)
    try:
        due = schedules.due(rule, row.next_at, now, row.catch_up)
    except schedules.BrokenRuleError as error:
        return _put_off(session, row, str(error), now)
    version = row.version or (version if row.workflow == key.workflow else None)
    if due.start and version is None:
        problem = f"Nobody has served the workflow {row.workflow!r}, so its version is not known."
        return _put_off(session, row, problem, now)
    ran = [run for at in due.start if version and (run := _start(session, row, version, at, now, grace_ms))]
    skipped = due.skipped + len(due.start) - len(ran)
    state = State(due.next_at, due.next_at, None if due.next_at is not None else "It never comes round again.")
    schedule_store.advance(session, row, state, skipped=skipped, last=ran[-1] if ran else None)
    return Fired(len(ran), skipped)


def birth_of(row: Row, version: str, at: int) -> runs.Birth:
    """What is born for the occurrence *at*. Raises Unprocessable `queue_too_long`."""
    Queue(row.namespace, row.workflow, version, row.pool).checked_key()
    return runs.Birth(
        id=identity.new("run"),
        namespace=row.namespace,
        workflow=row.workflow,
        version=version,
        priority=row.priority,
        pool=row.pool,
        tags=row.tags,
        idempotency_key=key_of(row, at),
        request_id=None,
        input=row.input,
        due_at=at + schedules.jitter(row.namespace, row.name, at, row.jitter_ms),
        scheduled_for=at,
        schedule=row.name,
    )


def born(session: Session, birth: runs.Birth, now: int) -> tuple[str, bool]:
    """The id of the one run of an occurrence, and whether it was born now. Raises Unavailable."""
    try:
        done = submission.born(session, birth, f"schedule:{birth.schedule}", now)
    except errors.Conflict as conflict:  # it was born with the input the schedule had then
        return str((conflict.details or {})["runId"]), False
    return done.run.id, done.created


def key_of(row: Row, at: int) -> str:
    """The idempotency key of the run of an occurrence."""
    return f"schedule:{row.name}:{at}"


def _start(session: Session, row: Row, version: str, at: int, now: int, grace_ms: int) -> tuple[int, str] | None:
    """The occurrence and its run, or None if another run of the schedule stands in its way."""
    if row.overlap == "skip" and schedule_store.is_live(session, row.namespace, row.name):
        run = runs.by_idempotency_key(session, row.namespace, row.workflow, key_of(row, at))
        return None if run is None else (at, run.id)
    if row.overlap == "cancel_previous":
        for run_id in schedule_store.live(session, row.namespace, row.name, _CANCELLED):
            cancelling.request(session, run_id, "overtaken", grace_ms, actor=f"schedule:{row.name}")
    return at, born(session, birth_of(row, version, at), now)[0]


def _delay(session: Session, key: Key, problem: str) -> Fired | None:
    row = schedule_store.lock_if_free(session, key.namespace, key.name)
    return None if row is None else _put_off(session, row, problem, session.now())


def _put_off(session: Session, row: Row, problem: str, now: int) -> Fired:
    schedule_store.set_state(session, row, State(row.next_at, now + RETRY_MS, problem))
    return Fired(problem=problem if problem != row.problem else None)


def _due(session: Session) -> list[Key]:
    return schedule_store.due(session, session.now(), _BATCH)


def _upcoming(session: Session) -> tuple[int, int | None]:
    now = session.now()
    return now, schedule_store.upcoming(session)
