"""What pollers ask of the outbox: where something waits for them, claiming it, and what they say they serve.

As in the backlog, callers read the database's clock first and pass it: no index condition holds a volatile function.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from dispatcher.store.entries import COLUMNS, Entry
from dispatcher.store.schema import CLAIMED, HAS_PLACE, PENDING, PUBLISHED, now
from dispatcher.store.schema import outbox_entry as t
from dispatcher.store.session import Session, Statement

Kind = Literal["pending", "overdue"]

# A claim id is the request id, an underscore and a run id. Whatever the collation, each sorts between these two.
_FIRST_RUN: Final = "run_" + "0" * 26
_LAST_RUN: Final = "run_" + "z" * 26


class Vein(NamedTuple):
    """Entries of one queue that pollers may take: pending ones that are due, or those a route has had for too long."""

    queue: str
    kind: Kind
    rank: int


def _p(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Text) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


def _int(name: str) -> sa.BindParameter[Any]:
    return _p(name, sa.BigInteger)


_OPEN: Final[dict[Kind, sa.ColumnElement[bool]]] = {
    "pending": sa.and_(t.c.status == PENDING, HAS_PLACE, t.c.next_publish_at <= _int("b_now")),
    "overdue": sa.and_(t.c.status == PUBLISHED, HAS_PLACE, t.c.published_at <= _int("b_published_before")),
}


def _wanted(dialect: str) -> sa.TableValuedAlias:
    keys = _p("b_keys")
    if dialect == "sqlite":
        return sa.func.json_each(keys).table_valued("value", name="wanted")
    return sa.func.json_array_elements_text(sa.cast(keys, sa.JSON)).table_valued("value", name="wanted")


def _heads(dialect: str) -> Statement:
    wanted = _wanted(dialect)
    heads = [
        sa.select(t.c.rank).where(t.c.queue == wanted.c.value, is_open).order_by(t.c.rank, t.c.run_id).limit(1)
        for is_open in _OPEN.values()
    ]
    return Statement(sa.select(wanted.c.value, *(head.scalar_subquery() for head in heads)))


def _claim(kind: Kind) -> Statement:
    free = (
        sa.select(t.c.run_id)
        .where(t.c.queue == _p("b_queue"), _OPEN[kind])
        .order_by(t.c.rank, t.c.run_id)
        .limit(_int("b_limit"))
        .with_for_update(skip_locked=True)
        .cte("free")
        .prefix_with("MATERIALIZED")
    )
    return Statement(
        sa.update(t)
        .where(t.c.run_id == free.c.run_id)
        .values(
            status=CLAIMED,
            revision=t.c.revision + 1,
            publisher=None,
            route=None,
            published_at=None,
            claim_id=_p("b_prefix") + t.c.run_id,
            claim_push_number=None,
            executor=_p("b_executor"),
            claimed_at=now,
            refreshed_at=now,
            recorded_at=None,
            failures=0,
            copies=0,
            signals=0,
        )
        .returning(*COLUMNS)
    )


_HEADS: Final = {dialect: _heads(dialect) for dialect in ("sqlite", "postgresql")}
_CLAIM: Final = {kind: _claim(kind) for kind in _OPEN}
_MINE: Final = (
    sa.select(t.c.run_id)
    .where(
        t.c.status == CLAIMED,
        t.c.claim_id.between(_p("b_prefix") + _FIRST_RUN, _p("b_prefix") + _LAST_RUN),
        t.c.claim_id == _p("b_prefix") + t.c.run_id,
        sa.func.substr(t.c.queue, 1, sa.func.length(_p("b_queues"))) == _p("b_queues"),
    )
    .with_for_update(skip_locked=True)
    .cte("mine")
    .prefix_with("MATERIALIZED")
)
_HELD: Final = Statement(sa.update(t).where(t.c.run_id == _MINE.c.run_id).values(refreshed_at=now).returning(*COLUMNS))


def heads(session: Session, queues: Sequence[str], *, now_ms: int, published_before: int) -> list[Vein]:
    """Where pollers of *queues* find something, the lowest rank first: due at *now_ms*, or published before the other.

    Nothing is locked: others may take it first.
    """
    keys = msgspec.json.encode(queues).decode()
    rows = session.all(_HEADS[session.dialect], b_keys=keys, b_now=now_ms, b_published_before=published_before)
    found = [
        Vein(queue, kind, rank)
        for queue, *ranks in rows
        for kind, rank in zip(_OPEN, ranks, strict=True)
        if rank is not None
    ]
    return sorted(found, key=lambda vein: vein.rank)


def claim(
    session: Session, vein: Vein, prefix: str, executor: str, *, limit: int, now_ms: int, published_before: int
) -> list[Entry]:
    """Up to *limit* entries of *vein*, claimed under *prefix* and their run ids, one revision on; the first first.

    No entry is locked that is not claimed, and none is waited for (I1).
    """
    clock = {"b_now": now_ms} if vein.kind == "pending" else {"b_published_before": published_before}
    rows = session.all(
        _CLAIM[vein.kind], b_queue=vein.queue, b_limit=limit, b_prefix=prefix, b_executor=executor, **clock
    )
    return sorted((Entry(*row) for row in rows), key=lambda entry: (entry.rank, entry.run_id))


def held(session: Session, prefix: str, queues: str) -> list[Entry]:
    """The claims held under *prefix* and their run ids in queues whose keys begin with *queues*, alive from now."""
    rows = session.all(_HELD, b_prefix=prefix, b_queues=queues)
    return sorted((Entry(*row) for row in rows), key=lambda entry: (entry.rank, entry.run_id))
