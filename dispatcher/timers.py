"""Timers: what is due by the clock starts on time - delayed runs, sleeps, timeouts of waits, retries, forced cancels.

One process keeps one alarm, for the earliest moment it knows of: its own writes bring it forward, and a look at the
database once a second finds what other dispatchers wrote. Whoever locks a run that is due fires it, once: the move
clears the moment.
"""

import logging
from functools import partial
from typing import Final, NamedTuple

from dispatcher import cancelling, errors, waking
from dispatcher.store import Session, Store, runs, waits
from dispatcher.waking import is_parked

_BATCH: Final = 100
_BATCHES: Final = 20
_HELD_MS: Final = 20  # somebody else holds a run that is due: the move may be under way, or end with nothing done
_ACTOR: Final = "timers"

log = logging.getLogger(__name__)


class _Batch(NamedTuple):
    """What a transaction did, whose grace is over, when the next run is due, and the moment all that was true."""

    fired: int
    taken: int
    overdue: list[str]
    upcoming: int | None
    now: int


class FireTimers:
    """The daemon that wakes what is due; any number of replicas may run it at once."""

    name: Final = "fireTimers"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._alarm_at: int | None = None

    async def once(self) -> dict[str, int]:
        """What one tick did: {fired, forced, more, dueInMs}.

        `dueInMs` is the time until the next run is due, if any is known.
        """
        self._alarm_at = None
        fired = more = 0
        for _ in range(_BATCHES):
            batch = await self._store.transact(_fire)
            fired += batch.fired
            more = int(batch.taken == _BATCH)
            if not more:
                break
        forced = [await self._force(run_id, batch.now) for run_id in batch.overdue]
        counts = {"fired": fired, "forced": sum(forced), "more": more}
        if batch.upcoming is None:
            return counts
        self._alarm_at = batch.upcoming if self._alarm_at is None else min(batch.upcoming, self._alarm_at)
        return {**counts, "dueInMs": batch.upcoming - batch.now if batch.upcoming > batch.now else _HELD_MS}

    def hears(self, wake_at: str) -> bool:
        """Whether a tick is needed for *wake_at*, which a write of this process announced: it is the earliest known."""
        moment = int(wake_at)
        if self._alarm_at is not None and self._alarm_at <= moment:
            return False
        self._alarm_at = moment
        return True

    async def _force(self, run_id: str, now: int) -> bool:
        """Whether the run was cancelled because its grace had passed. A transaction of its own: entry, then run."""
        try:
            return await self._store.transact(partial(cancelling.force, run_id=run_id, now=now, actor=_ACTOR))
        except errors.Unavailable:
            log.warning("a run that was to be cancelled by now is held", extra={"run_id": run_id})
            return False


def _fire(session: Session) -> _Batch:
    now = session.now()
    due = waits.due(session, now, _BATCH)
    fired = sum(fire(session, run_id, now) for run_id in due)
    return _Batch(fired, len(due), waits.overdue(session, now, _BATCH), waits.next_due(session), now)


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
