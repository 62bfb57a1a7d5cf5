"""Records: the stored outcomes of tasks, insert-only, numbered by the dispatcher in the order they first completed."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from dispatcher.store.schema import record as t
from dispatcher.store.session import Session, Statement, columns_of
from dispatcher.store.waits import Address


class Row(msgspec.Struct, frozen=True):
    run_id: str
    seq: int
    kind: str
    name: str
    args_hash: str
    ordinal: int
    phase: str
    state: str
    attempt: int
    claim_id: str
    value: bytes | None
    error: bytes | None
    preview: str | None
    started_at: int | None
    finished_at: int | None
    next_attempt_at: int | None


ADDRESS: Final = ("kind", "name", "args_hash", "ordinal", "attempt", "phase")

_COLUMNS: Final = columns_of(Row, t)
_PARAMETERS: Final = {name: sa.bindparam(f"b_{name}", type_=t.c[name].type) for name in Row.__struct_fields__}
_of_run: Final = t.c.run_id == sa.bindparam("b_run_id")
_LAST_SEQ: Final = Statement(sa.select(sa.func.coalesce(sa.func.max(t.c.seq), 0)).where(_of_run))
_insert: Final = postgresql.insert(t).values(**_PARAMETERS).on_conflict_do_nothing()
_INSERT: Final = Statement(_insert.returning(t.c.seq))
_INSERT_MANY: Final = Statement(_insert)
_AT: Final = Statement(sa.select(*_COLUMNS).where(_of_run, *(t.c[name] == _PARAMETERS[name] for name in ADDRESS)))
_LAST: Final = Statement(sa.select(*_COLUMNS).where(_of_run).order_by(t.c.seq.desc()).limit(1))
_PAGE: Final = Statement(
    sa.select(*_COLUMNS)
    .where(_of_run, t.c.seq > sa.bindparam("b_after", type_=sa.Integer()))
    .order_by(t.c.seq)
    .limit(sa.bindparam("b_limit", type_=sa.Integer()))
)
_BY_CLAIM: Final = Statement(
    sa.select(*_COLUMNS)
    .where(_of_run, t.c.claim_id == sa.bindparam("b_claim_id"), t.c.seq > sa.bindparam("b_after", type_=sa.Integer()))
    .order_by(t.c.seq)
)
_CALL: Final = ("kind", "name", "args_hash", "ordinal")
_other: Final = t.alias("other")


def _same_call(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    return sa.exists().where(
        _other.c.run_id == t.c.run_id, *(_other.c[name] == t.c[name] for name in _CALL), *conditions
    )


_ended: Final = _other.c.phase == sa.literal_column("'ended'")
_failed_calls: Final = sa.and_(
    _of_run,
    _same_call(_ended, _other.c.state == sa.literal_column("'failed'")),
    ~_same_call(_ended, _other.c.state == sa.literal_column("'completed'")),
    # What was to happen once at most and failed has happened: I7.
    sa.or_(t.c.kind != sa.literal_column("'task'"), ~_same_call(_other.c.phase == sa.literal_column("'started'"))),
)
_FAILED_CALLS: Final = Statement(sa.select(*_COLUMNS).where(_failed_calls).order_by(t.c.seq))


def _with_calls(dialect: str) -> Statement:
    given = sa.bindparam("b_numbers", type_=sa.Text())
    if dialect == "sqlite":
        wanted = sa.func.json_each(given).table_valued("value", name="wanted")
        number: sa.ColumnElement[Any] = wanted.c.value
    else:
        wanted = sa.func.json_array_elements_text(sa.cast(given, sa.JSON)).table_valued("value", name="wanted")
        number = sa.cast(wanted.c.value, sa.Integer)
    listed = _same_call(_other.c.seq.in_(sa.select(number)))
    return Statement(sa.select(*_COLUMNS).where(_of_run, listed).order_by(t.c.seq))


_WITH_CALLS: Final = {dialect: _with_calls(dialect) for dialect in ("sqlite", "postgresql")}
_DELETE: Final = Statement(sa.delete(t).where(_of_run, t.c.seq == sa.bindparam("b_seq", type_=sa.Integer())))
_CLEAR: Final = Statement(sa.delete(t).where(_of_run))
_ENDED: Final = Statement(
    sa.select(t.c.ordinal).where(
        _of_run,
        *(t.c[name] == _PARAMETERS[name] for name in ("kind", "name", "args_hash", "phase")),
        t.c.ordinal.between(sa.bindparam("b_first", type_=sa.Integer()), sa.bindparam("b_last", type_=sa.Integer())),
    )
)
_ENDED_OF_KIND: Final = Statement(
    sa.select(t.c.kind, t.c.name, t.c.args_hash, t.c.ordinal).where(
        _of_run, *(t.c[name] == _PARAMETERS[name] for name in ("kind", "phase"))
    )
)


def size(row: Row) -> int:
    """About how many bytes an answer needs for it."""
    return len(row.value or b"") + len(row.error or b"") + 256


def last_seq(session: Session, run_id: str) -> int:
    """The highest number given, 0 for none; stable while the run's entry is locked."""
    row = session.one(_LAST_SEQ, b_run_id=run_id)
    assert row is not None
    return int(row[0])


