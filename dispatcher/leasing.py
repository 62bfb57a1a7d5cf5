"""Who gets what of the backlog: queues in turn, equal shares, a full endpoint's share to the next.

Each entry has a turn among the endpoints of its queue, one further at every redelivery. An endpoint leases the entries
whose turn it is; what a full one leaves is offered to the others.
"""

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


def lease(session: Session, endpoint_id: str, turns: Sequence[Turn], *, hold_ms: int) -> tuple[list[Entry], int]:
    """Due entries of *turns*, now published to the endpoint for *hold_ms*, and the room that is left there.

    Its row stays locked to the end of the transaction: replicas never fill it twice.
    """
    room = backlog.room(session, endpoint_id)
    if not room:
        return [], 0
    batch = min(room, BATCH)
    now = session.now()
    found: list[Entry] = []
    # First an equal share for every turn, then what is left to whoever has more.
    for share in (-(-batch // len(turns)), batch):
        for queue, way, ways, _ in turns:
            limit = min(share, batch - len(found))
            if limit > 0:
                found += backlog.lease(
                    session, queue, endpoint_id, way=way, ways=ways, limit=limit, now=now, until=now + hold_ms
                )
        if len(turns) == 1:
            break
    return found, room - len(found)
