"""Children: runs a run has started, found by the call of their parent that did it and their place in it."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from dispatcher.store.schema import now
from dispatcher.store.schema import run as t
from dispatcher.store.session import Session, Statement, columns_of
from dispatcher.store.waits import Address
from endpoint_sdk.wire.messages import Status

_UNSUCCESSFUL: Final[tuple[Status, ...]] = ("cancelled", "failed")


class Child(msgspec.Struct, frozen=True):
    """What its parent is told of a child; *parent_call* is None where the parent has forgotten the call."""

    id: str
    parent_call: str | None
    parent_index: int | None
    workflow: str
    version: str
    status: Status
    reason: str | None
    created_at: int
    finished_at: int | None
    result: bytes | None
    error: bytes | None


class Tally(NamedTuple):
    """How many children of a call there are, how many still run, and when the last of the others ended."""

    total: int
    open: int
    last_at: int | None


def call_of(address: Address) -> str:
    """A call of a run as its children are stored with it."""
    return f"{address.kind}:{address.args_hash}:{address.ordinal}:{address.name}"


def address_of(parent_call: str) -> Address:
    """The call that `call_of` made *parent_call* of."""
    kind, args_hash, ordinal, name = parent_call.split(":", 3)
    return Address(kind, name, args_hash, int(ordinal))


def _p(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Text) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


def _wanted(dialect: str) -> sa.TableValuedAlias:
    calls = _p("b_calls")
    if dialect == "sqlite":
        return sa.func.json_each(calls).table_valued("value", name="wanted")
    return sa.func.json_array_elements_text(sa.cast(calls, sa.JSON)).table_valued("value", name="wanted")


_COLUMNS: Final = columns_of(Child, t)
_of_parent: Final = t.c.parent_id == _p("b_parent_id")
_of_call: Final = sa.and_(_of_parent, t.c.parent_call == _p("b_call"))
_unsuccessful: Final = t.c.status.in_([sa.literal_column(f"'{status}'") for status in _UNSUCCESSFUL])


def _of_calls(dialect: str, columns: Sequence[sa.ColumnElement[Any]]) -> Statement:
    wanted = _wanted(dialect)
    joined = sa.join(wanted, t, sa.and_(_of_parent, t.c.parent_call == wanted.c.value))
    return Statement(sa.select(*columns).select_from(joined))


_OF_CALLS: Final = {dialect: _of_calls(dialect, _COLUMNS) for dialect in ("sqlite", "postgresql")}
_SINGLES: Final = {dialect: _of_calls(dialect, [t.c.parent_call, t.c.id]) for dialect in ("sqlite", "postgresql")}
_TALLY: Final = Statement(
    sa.select(sa.func.count(), sa.func.count() - sa.func.count(t.c.finished_at), sa.func.max(t.c.finished_at)).where(
        _of_call
    )
)
_FIRST_UNSUCCESSFUL: Final = Statement(
    sa.select(*_COLUMNS).where(_of_call, _unsuccessful).order_by(t.c.finished_at, t.c.parent_index).limit(1)
)
_CALLS: Final = Statement(sa.select(t.c.parent_call).where(_of_parent, t.c.parent_call.is_not(None)).distinct())
_UNSUCCESSFUL_CALLS: Final = Statement(
    sa.select(t.c.parent_call).where(_of_parent, t.c.parent_call.is_not(None), _unsuccessful).distinct()
)
_PLACES: Final = Statement(
    sa.select(t.c.parent_index, t.c.id).where(
        _of_call, t.c.parent_index.between(_p("b_first", sa.Integer), _p("b_last", sa.Integer))
    )
)
_LOCK_FORGOTTEN: Final = Statement(
    sa.select(t.c.id)
    .where(_of_parent, t.c.parent_call.is_(None), t.c.idempotency_key.is_not(None))
    .order_by(t.c.id)
    .with_for_update()
)
_ADOPT: Final = Statement(
    sa.update(t)
    .where(t.c.id == _p("b_id"), _of_parent, t.c.parent_call.is_(None))
    .values(parent_call=_p("b_call"), parent_index=_p("b_index", sa.Integer))
)
_COUNT: Final = Statement(
    sa.update(t).where(t.c.id == _p("b_id")).values(children=t.c.children + _p("b_born", sa.Integer), updated_at=now)
)


_SIZES: Final = Statement(
    sa.select(
        t.c.parent_index,
        sa.func.coalesce(sa.func.length(t.c.result), 0) + sa.func.coalesce(sa.func.length(t.c.error), 0),
    )
    .where(_of_call, t.c.parent_index > _p("b_after", sa.Integer))
    .order_by(t.c.parent_index)
    .limit(_p("b_limit", sa.Integer))
)
_BETWEEN: Final = Statement(
    sa.select(*_COLUMNS)
    .where(_of_call, t.c.parent_index.between(_p("b_first", sa.Integer), _p("b_last", sa.Integer)))
    .order_by(t.c.parent_index)
)
_light: Final = [sa.null() if column in (t.c.result, t.c.error) else column for column in _COLUMNS]
_older: Final = (
    sa.select(*_light).where(_of_parent, t.c.id > _p("b_after")).order_by(t.c.id).limit(_p("b_limit", sa.Integer))
)
_PAGE: Final = Statement(_older)
_PAGE_OF_STATUS: Final = Statement(_older.where(t.c.status == _p("b_status")))
_CASCADING: Final = Statement(
    sa.select(t.c.id).where(t.c.cascade == sa.literal_column("1")).order_by(t.c.id).limit(_p("b_limit", sa.Integer))
)
_UNTOLD: Final = Statement(
    sa.select(t.c.id)
    .where(
        _of_parent,
        t.c.id > _p("b_after"),
        t.c.finished_at.is_(None),
        sa.func.coalesce(t.c.stop, "") != sa.literal_column("'cancel'"),
    )
    .order_by(t.c.id)
    .limit(_p("b_limit", sa.Integer))
)
_CASCADED: Final = Statement(sa.update(t).where(t.c.id == _p("b_id")).values(cascade=0))
_LOCK_CHILDREN: Final = Statement(
    sa.select(t.c.id).where(_of_parent, t.c.parent_call.is_not(None)).order_by(t.c.id).with_for_update()
)
_FORGET_CHILDREN: Final = Statement(
    sa.update(t).where(_of_parent, t.c.parent_call.is_not(None)).values(parent_call=None)
)
_FORGET_CALL: Final = Statement(
    sa.update(t)
    .where(_of_parent, t.c.parent_call == _p("b_call"))
    .values(
        parent_call=None,
        idempotency_key=sa.case((_unsuccessful, sa.null()), else_=t.c.idempotency_key),
    )
)
_LEAVE_PARENT: Final = Statement(
    sa.update(t).where(t.c.id == _p("b_id")).values(parent_id=None, parent_call=None, parent_index=None)
)


def of_calls(session: Session, parent_id: str, calls: Iterable[str]) -> list[Child]:
    """The children these calls of the parent have started, in no order."""
    given = msgspec.json.encode(list(calls)).decode()
    return [Child(*row) for row in session.all(_OF_CALLS[session.dialect], b_parent_id=parent_id, b_calls=given)]


def singles(session: Session, parent_id: str, calls: Iterable[str]) -> dict[str, str]:
    """The ids of the children these calls, each of which starts one, have started."""
    given = msgspec.json.encode(list(calls)).decode()
    return dict(session.all(_SINGLES[session.dialect], b_parent_id=parent_id, b_calls=given))


def lock_forgotten(session: Session, parent_id: str) -> None:
    """The children with a key of their own that the run has forgotten are locked: before itself, as children are."""
    session.all(_LOCK_FORGOTTEN, b_parent_id=parent_id)


def adopt(session: Session, run_id: str, parent_id: str, call: str, index: int) -> bool:
    """Whether the run was a child its parent has forgotten: then it is the one at that place of *call*."""
    return session.run(_ADOPT, b_id=run_id, b_parent_id=parent_id, b_call=call, b_index=index) == 1


def tally(session: Session, parent_id: str, call: str) -> Tally:
    """The children of a call, counted."""
    row = session.one(_TALLY, b_parent_id=parent_id, b_call=call)
    assert row is not None
    return Tally(*row)


def first_unsuccessful(session: Session, parent_id: str, call: str) -> Child | None:
    """The child of a call that was the first to fail or to be cancelled."""
    row = session.one(_FIRST_UNSUCCESSFUL, b_parent_id=parent_id, b_call=call)
    return Child(*row) if row else None


def calls(session: Session, parent_id: str) -> set[str]:
    """The calls of the run that have children."""
    return {call for (call,) in session.all(_CALLS, b_parent_id=parent_id)}


def unsuccessful_calls(session: Session, parent_id: str) -> set[str]:
    """The calls of the run with a child that failed or was cancelled."""
    return {call for (call,) in session.all(_UNSUCCESSFUL_CALLS, b_parent_id=parent_id)}


def places(session: Session, parent_id: str, call: str, *, first: int, last: int) -> dict[int, str]:
    """The ids of a call's children by their place, from *first* to *last*."""
    return dict(session.all(_PLACES, b_parent_id=parent_id, b_call=call, b_first=first, b_last=last))