def insert(session: Session, row: Row) -> bool:
    """Whether the record is new at its address."""
    return session.one(_INSERT, **{f"b_{name}": getattr(row, name) for name in row.__struct_fields__}) is not None


def insert_many(session: Session, rows: Iterable[Row]) -> int:
    """As `insert` of each, in one go; answers how many were new."""
    return session.run_many(
        _INSERT_MANY, [{f"b_{name}": getattr(row, name) for name in row.__struct_fields__} for row in rows]
    )


def at(session: Session, row: Row) -> Row | None:
    """The record that holds the address of *row*."""
    address: dict[str, Any] = {f"b_{name}": getattr(row, name) for name in ADDRESS}
    found = session.one(_AT, b_run_id=row.run_id, **address)
    return Row(*found) if found else None


def last(session: Session, run_id: str) -> Row | None:
    """The newest record."""
    found = session.one(_LAST, b_run_id=run_id)
    return Row(*found) if found else None


def by_claim(session: Session, run_id: str, claim_id: str, *, after: int) -> list[Row]:
    """The records written under *claim_id* beyond number *after*, in order."""
    return [Row(*row) for row in session.all(_BY_CLAIM, b_run_id=run_id, b_claim_id=claim_id, b_after=after)]


def ended(session: Session, run_id: str, kind: str, name: str, args_hash: str, *, first: int, last: int) -> set[int]:
    """The ordinals from *first* to *last* of calls at that address which have an ended record."""
    rows = session.all(
        _ENDED,
        b_run_id=run_id,
        b_kind=kind,
        b_name=name,
        b_args_hash=args_hash,
        b_phase="ended",
        b_first=first,
        b_last=last,
    )
    return {ordinal for (ordinal,) in rows}


def of_failed_calls(session: Session, run_id: str) -> list[Row]:
    """Every record of the calls that failed in the end, in order, but for tasks that run once at most."""
    return [Row(*row) for row in session.all(_FAILED_CALLS, b_run_id=run_id)]


def delete(session: Session, run_id: str, numbers: Iterable[int]) -> int:
    """The records of these numbers are gone; answers how many there were."""
    return session.run_many(_DELETE, [{"b_run_id": run_id, "b_seq": number} for number in numbers])


def with_their_calls(session: Session, run_id: str, numbers: Iterable[int]) -> list[Row]:
    """The records of these *numbers* and all others of the same calls, in order."""
    given = msgspec.json.encode(sorted(set(numbers))).decode()
    return [Row(*row) for row in session.all(_WITH_CALLS[session.dialect], b_run_id=run_id, b_numbers=given)]


def clear(session: Session, run_id: str) -> int:
    """The run has no record; answers how many it had."""
    return session.run(_CLEAR, b_run_id=run_id)


def ended_of_kind(session: Session, run_id: str, kind: str) -> set[Address]:
    """The calls of one kind that have an ended record."""
    rows = session.all(_ENDED_OF_KIND, b_run_id=run_id, b_kind=kind, b_phase="ended")
    return {Address(*row) for row in rows}


def page(session: Session, run_id: str, *, after: int, limit: int) -> list[Row]:
    """The records beyond number *after*, in order."""
    return [Row(*row) for row in session.all(_PAGE, b_run_id=run_id, b_after=after, b_limit=limit)]
