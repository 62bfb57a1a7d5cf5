"""Who gets what of the backlog: queues in turn, equal shares, a full endpoint's share to the next.

Each entry has a turn among the endpoints of its queue, one further at every redelivery. An endpoint leases the entries
whose turn it is; what a full one leaves is offered to the others.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from dispatcher import routing
from dispatcher.endpoints import RelayTarget
from dispatcher.queues import Queue
from dispatcher.settings import Route
from dispatcher.store import Session, backlog
from dispatcher.store.entries import Entry

BATCH: Final = 100


class Turn(NamedTuple):
    """The entries of *queue* whose turn is *way* of *ways*; `owner` is the endpoint whose turn that is."""

    queue: str
    way: int
    ways: int
    owner: str


class Leased(NamedTuple):
    """An entry published under its push number, and how many ways the deliveries of its queue can go."""

    entry: Entry
    ways: int


class Plan(NamedTuple):
    """What *target* may lease, in order: its own turns, and those of others it may stand in for."""

    target: RelayTarget
    own: list[Turn]
    others: list[Turn]


def plans(keys: Sequence[str], routes: Sequence[Route], targets: Sequence[RelayTarget]) -> list[Plan]:
    """One plan for each endpoint that serves any of the queues *keys*."""
    found: dict[str, Plan] = {}
    for key in keys:
        ways = routing.targets_for(Queue.from_key(key), routes, targets)
        turns = [Turn(key, way, len(ways), target.endpoint_id) for way, target in enumerate(ways)]
        for target in ways:
            plan = found.setdefault(target.endpoint_id, Plan(target, [], []))
            plan.own.extend(turn for turn in turns if turn.owner == target.endpoint_id)
            plan.others.extend(turn for turn in turns if turn.owner != target.endpoint_id)
    return list(found.values())


class Cursors:
    """Where each publisher's last lease ended among its queues, so that the next begins with the queue after it."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def in_turn(self, target: RelayTarget, turns: Sequence[Turn]) -> list[Turn]:
        """*turns*, those of the queues that come next first."""
        ordered = sorted(turns, key=lambda turn: turn.queue)
        start = bisect_right(ordered, self._last.get(target.endpoint_id, ""), key=lambda turn: turn.queue)
        return [*ordered[start:], *ordered[:start]]

    def note(self, target: RelayTarget, turns: Sequence[Turn], leased: Sequence[Leased]) -> None:
        """Of *turns*, in that order, the target leased these."""
        served = {item.entry.queue for item in leased}
        last = next((turn.queue for turn in reversed(turns) if turn.queue in served), None)
        if last is not None:
            self._last[target.endpoint_id] = last


def lease(
    session: Session, target: RelayTarget, turns: Sequence[Turn], *, hold_ms: int, room: int | None = None
) -> tuple[list[Leased], int]:
    """Due entries of *turns*, the most urgent first, published to the target for *hold_ms*; and the room left there.

    A broker has the *room* it is given. The row of an endpoint says its own, and stays locked to the end of the
    transaction: replicas never fill it twice.
    """
    if room is None:
        room = backlog.room(session, target.endpoint_id)
    if not room:
        return [], 0
    batch = min(room, BATCH)
    now = session.now()
    found: list[Leased] = []
    left = list(turns)
    # First an equal share for every turn, then what is left to whoever has more.
    for share in (-(-batch // len(turns)), batch):
        more: list[Turn] = []
        for turn in left:
            limit = min(share, batch - len(found))
            if limit > 0:
                some = _lease(session, target, turn, limit, now, now + hold_ms)
                found += some
                if len(some) == share:
                    more.append(turn)
        left = more
    found.sort(key=lambda leased: (leased.entry.rank, leased.entry.run_id))
    return found, room - len(found)


def _lease(session: Session, target: RelayTarget, turn: Turn, limit: int, now: int, until: int) -> list[Leased]:
    entries = backlog.lease(
        session,
        turn.queue,
        target.endpoint_id,
        way=turn.way,
        ways=turn.ways,
        limit=limit,
        now=now,
        until=until,
        route=target.type,
    )
    return [Leased(entry, turn.ways) for entry in entries]