def sizes(session: Session, parent_id: str, call: str, *, after: int, limit: int) -> list[tuple[int, int]]:
    """The places of a call's children beyond *after*, in order, and how many bytes each one's outcome has."""
    rows = session.all(_SIZES, b_parent_id=parent_id, b_call=call, b_after=after, b_limit=limit)
    return [(int(place), int(size)) for place, size in rows]


def between(session: Session, parent_id: str, call: str, *, first: int, last: int) -> list[Child]:
    """The children of a call at the places from *first* to *last*, in order."""
    rows = session.all(_BETWEEN, b_parent_id=parent_id, b_call=call, b_first=first, b_last=last)
    return [Child(*row) for row in rows]


def page(session: Session, parent_id: str, *, status: str | None, after: str, limit: int) -> list[Child]:
    """The run's children whose ids are beyond *after*, in order, without their results and errors."""
    if status is None:
        rows = session.all(_PAGE, b_parent_id=parent_id, b_after=after, b_limit=limit)
    else:
        rows = session.all(_PAGE_OF_STATUS, b_parent_id=parent_id, b_after=after, b_limit=limit, b_status=status)
    return [Child(*row) for row in rows]


def cascading(session: Session, limit: int) -> list[str]:
    """Up to *limit* runs the children of which are to be cancelled, unlocked."""
    return [run_id for (run_id,) in session.all(_CASCADING, b_limit=limit)]


