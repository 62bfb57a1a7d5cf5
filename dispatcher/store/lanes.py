"""The places of lanes: an entry of a lane that is not held back takes one, and gives it up when it goes.

Whoever opens places holds the lane's own lock from before it counts until its transaction ends, so no two count the
same free place. Nothing but this opens any; entries are born held.
"""

from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from dispatcher.store.schema import HAS_PLACE, now, run
from dispatcher.store.schema import outbox_entry as t
from dispatcher.store.session import Session, Statement


class Waiting(NamedTuple):
    """A lane that holds entries back, how many of its places are taken, and the limit its next run was born with."""

    lane: str
    taken: int
    limit: int | None


class First(NamedTuple):
    """The held entry of a lane that gets the next place: how many places there were when its run was born."""

    limit: int | None


class Opened(NamedTuple):
    """An entry that has got a place, and its queue's key."""

    run_id: str
    queue: str


def _p(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Text) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


_is_held: Final = t.c.held == sa.literal_column("1")
_lane: Final = t.c.lane == _p("b_lane")
_LOCK: Final = Statement(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(_p("b_lane"), 0))))
_TAKEN: Final = Statement(sa.select(sa.func.count()).select_from(t).where(_lane, HAS_PLACE))
_next: Final = (
    sa.select(t.c.run_id)
    .where(_lane, _is_held)
    .order_by(t.c.rank, t.c.run_id)
    .limit(_p("b_limit", sa.Integer))
    .with_for_update(skip_locked=True)
    .cte("next")
    .prefix_with("MATERIALIZED")
)
_OPEN: Final = Statement(
    sa.update(t).where(t.c.run_id == _next.c.run_id).values(held=0, queued_at=now).returning(t.c.run_id, t.c.queue)
)
_AHEAD: Final = Statement(
    sa.select(sa.func.count())
    .select_from(t)
    .where(_lane, _is_held, sa.tuple_(t.c.rank, t.c.run_id) < sa.tuple_(_p("b_rank", sa.BigInteger), _p("b_run_id")))
)


def _first(of_lane: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return (
        sa.select(run.c.lane_limit)
        .join_from(t, run, run.c.id == t.c.run_id)
        .where(of_lane, _is_held)
        .order_by(t.c.rank, t.c.run_id)
        .limit(1)
    )


def _waiting() -> sa.Select[Any]:
    """One index probe for every lane that holds somebody back, however many it does."""
    first = sa.select(sa.func.min(t.c.lane).label("lane")).where(_is_held, t.c.lane > _p("b_after"))
    walk = first.cte("walk", recursive=True)
    following = sa.select(sa.func.min(t.c.lane)).where(_is_held, t.c.lane > walk.c.lane).scalar_subquery()
    walk = walk.union_all(sa.select(following).where(walk.c.lane.is_not(None)))
    taken = sa.select(sa.func.count()).select_from(t).where(t.c.lane == walk.c.lane, HAS_PLACE).scalar_subquery()
    return (
        sa.select(walk.c.lane, taken, _first(t.c.lane == walk.c.lane).scalar_subquery())
        .where(walk.c.lane.is_not(None))
        .limit(_p("b_limit", sa.Integer))
    )


_FIRST: Final = Statement(_first(_lane))
_WAITING: Final = Statement(_waiting())


def waiting(session: Session, after: str, limit: int) -> list[Waiting]:
    """Up to *limit* lanes beyond *after* that hold entries back, in the order of their keys; nothing is locked."""
    return [Waiting(*row) for row in session.all(_WAITING, b_after=after, b_limit=limit)]


def first(session: Session, lane: str) -> First | None:
    """The held entry of *lane* that comes first, None if it holds nobody back; nothing is locked."""
    row = session.one(_FIRST, b_lane=lane)
    return First(*row) if row else None


def lock(session: Session, lane: str) -> None:
    """Nobody else opens places of *lane* until the transaction ends; several are locked in the order of their keys."""
    if session.dialect == "postgresql":
        # An SQLite database has one writer at a time.
        session.all(_LOCK, b_lane=lane)


def taken(session: Session, lane: str) -> int:
    """How many places of *lane* are taken."""
    row = session.one(_TAKEN, b_lane=lane)
    assert row is not None
    return int(row[0])


def open_places(session: Session, lane: str, count: int) -> list[Opened]:
    """The next *count* entries of the locked *lane* have places and are deliverable; their age counts from now.

    One that another transaction is writing is passed over.
    """
    return [Opened(*row) for row in session.all(_OPEN, b_lane=lane, b_limit=count)]


def ahead(session: Session, lane: str, rank: int, run_id: str) -> int:
    """How many entries of *lane* get a place before the held one of *run_id*."""
    row = session.one(_AHEAD, b_lane=lane, b_rank=rank, b_run_id=run_id)
    assert row is not None
    return int(row[0])
