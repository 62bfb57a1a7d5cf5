"""Reading the outbox as a backlog: what is due, what to lease, what has gone stale or overdue.

Nothing here filters on a volatile clock inside an index condition: callers read the database's clock first and pass it.
"""

from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from dispatcher.store.entries import COLUMNS, Entry
from dispatcher.store.schema import CLAIMED, HAS_PLACE, PENDING, PUBLISHED, endpoint, now
from dispatcher.store.schema import outbox_entry as t
from dispatcher.store.session import Session, Statement


def _int(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=sa.BigInteger())


HEAD: Final = 500
"""How far into a queue a turn of several is looked for: the oldest go first, whoever's turn they are."""


_pending: Final = sa.and_(t.c.status == PENDING, HAS_PLACE)


def _queues() -> sa.Select[Any]:
    """Every queue with a due entry, one index probe a queue however long the backlog."""
    first = sa.select(sa.func.min(t.c.queue).label("queue")).where(_pending)
    walk = first.cte("walk", recursive=True)
    following = sa.select(sa.func.min(t.c.queue)).where(_pending, t.c.queue > walk.c.queue).scalar_subquery()
    walk = walk.union_all(sa.select(following).where(walk.c.queue.is_not(None)))
    # As a scalar subquery the clock is read once, not for every entry.
    due = t.c.next_publish_at <= sa.select(now).scalar_subquery()
    return sa.select(walk.c.queue).where(sa.exists().where(_pending, t.c.queue == walk.c.queue, due))


_QUEUES: Final = Statement(_queues())
_LOCK_ENDPOINT: Final = Statement(
    sa.select(endpoint.c.max_in_flight).where(endpoint.c.id == sa.bindparam("b_id")).with_for_update()
)
_IN_FLIGHT: Final = Statement(
    sa.select(sa.func.count())
    .select_from(t)
    .where(
        t.c.publisher == sa.bindparam("b_id"),
        sa.literal_column("status <> 'pending'"),
        # What a broker of that name holds takes no place; what code before the routes leased does.
        sa.func.coalesce(t.c.route, "push") == "push",
    )
)
_is_due: Final = sa.and_(_pending, t.c.queue == sa.bindparam("b_queue"), t.c.next_publish_at <= _int("b_now"))
_HEAD: Final = (
    sa.select(t.c.run_id)
    .where(_is_due)
    .order_by(t.c.rank, t.c.run_id)
    .limit(HEAD)
    .cte("head")
    .prefix_with("MATERIALIZED")
)
# Says what `_is_due` does of an entry at the head, in words no index but the primary key's can answer: a planner that
# knows the table while it was small would read the whole backlog and look for each entry in its head.
_is_its_turn: Final = sa.and_(
    t.c.run_id.in_(sa.select(_HEAD.c.run_id)),
    t.c.status.not_in([PUBLISHED, CLAIMED]),
    HAS_PLACE,
    t.c.next_publish_at <= _int("b_now"),
    t.c.publisher_index % _int("b_ways") == _int("b_way"),
)


def _lease(condition: sa.ColumnElement[bool]) -> Statement:
    due = (
        sa.select(t.c.run_id)
        .where(condition)
        .order_by(t.c.rank, t.c.run_id)
        .limit(_int("b_limit"))
        .with_for_update(skip_locked=True)
        .cte("due")
        .prefix_with("MATERIALIZED")
    )
    return Statement(
        sa.update(t)
        .where(t.c.run_id == due.c.run_id)
        .values(
            status=PUBLISHED,
            push_number=t.c.push_number + 1,
            publisher=sa.bindparam("b_id"),
            route=sa.bindparam("b_route"),
            published_at=_int("b_now"),
            next_publish_at=_int("b_until"),
        )
        .returning(*COLUMNS)
    )