def untold(session: Session, parent_id: str, *, after: str, limit: int) -> list[str]:
    """The run's children beyond *after* that have not ended and were not asked to cancel themselves, in order."""
    rows = session.all(_UNTOLD, b_parent_id=parent_id, b_after=after, b_limit=limit)
    return [run_id for (run_id,) in rows]


def cascaded(session: Session, parent_id: str) -> None:
    """Every child of the run was told."""
    session.run(_CASCADED, b_id=parent_id)


def count(session: Session, parent_id: str, born: int) -> None:
    """The run, locked, has *born* children more."""
    session.run(_COUNT, b_id=parent_id, b_born=born)


def lock(session: Session, parent_id: str) -> None:
    """The children that calls of the run wait for are locked; its entry and itself are locked after them, if at all.

    A child's end locks the child and then its parent: whoever writes to both has to do it in that order.
    """
    session.all(_LOCK_CHILDREN, b_parent_id=parent_id)


def forget(session: Session, parent_id: str, call: str | None = None) -> None:
    """No call of the run, or not *call*, waits for the children it started any more; they go on as they are.

    Children of *call* that did not complete give their idempotency keys up.
    """
    if call is None:
        session.run(_FORGET_CHILDREN, b_parent_id=parent_id)
    else:
        session.run(_FORGET_CALL, b_parent_id=parent_id, b_call=call)


def leave(session: Session, run_id: str) -> None:
    """The run is nobody's child: another one is in its place."""
    session.run(_LEAVE_PARENT, b_id=run_id)
