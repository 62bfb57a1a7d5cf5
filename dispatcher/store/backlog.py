"""Reading the outbox as a backlog: what is due, what to lease, what has gone stale or overdue.

Nothing here filters on a volatile clock inside an index condition: callers read the database's clock first and pass it.
"""

from typing import Any, Final

import sqlalchemy as sa

from dispatcher.store.entries import COLUMNS, Entry
from dispatcher.store.schema import CLAIMED, PENDING, PUBLISHED, endpoint
from dispatcher.store.schema import outbox_entry as t
from dispatcher.store.session import Session, Statement


def _int(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=sa.BigInteger())


def _queues() -> sa.Select[Any]:
    """Every queue with a pending entry, one index probe a queue however long the backlog."""
    first = sa.select(sa.func.min(t.c.queue).label("queue")).where(t.c.status == PENDING)
    walk = first.cte("walk", recursive=True)
    following = (
        sa.select(sa.func.min(t.c.queue)).where(t.c.status == PENDING, t.c.queue > walk.c.queue).scalar_subquery()
    )
    walk = walk.union_all(sa.select(following).where(walk.c.queue.is_not(None)))
    return sa.select(walk.c.queue).where(walk.c.queue.is_not(None))


_QUEUES: Final = Statement(_queues())
_LOCK_ENDPOINT: Final = Statement(
    sa.select(endpoint.c.max_in_flight).where(endpoint.c.id == sa.bindparam("b_id")).with_for_update()
)
_IN_FLIGHT: Final = Statement(
    sa.select(sa.func.count())
    .select_from(t)
    .where(t.c.publisher == sa.bindparam("b_id"), sa.literal_column("status <> 'pending'"))
)
_DUE: Final = (
    sa.select(t.c.run_id)
    .where(
        t.c.status == PENDING,
        t.c.queue == sa.bindparam("b_queue"),
        t.c.next_publish_at <= _int("b_now"),
        t.c.publisher_index % _int("b_ways") == _int("b_way"),
    )
    .order_by(t.c.rank, t.c.run_id)
    .limit(_int("b_limit"))
    .with_for_update(skip_locked=True)
    .cte("due")
    .prefix_with("MATERIALIZED")
)
_LEASE: Final = Statement(
    sa.update(t)
    .where(t.c.run_id == _DUE.c.run_id)
    .values(
        status=PUBLISHED,
        push_number=t.c.push_number + 1,
        publisher=sa.bindparam("b_id"),
        next_publish_at=_int("b_until"),
    )
    .returning(*COLUMNS)
)
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
    sa.select(*COLUMNS)
    .where(t.c.status == PUBLISHED, t.c.next_publish_at <= _int("b_before"))
    .order_by(t.c.next_publish_at)
    .limit(_int("b_limit"))
    .with_for_update(skip_locked=True)
)
_UNDELIVERABLE: Final = Statement(
    sa.select(*COLUMNS)
    .where(
        t.c.status != CLAIMED,
        sa.or_(t.c.queued_at < _int("b_queued_before"), t.c.endings >= _int("b_endings")),
    )
    .order_by(t.c.queued_at)
    .limit(_int("b_limit"))
    .with_for_update(skip_locked=True)
)


def queues(session: Session) -> list[str]:
    """The keys of all queues that have a pending entry."""
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
    session: Session, queue: str, endpoint_id: str, *, way: int, ways: int, limit: int, now: int, until: int
) -> list[Entry]:
    """Up to *limit* due entries of *queue*, published to the endpoint under their next push number until *until*."""
    rows = session.all(
        _LEASE, b_queue=queue, b_id=endpoint_id, b_way=way, b_ways=ways, b_limit=limit, b_now=now, b_until=until
    )
    return [Entry(*row) for row in rows]


def stale(session: Session, *, now: int, idle_before: int, silent_before: int, limit: int) -> list[Entry]:
    """Claims not refreshed since *idle_before*, or without a record since *silent_before*, locked (I4).

    A refresh stamp in the future, from before a clock step, counts as *now*.
    """
    rows = session.all(_STALE, b_now=now, b_idle_before=idle_before, b_silent_before=silent_before, b_limit=limit)
    return [Entry(*row) for row in rows]


def overdue(session: Session, *, before: int, limit: int) -> list[Entry]:
    """Published entries whose deadline passed at *before* without a claim, locked."""
    return [Entry(*row) for row in session.all(_OVERDUE, b_before=before, b_limit=limit)]


def undeliverable(session: Session, *, queued_before: int, endings: int, limit: int) -> list[Entry]:
    """Unclaimed entries queued before *queued_before* or with at least *endings* counted endings, locked."""
    rows = session.all(_UNDELIVERABLE, b_queued_before=queued_before, b_endings=endings, b_limit=limit)
    return [Entry(*row) for row in rows]
