"""The mailbox of a run: events numbered as they came, each handed to one wait. Written under the run's lock."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from dispatcher.store.schema import event as t
from dispatcher.store.session import Session, Statement, columns_of


class Row(msgspec.Struct, frozen=True):
    """*consumed* is the number of the record that handed the event out, None while it waits in the mailbox."""

    run_id: str
    number: int
    name: str
    event_id: str
    value: bytes
    at: int
    consumed: int | None = None


def _p(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Text) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


_COLUMNS: Final = columns_of(Row, t)
_of_run: Final = t.c.run_id == _p("b_run_id")
_INSERT: Final = Statement(
    sa.insert(t).values({name: sa.bindparam(f"b_{name}", type_=t.c[name].type) for name in Row.__struct_fields__})
)
_BY_ID: Final = Statement(
    sa.select(*_COLUMNS).where(_of_run, t.c.name == _p("b_name"), t.c.event_id == _p("b_event_id"))
)
_OLDEST: Final = Statement(
    sa.select(*_COLUMNS)
    .where(_of_run, t.c.name == _p("b_name"), t.c.consumed.is_(None))
    .order_by(t.c.number)
    .limit(_p("b_limit", sa.Integer))
)
_NAMES: Final = Statement(sa.select(t.c.name).where(_of_run, t.c.consumed.is_(None)).distinct())
_CONSUME: Final = Statement(
    sa.update(t).where(_of_run, t.c.number == _p("b_number", sa.Integer)).values(consumed=_p("b_seq", sa.Integer))
)
_FORGET: Final = Statement(sa.delete(t).where(_of_run, t.c.consumed.is_not(None)))
_GIVE_BACK: Final = Statement(
    sa.update(t).where(_of_run, t.c.consumed == _p("b_seq", sa.Integer)).values(consumed=None)
)
_UNREAD: Final = Statement(sa.select(sa.func.count()).select_from(t).where(_of_run, t.c.consumed.is_(None)))
_PAGE: Final = Statement(
    sa.select(*_COLUMNS)
    .where(_of_run, t.c.number > _p("b_after", sa.Integer))
    .order_by(t.c.number)
    .limit(_p("b_limit", sa.Integer))
)


def insert(session: Session, row: Row) -> None:
    """The event is in the run's mailbox; its number and its id are new there."""
    session.run(_INSERT, **{f"b_{name}": getattr(row, name) for name in row.__struct_fields__})


def by_id(session: Session, run_id: str, name: str, event_id: str) -> Row | None:
    """The event an earlier copy of the same call stored."""
    row = session.one(_BY_ID, b_run_id=run_id, b_name=name, b_event_id=event_id)
    return Row(*row) if row else None


def oldest(session: Session, run_id: str, name: str, limit: int) -> list[Row]:
    """The first *limit* events of that name nobody has been handed, in order."""
    return [Row(*row) for row in session.all(_OLDEST, b_run_id=run_id, b_name=name, b_limit=limit)]


def unread_names(session: Session, run_id: str) -> set[str]:
    """The names of the events nobody has been handed."""
    return {name for (name,) in session.all(_NAMES, b_run_id=run_id)}


def consume(session: Session, run_id: str, number: int, seq: int) -> None:
    """The event was handed out by record *seq*."""
    session.run(_CONSUME, b_run_id=run_id, b_number=number, b_seq=seq)


def forget_consumed(session: Session, run_id: str) -> None:
    """The events that were handed out are gone; those that wait in the mailbox stay."""
    session.run(_FORGET, b_run_id=run_id)


def give_back(session: Session, run_id: str, numbers: Iterable[int]) -> None:
    """The events that the records of these *numbers* handed out wait in the mailbox again."""
    session.run_many(_GIVE_BACK, [{"b_run_id": run_id, "b_seq": number} for number in numbers])


def unread(session: Session, run_id: str) -> int:
    """How many events wait in the run's mailbox."""
    row = session.one(_UNREAD, b_run_id=run_id)
    assert row is not None
    return int(row[0])


def page(session: Session, run_id: str, *, after: int, limit: int) -> list[Row]:
    """The events beyond number *after*, in order."""
    return [Row(*row) for row in session.all(_PAGE, b_run_id=run_id, b_after=after, b_limit=limit)]