_LEASE_ALL: Final = _lease(_is_due)
_LEASE_TURN: Final = _lease(_is_its_turn)
_ALIVE_AT: Final = sa.case((t.c.refreshed_at < _int("b_now"), t.c.refreshed_at), else_=_int("b_now"))
_PROGRESS_AT: Final = sa.func.coalesce(t.c.recorded_at, t.c.claimed_at)
_STALE: Final = Statement(
    sa.select(*COLUMNS)
    .where(
        t.c.status == CLAIMED,
        sa.or_(_int("b_idle_before") > _ALIVE_AT, _int("b_silent_before") > _PROGRESS_AT),
    )
    .order_by(t.c.rank, t.c.run_id)
    .limit(_int("b_limit"))
    .with_for_update(skip_locked=True)
)
_OVERDUE: Final = Statement(
    sa.select(*COLUMNS, sa.exists().where(endpoint.c.id == t.c.publisher))
    .where(t.c.status == PUBLISHED, t.c.next_publish_at <= _int("b_before"))
    .order_by(t.c.next_publish_at)
    .limit(_int("b_limit"))
    .with_for_update(skip_locked=True)
)
_UNDELIVERABLE: Final = Statement(
    sa.select(*COLUMNS)
    .where(
        t.c.status != CLAIMED,
        HAS_PLACE,
        sa.or_(t.c.queued_at < _int("b_queued_before"), t.c.endings >= _int("b_endings")),
    )
    .order_by(t.c.queued_at)
    .limit(_int("b_limit"))
    .with_for_update(skip_locked=True)
)


def queues(session: Session) -> list[str]:
    """The keys of all queues that have a pending entry which is due."""
    return [row[0] for row in session.all(_QUEUES)]


def room(session: Session, endpoint_id: str) -> int:
    """How many more runs the endpoint may hold fleet-wide; its row stays locked, so two replicas never both fill it."""
    row = session.one(_LOCK_ENDPOINT, b_id=endpoint_id)
    if row is None:
        return 0
    taken = session.one(_IN_FLIGHT, b_id=endpoint_id)
    assert taken is not None
    return max(0, int(row[0]) - int(taken[0]))


def lease(
    session: Session,
    queue: str,
    publisher_id: str,
    *,
    way: int,
    ways: int,
    limit: int,
    now: int,
    until: int,
    route: str = "push",
) -> list[Entry]:
    """Up to *limit* due entries of *queue*, published to the publisher under their next push number until *until*.

    Of several *ways* only those whose turn is *way* are taken, out of the first `HEAD` due.
    """
    given = {
        "b_queue": queue,
        "b_id": publisher_id,
        "b_route": route,
        "b_limit": limit,
        "b_now": now,
        "b_until": until,
    }
    rows = session.all(_LEASE_ALL, **given) if ways == 1 else session.all(_LEASE_TURN, **given, b_way=way, b_ways=ways)
    return [Entry(*row) for row in rows]


def stale(session: Session, *, now: int, idle_before: int, silent_before: int, limit: int) -> list[Entry]:
    """Claims not refreshed since *idle_before*, or without a record since *silent_before*, locked (I4).

    A refresh stamp in the future, from before a clock step, counts as *now*.
    """
    rows = session.all(_STALE, b_now=now, b_idle_before=idle_before, b_silent_before=silent_before, b_limit=limit)
    return [Entry(*row) for row in rows]


class Overdue(NamedTuple):
    """An entry published in vain, and whether there still is the publisher it was leased to."""

    entry: Entry
    has_publisher: bool


def overdue(session: Session, *, before: int, limit: int) -> list[Overdue]:
    """Published entries whose time passed at *before* without a claim, locked."""
    rows = session.all(_OVERDUE, b_before=before, b_limit=limit)
    return [Overdue(Entry(*row), bool(has_publisher)) for *row, has_publisher in rows]


def undeliverable(session: Session, *, queued_before: int, endings: int, limit: int) -> list[Entry]:
    """Unclaimed entries queued before *queued_before* or with at least *endings* counted endings, locked.

    Not those held back in their lanes: nobody can have delivered them.
    """
    rows = session.all(_UNDELIVERABLE, b_queued_before=queued_before, b_endings=endings, b_limit=limit)
    return [Entry(*row) for row in rows]
