"""Stalling what nobody can deliver: runs that waited too long, or whose deliveries ended too often (I10)."""

import logging
from typing import Final

from dispatcher import endings
from dispatcher.settings import Settings, Stalling
from dispatcher.store import Session, Store, backlog, entries, fleet

_BATCH: Final = 200

log = logging.getLogger(__name__)


class StallUndeliverableRuns:
    """The daemon behind `daemons.stallUndeliverableRuns`; age is time since the run last became queued."""

    name: Final = "stallUndeliverableRuns"

    def __init__(self, store: Store, stalling: Stalling) -> None:
        self._store = store
        self._stalling = stalling

    async def once(self) -> dict[str, int]:
        """What one tick did: {stalled, more}."""
        stalled = await self._store.transact(self._stall)
        return {"stalled": stalled, "more": int(stalled == _BATCH)}

    def reload(self, settings: Settings) -> None:
        """From the next tick on *settings* hold."""
        self._stalling = settings.stalling

    def _stall(self, session: Session) -> int:
        now = session.now()
        before = now - self._stalling.max_age_ms
        # Waiting while no dispatcher was up is not the run's fault (I11).
        found = backlog.undeliverable(
            session,
            queued_before=before if fleet.get(session).up_since < before else 0,
            endings=self._stalling.max_endings_without_progress,
            limit=_BATCH,
        )
        for entry in found:
            endings.stall(session, entry, "undeliverable", _facts(entry, now), actor="stalling")
            log.warning("run stalled", extra={"run_id": entry.run_id, "revision": entry.revision + 1})
        return len(found)


def _facts(entry: entries.Entry, now: int) -> dict[str, int]:
    return {
        "waitedMs": now - entry.queued_at,
        "endings": entry.endings,
        "kills": entry.kills,
        "deliveries": entry.push_number,
    }
