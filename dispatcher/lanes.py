"""Opening the places of lanes: runs held back become deliverable, as many at once as their workflow declares.

A place is taken by an entry that is not held back. It is freed when the entry goes: the run has ended, parked, paused
or stalled. A released claim keeps its place (infra/docs/concurrency.md).
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from dispatcher import lane_keys
from dispatcher.store import Session, Store, declarations, lanes
from dispatcher.store.endpoints import EVERYWHERE
from endpoint_sdk.wire.messages import ServedWorkflow

_LOOK_SECONDS: Final = 0.9
_LANES: Final = 20
_LOOKED_AT: Final = 500
_MOST_OPENED: Final = 500
_DECODER: Final = msgspec.json.Decoder(ServedWorkflow)


class OpenPlaces:
    """The daemon that opens places; any number of replicas may run it at once.

    It looks at the lanes it hears of, and every *look_seconds* at those that hold runs back: another replica may have
    freed a place, or a new limit been declared.
    """

    name: Final = "openPlaces"

    def __init__(
        self, store: Store, *, look_seconds: float = _LOOK_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._look_seconds = look_seconds
        self._clock = clock
        self._heard: set[str] = set()
        self._look_at = 0.0
        self._after = ""

    def hears(self, lane: str) -> None:
        """The next tick looks at *lane*: somebody waits for a place in it, or one is free."""
        self._heard.add(lane)

    async def once(self) -> dict[str, int]:
        """What one tick did: {opened, more}."""
        heard, self._heard = self._heard, set()
        if self._clock() >= self._look_at:
            found, self._after = await self._store.transact(partial(_look, after=self._after))
            self._look_at = self._clock() + self._look_seconds
            heard |= found
        ordered, opened = sorted(heard), 0
        for place in range(0, len(ordered), _LANES):
            counts = await self._store.transact(partial(_open, keys=ordered[place : place + _LANES]))
            opened += sum(counts.values())
            self._heard.update(lane for lane, count in counts.items() if count == _MOST_OPENED)
        return {"opened": opened, "more": int(bool(self._heard))}


class Limits:
    """How many places lanes have, as of one transaction: what each workflow declares is read once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[tuple[str, str], ServedWorkflow | None] = {}

    def of(self, lane: str, otherwise: int | None) -> int | None:
        """What was declared last of the lane's workflow counts, for all its runs; None if that declares no bound.

        A lane of no workflow that is known has *otherwise* places: as many as the run that waits in it was born with.
        """
        named = lane_keys.of_workflow(lane)
        declared = None if named is None else self._declared(named.namespace, named.workflow)
        if declared is None:
            return otherwise
        return None if declared.concurrency is None else declared.concurrency.limit

    def has_room(self, row: lanes.Waiting) -> bool:
        """Whether a place of the lane is free."""
        limit = self.of(row.lane, row.limit)
        return limit is None or row.taken < limit

    def _declared(self, namespace: str, workflow: str) -> ServedWorkflow | None:
        key = namespace, workflow
        if key not in self._known:
            rows = declarations.of_workflow(self._session, namespace, EVERYWHERE, workflow)
            self._known[key] = _DECODER.decode(rows[0].declared) if rows else None
        return self._known[key]


def _look(session: Session, after: str) -> tuple[set[str], str]:
    """The lanes beyond *after* that hold runs back and have room for them, and where the next look goes on."""
    found = lanes.waiting(session, after, _LOOKED_AT)
    limits = Limits(session)
    last = found[-1].lane if len(found) == _LOOKED_AT else ""
    return {row.lane for row in found if limits.has_room(row)}, last


def _open(session: Session, keys: Sequence[str]) -> dict[str, int]:
    """How many runs of each lane have got a place; the lanes are in the order of their keys."""
    limits = Limits(session)
    return {lane: _open_lane(session, lane, limits) for lane in keys}


def _open_lane(session: Session, lane: str, limits: Limits) -> int:
    first = lanes.first(session, lane)
    if first is None:
        return 0
    lanes.lock(session, lane)
    # Counted only now: what others had opened before the lock was ours is seen.
    taken = lanes.taken(session, lane)
    limit = limits.of(lane, first.limit)
    free = _MOST_OPENED if limit is None else min(limit - taken, _MOST_OPENED)
    if free <= 0:
        return 0
    opened = lanes.open_places(session, lane, free)
    for entry in opened:
        session.announce("queued", entry.run_id)
    for queue in {entry.queue for entry in opened}:
        session.announce("backlog", queue)
    return len(opened)
