"""Records: the stored outcomes of tasks, insert-only, numbered by the dispatcher in the order they first completed."""

from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from dispatcher.store.schema import record as t
from dispatcher.store.session import Session, Statement, columns_of


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
_INSERT: Final = Statement(postgresql.insert(t).values(**_PARAMETERS).on_conflict_do_nothing().returning(t.c.seq))
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
_ENDED: Final = Statement(
    sa.select(t.c.ordinal).where(
        _of_run,
        *(t.c[name] == _PARAMETERS[name] for name in ("kind", "name", "args_hash", "phase")),
        t.c.ordinal.between(sa.bindparam("b_first", type_=sa.Integer()), sa.bindparam("b_last", type_=sa.Integer())),
    )
)


def last_seq(session: Session, run_id: str) -> int:
    """The highest number given, 0 for none; stable while the run's entry is locked."""
    row = session.one(_LAST_SEQ, b_run_id=run_id)
    assert row is not None
    return int(row[0])


def insert(session: Session, row: Row) -> bool:
    """Whether the record is new at its address."""
    return session.one(_INSERT, **{f"b_{name}": getattr(row, name) for name in row.__struct_fields__}) is not None


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


def page(session: Session, run_id: str, *, after: int, limit: int) -> list[Row]:
    """The records beyond number *after*, in order."""
    return [Row(*row) for row in session.all(_PAGE, b_run_id=run_id, b_after=after, b_limit=limit)]
