"""Recovery: claims gone silent are released, published entries past their deadline redelivered (I4, I5, I10, I11).

Ages count from `greatest(stamp, up_since)` by the database's clock. While this server cannot answer its own probe, or
after a time in which no server was up, nobody is stale.
"""

import asyncio
import logging
import math
import random
from typing import Final, NamedTuple

from dispatcher import backoff, endings, errors
from dispatcher import kills as killing
from dispatcher.settings import Publishing, Recovery, Settings, Stalling
from dispatcher.store import Session, Store, backlog, clock_steps, entries, fleet

_PROBE_SECONDS: Final = 1.0
_ROUNDING: Final = 1e-6
_REDELIVER_BATCH: Final = 500
_MISSED_INTERVALS: Final = 3
_BROKERS: Final = ("sqs", "redis", "memory")

log = logging.getLogger(__name__)


class Seen(NamedTuple):
    """The moment a tick judges by, when this server was known to be well: a freeze after it makes nobody older."""

    now: int
    up_since: int


class RecoverOverdueOutboxEntries:
    """The daemon behind `daemons.recoverOverdueOutboxEntries`; any number of replicas may run it at once."""

    name: Final = "recoverOverdueOutboxEntries"

    def __init__(self, store: Store, recovery: Recovery, publishing: Publishing, stalling: Stalling) -> None:
        self._store = store
        self._recovery = recovery
        self._publishing = publishing
        self._stalling = stalling

    async def once(self) -> dict[str, int]:
        """What one tick did: {paused, released, stalled, redelivered, more}.

        `more` asks for another tick soon: the pace, not a lack of work, ended this one.
        """
        if not await self._probe():
            return {"paused": 1, "more": 0}
        seen = await self._store.transact(self._tick)
        released, stalled, more = await self._store.transact(lambda session: self._release(session, seen))
        redelivered = await self._store.transact(lambda session: self._redeliver(session, seen))
        more = more or redelivered == _REDELIVER_BATCH
        return {"released": released, "stalled": stalled, "redelivered": redelivered, "more": int(more)}

    def reload(self, settings: Settings) -> None:
        """From the next tick on *settings* hold."""
        self._recovery = settings.recovery
        self._publishing = settings.publishing
        self._stalling = settings.stalling

    async def _probe(self) -> bool:
        """Whether the pool the API uses answers within a second; if not, executors may be refreshing in vain."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await self._store.transact(lambda session: session.now())
        except (TimeoutError, errors.Unavailable):
            log.warning("recovery pauses: this server's own database pool does not answer")
            return False
        return True

    def _tick(self, session: Session) -> Seen:
        row = fleet.lock(session)
        now = session.now()
        gap = now - row.seen_at
        if gap < 0:
            clock_steps.clamp(session, now, by=-gap)
        outage = gap < 0 or gap > _MISSED_INTERVALS * self._recovery.interval_ms
        up_since = now if outage or row.up_since > now else row.up_since
        fleet.tick(session, seen_at=now, up_since=up_since)
        return Seen(now, up_since)

    def _release(self, session: Session, seen: Seen) -> tuple[int, int, bool]:
        row = fleet.lock(session)
        now = session.now()
        allowed, slot_at, step_ms = _slots(row.release_slot_at, now, self._recovery.max_releases_per_second)
        found = [] if allowed < 1 else self._stale(session, seen, allowed)
        released = sum(self._release_one(session, entry, now) for entry in found)
        fleet.take_slots(session, math.ceil(slot_at + len(found) * step_ms))
        return released, len(found) - released, len(found) == allowed or allowed < 1

    def _stale(self, session: Session, seen: Seen, limit: int) -> list[entries.Entry]:
        now, up_since = seen
        idle_before = now - self._recovery.claim_idle_timeout_ms
        silent_before = now - self._recovery.max_silence_ms
        # greatest(stamp, up_since) < limit holds only when both are below it.
        return backlog.stale(
            session,
            now=now,
            idle_before=idle_before if up_since < idle_before else 0,
            silent_before=silent_before if up_since < silent_before else 0,
            limit=limit,
        )

    def _release_one(self, session: Session, entry: entries.Entry, now: int) -> bool:
        kills = entry.kills + 1
        publishing = self._publishing
        delay_ms = backoff.after_kills(
            kills,
            publishing.base_backoff_ms,
            publishing.max_backoff_ms,
            random.random(),  # noqa: S311 - jitter, not a secret
        )
        log.info("claim released", extra={"run_id": entry.run_id, "revision": entry.revision + 1, "kills": kills})
        return endings.release(
            session,
            self._stalling,
            entry,
            reason="claim_stale",
            actor="recovery",
            request_id=None,
            delay_ms=delay_ms,
            endings=entry.endings + 1,
            kills=kills,
            at=now,
            kill=killing.of(session, entry, "claim_stale", now),
        )

    def _redeliver(self, session: Session, seen: Seen) -> int:
        now, up_since = seen
        if now - up_since < self._publishing.claim_deadline_ms:
            return 0
        found = backlog.overdue(session, before=now, limit=_REDELIVER_BATCH)
        pushes = [overdue.entry for overdue in found if _is_counted(overdue)]
        lost = [overdue.entry for overdue in found if not _is_counted(overdue)]
        entries.unpublish_copies(session, [entries.Handed(entry, now, entry.failures) for entry in lost])
        for entry in pushes:
            endings.unpublish(
                session, self._publishing, self._stalling, entry, reason="unclaimed", counted=True, delay_ms=None
            )
        return len(found)


def _is_counted(overdue: backlog.Overdue) -> bool:
    """Whether an executor should have claimed: a broker may lose everything, and a publisher that went away did."""
    return overdue.has_publisher and overdue.entry.route not in _BROKERS


def _slots(slot_at: int, now: int, per_second: int) -> tuple[int, float, float]:
    """How many releases the fleet may make now, where its pace stands, and how far each moves it, in milliseconds.

    A generic cell rate: up to a tenth of a second's worth may go at once, and the step leaves room for that, so that
    no second, wherever it begins, sees more than *per_second*.
    """
    batch = max(1, per_second // 10)
    step_ms = 1_000 / (per_second - batch + 1)
    start = max(float(slot_at), float(now))
    if slot_at > now + 10_000:
        start = float(now)  # the clock was stepped back; a slot far ahead would stop recovery for as long
    room = (now + batch * step_ms - start) / step_ms
    return int(room + _ROUNDING), start, step_ms
