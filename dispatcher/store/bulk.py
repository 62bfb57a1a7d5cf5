"""Actions on many runs: what is to be done to which, and how far that has come."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from dispatcher import lifecycle
from dispatcher.store import listing
from dispatcher.store.listing import RunFilter
from dispatcher.store.schema import bulk_action as t
from dispatcher.store.schema import run
from dispatcher.store.session import Session, Statement, columns_of
from endpoint_sdk.wire.messages import Status


class Row(msgspec.Struct, frozen=True):
    """*filter* is the request as JSON; runs up to *cursor*, in the order of their ids, are done with."""

    id: str
    namespace: str
    action: str
    filter: str
    actor: str
    created_at: int
    matched: int
    cursor: str | None = None
    applied: int = 0
    refused: int = 0
    slot_at: int = 0
    finished_at: int | None = None


class Wanted(NamedTuple):
    """The runs of *namespace* an action is for: those *matching*, of these *ids* if there are any, born by *born_by*.

    Only such as *action* applies to, by their status.
    """

    namespace: str
    action: str
    matching: RunFilter
    ids: Sequence[str]
    born_by: int


def _in(*statuses: Status) -> sa.ColumnElement[bool]:
    return run.c.status.in_([sa.literal_column(f"'{status}'") for status in sorted(statuses)])


_going: Final = run.c.finished_at.is_(None)
_APPLIES: Final[dict[str, sa.ColumnElement[bool]]] = {
    "cancel": _going,
    "pause": sa.and_(_going, ~_in("paused", "stalled")),
    "resume": sa.or_(_in("paused"), sa.and_(_in("running"), run.c.stop == sa.literal_column("'pause'"))),
    "requeue": _in("stalled"),
    "wake": _in("scheduled", *lifecycle.PARKED),
    "release": _in("running"),
}


def _p(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Text) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


_COLUMNS: Final = columns_of(Row, t)
_this: Final = t.c.id == _p("b_id")
_INSERT: Final = Statement(
    sa.insert(t).values({name: sa.bindparam(f"b_{name}", type_=t.c[name].type) for name in Row.__struct_fields__})
)
_GET: Final = Statement(sa.select(*_COLUMNS).where(_this, t.c.namespace == _p("b_namespace")))
_FIRST: Final = Statement(sa.select(*_COLUMNS).where(t.c.finished_at.is_(None)).order_by(t.c.id).limit(1))
_LOCK: Final = Statement(sa.select(*_COLUMNS).where(_this, t.c.finished_at.is_(None)).with_for_update())
_STEP: Final = Statement(
    sa.update(t)
    .where(_this)
    .values(
        cursor=_p("b_cursor"),
        applied=t.c.applied + _p("b_applied", sa.Integer),
        refused=t.c.refused + _p("b_refused", sa.Integer),
        slot_at=_p("b_slot_at", sa.BigInteger),
    )
)
_FINISH: Final = Statement(
    sa.update(t).where(_this, t.c.finished_at.is_(None)).values(finished_at=_p("b_now", sa.BigInteger))
)
_statements: dict[tuple[Any, ...], Statement] = {}


def insert(session: Session, row: Row) -> None:
    """The action is to be applied."""
    session.run(_INSERT, **{f"b_{name}": getattr(row, name) for name in row.__struct_fields__})


def get(session: Session, namespace: str, action_id: str) -> Row | None:
    """The action of that namespace."""
    row = session.one(_GET, b_namespace=namespace, b_id=action_id)
    return Row(*row) if row else None


def first(session: Session) -> Row | None:
    """The oldest action that is not finished, unlocked: they are applied one after another."""
    row = session.one(_FIRST)
    return Row(*row) if row else None


def lock(session: Session, action_id: str) -> Row | None:
    """The action, locked, unless it is finished. It is locked before any run."""
    row = session.one(_LOCK, b_id=action_id)
    return Row(*row) if row else None


def step(session: Session, action_id: str, cursor: str, *, applied: bool, slot_at: int) -> None:
    """The run *cursor* is done with, to it the action was *applied* or refused; the next may be at *slot_at*."""
    session.run(
        _STEP, b_id=action_id, b_cursor=cursor, b_applied=int(applied), b_refused=int(not applied), b_slot_at=slot_at
    )


def finish(session: Session, action_id: str, now: int) -> None:
    """The action has come to the last run."""
    session.run(_FINISH, b_id=action_id, b_now=now)


def count(session: Session, wanted: Wanted) -> int:
    """How many runs are wanted."""
    row = session.one(_statement(session, "count", wanted), **_values(session, wanted))
    assert row is not None
    return int(row[0])


def page(session: Session, wanted: Wanted, *, after: str, limit: int) -> list[str]:
    """The first *limit* runs wanted beyond *after*, in the order of their ids, unlocked."""
    rows = session.all(_statement(session, "page", wanted), **_values(session, wanted), b_after=after, b_limit=limit)
    return [run_id for (run_id,) in rows]


def _values(session: Session, wanted: Wanted) -> dict[str, Any]:
    values = {
        **listing.values_of(session, wanted.matching),
        "b_namespace": wanted.namespace,
        "b_born_by": wanted.born_by,
    }
    return {**values, "b_ids": msgspec.json.encode(wanted.ids).decode()} if wanted.ids else values


def _statement(session: Session, what: str, wanted: Wanted) -> Statement:
    shape = (session.dialect, what, wanted.action, bool(wanted.ids), *listing.shape_of(wanted.matching))
    found = _statements.get(shape)
    if found is None:
        found = _statements[shape] = Statement(_select(session.dialect, what, wanted))
    return found


def _select(dialect: str, what: str, wanted: Wanted) -> sa.Select[Any]:
    conditions = [
        *listing.conditions(wanted.matching),
        _APPLIES[wanted.action],
        run.c.created_at <= _p("b_born_by", sa.BigInteger),
    ]
    if wanted.ids:
        conditions.append(run.c.id.in_(sa.select(_ids(dialect).c.value)))
    if what == "count":
        return sa.select(sa.func.count()).select_from(run).where(*conditions)
    return (
        sa.select(run.c.id)
        .where(*conditions, run.c.id > _p("b_after"))
        .order_by(run.c.id)
        .limit(_p("b_limit", sa.Integer))
    )


def _ids(dialect: str) -> sa.TableValuedAlias:
    given = _p("b_ids")
    if dialect == "sqlite":
        return sa.func.json_each(given).table_valued("value", name="ids")
    return sa.func.json_array_elements_text(sa.cast(given, sa.JSON)).table_valued("value", name="ids")
