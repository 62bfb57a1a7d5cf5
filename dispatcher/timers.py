"""Timers: what is due by the clock happens on time - delayed runs, sleeps, timeouts of waits and runs, forced cancels.

One process keeps one alarm, for the earliest moment it knows of: its own writes bring it forward, and a look at the
database once a second finds what other dispatchers wrote. Whoever locks a run that is due fires it, once: the move
clears the moment.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from dispatcher import cancelling, errors, waking
from dispatcher.alarm import Alarm
from dispatcher.settings import Runs, Settings
from dispatcher.store import Session, Store, runs, waits
from dispatcher.waking import is_parked

_BATCH: Final = 100
_BATCHES: Final = 20
_HELD_MS: Final = 20  # somebody else holds a run that is due: the move may be under way, or end with nothing done
_FAILED_MS: Final = 1_000
_TRY_AGAIN_MS: Final = 60_000
_ACTOR: Final = "timers"

log = logging.getLogger(__name__)


class _Batch(NamedTuple):
    """What a transaction did, whose grace or time is over, when the next is due, and the moment all that was true."""

    fired: int
    taken: int
    overdue: list[str]
    expired: list[str]
    upcoming: int | None
    now: int


class FireTimers:
    """The daemon that wakes what is due; any number of replicas may run it at once."""

    name: Final = "fireTimers"

    def __init__(self, store: Store, runs: Runs | None = None) -> None:
        self._store = store
        self._grace_ms = (runs or Runs()).cancel_grace_ms
        self._alarm = Alarm()
        self._failed = False

    def reload(self, settings: Settings) -> None:
        """From the next tick on *settings* hold."""
        self._grace_ms = settings.runs.cancel_grace_ms

    async def once(self) -> dict[str, int]:
        """What one tick did: {fired, forced, expired, more, dueInMs}.

        `dueInMs` is the time until the next run is due, if any is known.
        """
        self._alarm.clear()
        self._failed = False
        fired = more = 0
        for _ in range(_BATCHES):
            batch = await self._fire()
            fired += batch.fired
            more = int(batch.taken == _BATCH)
            if not more:
                break
        forced = [await self._force(run_id, batch.now) for run_id in batch.overdue]
        expired = [await self._expire(run_id, batch.now) for run_id in batch.expired]
        counts = {"fired": fired, "forced": sum(forced), "expired": sum(expired), "more": more}
        if batch.upcoming is None:
            return counts
        self._alarm.found(batch.upcoming)
        late_ms = _FAILED_MS if self._failed else _HELD_MS
        return {**counts, "dueInMs": batch.upcoming - batch.now if batch.upcoming > batch.now else late_ms}

    def hears(self, wake_at: str) -> bool:
        """Whether a tick is needed for *wake_at*, which a write of this process announced."""
        return self._alarm.hears(wake_at)

    async def _fire(self) -> _Batch:
        """What a batch did; where it failed as a whole, what each of its runs did alone."""
        try:
            return await self._store.transact(_fire)
        except errors.Unavailable:
            raise
        except Exception:
            log.exception("timers failed, and are tried one by one")
        due = await self._store.transact(lambda session: waits.due(session, session.now(), _BATCH))
        fired = [await self._fire_alone(run_id) for run_id in due]
        batch = await self._store.transact(_look)
        return batch._replace(fired=sum(fired))

    async def _fire_alone(self, run_id: str) -> bool:
        """Whether the run was due and is queued; one that fails is looked at again in a while, and keeps nobody up."""
        try:
            return await self._store.transact(lambda session: _lock_and_fire(session, run_id))
        except errors.Unavailable:
            log.warning("a run that is due is held", extra={"run_id": run_id})
        except Exception:
            log.exception("a timer failed", extra={"run_id": run_id})
            await self._store.transact(lambda session: runs.set_wake_at(session, run_id, session.now() + _TRY_AGAIN_MS))
        return False

    async def _force(self, run_id: str, now: int) -> bool:
        """Whether the run was cancelled because its grace had passed."""
        return await self._alone(run_id, partial(cancelling.force, run_id=run_id, now=now, actor=_ACTOR))

    async def _expire(self, run_id: str, now: int) -> bool:
        """Whether the run was cancelled, or asked to cancel itself, because its time was up."""
        expire = partial(cancelling.expire, run_id=run_id, now=now, grace_ms=self._grace_ms, actor=_ACTOR)
        return await self._alone(run_id, expire)

    async def _alone(self, run_id: str, operation: Callable[[Session], bool]) -> bool:
        """What *operation* answers, in a transaction of its own: entry, then run."""
        try:
            return await self._store.transact(operation)
        except errors.Unavailable:
            log.warning("a run that was to be cancelled by now is held", extra={"run_id": run_id})
        except Exception:
            self._failed = True
            log.exception("a run could not be cancelled by the clock", extra={"run_id": run_id})
        return False


def _fire(session: Session) -> _Batch:
    now = session.now()
    due = waits.due(session, now, _BATCH)
    fired = sum(fire(session, run_id, now) for run_id in due)
    return _seen(session, now)._replace(fired=fired, taken=len(due))


def _look(session: Session) -> _Batch:
    return _seen(session, session.now())


def _seen(session: Session, now: int) -> _Batch:
    overdue, expired = waits.overdue(session, now, _BATCH), waits.expired(session, now, _BATCH)
    return _Batch(0, 0, overdue, expired, waits.next_due(session), now)


def _lock_and_fire(session: Session, run_id: str) -> bool:
    return runs.lock(session, run_id) is not None and fire(session, run_id, session.now())


def fire(session: Session, run_id: str, now: int) -> bool:
    """Whether the run, locked, was due at *now* and is queued."""
    run = runs.get(session, run_id)
    if run is None or run.wake_at is None or run.wake_at > now:
        return False
    if is_parked(run):
        return waking.wake(session, run, "due", actor=_ACTOR, now=now, waiting=waits.of_run(session, run_id))
    if run.status == "scheduled":
        waking.to_queue(session, run, "due", actor=_ACTOR, due_at=run.wake_at)
        return True
    # Moved by a dispatcher of a version that knows no timers: nobody waits for this moment any more.
    runs.set_wake_at(session, run_id, None)
    return False
