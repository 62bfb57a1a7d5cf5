"""The outbox as operators look at it: how much waits in each queue, and who holds how many claims."""

from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from dispatcher.store.schema import CLAIMED, HAS_PLACE, PENDING, PUBLISHED
from dispatcher.store.schema import outbox_entry as t
from dispatcher.store.session import Session, Statement


class QueueRow(NamedTuple):
    """How many entries of a queue are in each status, or held back in their lanes, which are not pending.

    `oldest_at` is when the oldest entry was queued that could be claimed.
    """

    queue: str
    pending: int
    published: int
    claimed: int
    held: int
    oldest_at: int | None


class ExecutorRow(NamedTuple):
    """How many claims an executor, as it describes itself, holds, and when the one longest silent was refreshed."""

    executor: str
    claims: int
    refreshed_at: int


def _int(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=sa.BigInteger())


def _count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0)


_prefix: Final = sa.bindparam("b_prefix", type_=sa.Text())
_of_namespace: Final = sa.func.substr(t.c.queue, 1, sa.func.length(_prefix)) == _prefix
_QUEUES: Final = Statement(
    sa.select(
        t.c.queue,
        _count(sa.and_(t.c.status == PENDING, HAS_PLACE)),
        _count(t.c.status == PUBLISHED),
        _count(t.c.status == CLAIMED),
        _count(sa.not_(HAS_PLACE)),
        sa.func.min(sa.case((sa.and_(t.c.status != CLAIMED, HAS_PLACE), t.c.queued_at))),
    )
    .where(_of_namespace)
    .group_by(t.c.queue)
    .order_by(t.c.queue)
    .limit(_int("b_limit"))
    .offset(_int("b_offset"))
)
_WAITING: Final = Statement(
    sa.select(sa.func.count()).select_from(t).where(t.c.queue == sa.bindparam("b_queue"), t.c.status != CLAIMED)
)
_EXECUTORS: Final = Statement(
    sa.select(t.c.executor, sa.func.count(), sa.func.min(t.c.refreshed_at))
    .where(t.c.status == CLAIMED, t.c.executor.is_not(None), _of_namespace)
    .group_by(t.c.executor)
    .order_by(t.c.executor)
    .limit(_int("b_limit"))
    .offset(_int("b_offset"))
)


def queues(session: Session, prefix: str, *, limit: int, offset: int) -> list[QueueRow]:
    """The queues whose key begins with *prefix* and that hold an entry, in the order of their keys."""
    return [QueueRow(*row) for row in session.all(_QUEUES, b_prefix=prefix, b_limit=limit, b_offset=offset)]


def waiting(session: Session, queue: str) -> int:
    """How many entries of the queue nobody has claimed."""
    row = session.one(_WAITING, b_queue=queue)
    assert row is not None
    return int(row[0])


def executors(session: Session, prefix: str, *, limit: int, offset: int) -> list[ExecutorRow]:
    """The executors that hold claims in those queues."""
    return [ExecutorRow(*row) for row in session.all(_EXECUTORS, b_prefix=prefix, b_limit=limit, b_offset=offset)]
