"""What runs wait for: a row from the park until the wait is answered. Read and written under the run's lock."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from dispatcher.store.schema import run
from dispatcher.store.schema import wait as t
from dispatcher.store.session import Session, Statement, columns_of


class Address(NamedTuple):
    """Which call of the workflow waits."""

    kind: str
    name: str
    args_hash: str
    ordinal: int


class Row(msgspec.Struct, frozen=True):
    """*deadline_at* is when the wait is over whatever happens, None for never; *open* counts children still running."""

    run_id: str
    kind: str
    name: str
    args_hash: str
    ordinal: int
    deadline_at: int | None = None
    open: int | None = None

    @property
    def address(self) -> Address:
        return Address(self.kind, self.name, self.args_hash, self.ordinal)


def _p(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Text) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


_PARAMETERS: Final = {name: sa.bindparam(f"b_{name}", type_=t.c[name].type) for name in Row.__struct_fields__}
_OF_RUN: Final = Statement(
    sa.select(*columns_of(Row, t))
    .where(t.c.run_id == _p("b_run_id"))
    .order_by(t.c.kind, t.c.name, t.c.args_hash, t.c.ordinal)
)
_INSERT: Final = Statement(sa.insert(t).values(**_PARAMETERS))
_DELETE: Final = Statement(
    sa.delete(t).where(t.c.run_id == _p("b_run_id"), *(t.c[name] == _PARAMETERS[name] for name in Address._fields))
)
_this: Final = (t.c.run_id == _p("b_run_id"), *(t.c[name] == _PARAMETERS[name] for name in Address._fields))
_AT: Final = Statement(sa.select(*columns_of(Row, t)).where(*_this))
_ONE_LESS: Final = Statement(
    sa.update(t).where(*_this, t.c.open.is_not(None)).values(open=t.c.open - 1).returning(t.c.open)
)
_COUNT: Final = Statement(
    sa.select(sa.func.count()).select_from(t).where(t.c.run_id == _p("b_run_id"), t.c.kind == _p("b_kind"))
)
_CLEAR: Final = Statement(sa.delete(t).where(t.c.run_id == _p("b_run_id")))
_DUE: Final = Statement(
    sa.select(run.c.id)
    .where(run.c.wake_at <= _p("b_now", sa.BigInteger))
    .order_by(run.c.wake_at)
    .limit(_p("b_limit", sa.Integer))
    .with_for_update(skip_locked=True)
)
_OVERDUE: Final = Statement(
    sa.select(run.c.id)
    .where(run.c.cancel_forced_at <= _p("b_now", sa.BigInteger))
    .order_by(run.c.cancel_forced_at)
    .limit(_p("b_limit", sa.Integer))
)
_EXPIRED: Final = Statement(
    sa.select(run.c.id)
    .where(run.c.expires_at <= _p("b_now", sa.BigInteger))
    .order_by(run.c.expires_at)
    .limit(_p("b_limit", sa.Integer))
)
_NEXT: Final = Statement(
    sa.select(
        *(
            sa.select(sa.func.min(column)).where(column.is_not(None)).scalar_subquery()
            for column in (run.c.wake_at, run.c.cancel_forced_at, run.c.expires_at)
        )
    )
)


def of_run(session: Session, run_id: str) -> list[Row]:
    """Everything the run waits for, in the order of the addresses."""
    return [Row(*row) for row in session.all(_OF_RUN, b_run_id=run_id)]


def insert(session: Session, rows: Iterable[Row]) -> None:
    """The run waits for each of *rows* too; none of their addresses may be waited for already."""
    session.run_many(_INSERT, [{f"b_{name}": getattr(row, name) for name in row.__struct_fields__} for row in rows])


def delete(session: Session, rows: Iterable[Row]) -> None:
    """Nobody waits at the addresses of *rows* any more."""
    session.run_many(_DELETE, [{"b_run_id": row.run_id, **_named(row.address)} for row in rows])


def at(session: Session, run_id: str, address: Address) -> Row | None:
    """What waits at that address, if anything does."""
    row = session.one(_AT, b_run_id=run_id, **_named(address))
    return Row(*row) if row else None


def close_one(session: Session, run_id: str, address: Address) -> int | None:
    """One child fewer is open of those that are waited for at that address: answers how many are, None if none were."""
    row = session.one(_ONE_LESS, b_run_id=run_id, **_named(address))
    return int(row[0]) if row else None


def count(session: Session, run_id: str, kind: str) -> int:
    """How many waits of that kind the run has."""
    row = session.one(_COUNT, b_run_id=run_id, b_kind=kind)
    assert row is not None
    return int(row[0])


def clear(session: Session, run_id: str) -> None:
    """The run waits for nothing."""
    session.run(_CLEAR, b_run_id=run_id)


def due(session: Session, now: int, limit: int) -> list[str]:
    """Up to *limit* runs whose `wake_at` has come, the earliest first, locked; those others hold are left out."""
    return [run_id for (run_id,) in session.all(_DUE, b_now=now, b_limit=limit)]


def overdue(session: Session, now: int, limit: int) -> list[str]:
    """Up to *limit* runs that were to cancel themselves by *now*, the earliest first, unlocked."""
    return [run_id for (run_id,) in session.all(_OVERDUE, b_now=now, b_limit=limit)]


def _named(address: Address) -> dict[str, str | int]:
    return {f"b_{name}": value for name, value in address._asdict().items()}


def expired(session: Session, now: int, limit: int) -> list[str]:
    """Up to *limit* runs whose time was up by *now*, the earliest first, unlocked."""
    return [run_id for (run_id,) in session.all(_EXPIRED, b_now=now, b_limit=limit)]


def next_due(session: Session) -> int | None:
    """The earliest `wake_at`, `cancel_forced_at` or `expires_at` of any run."""
    row = session.one(_NEXT)
    return min((moment for moment in row or () if moment is not None), default=None)
