"""What a new run takes over from the one it repeats the beginning of: records, and the children they speak of."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from dispatcher.store.schema import record, run
from dispatcher.store.session import Session, Statement


class Started(NamedTuple):
    """A call that started children: the number of its record, and how the children are stored with it."""

    seq: int
    call: str


def _p(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Text) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


_CALL: Final = ("kind", "name", "args_hash", "ordinal")
_of_children: Final = record.c.kind.in_([sa.literal_column("'child'"), sa.literal_column("'children'")])
_before: Final = record.c.seq < _p("b_from", sa.Integer)
_STARTED: Final = Statement(
    sa.select(
        record.c.seq,
        record.c.kind.concat(":")
        .concat(record.c.args_hash)
        .concat(":")
        .concat(sa.cast(record.c.ordinal, sa.Text))
        .concat(":")
        .concat(record.c.name),
    )
    .where(
        record.c.run_id == _p("b_id"),
        _of_children,
        _before,
        record.c.phase == sa.literal_column("'started'"),
    )
    .order_by(record.c.seq)
)
_FIRST_CANCEL: Final = Statement(
    sa.select(sa.func.min(record.c.seq)).where(
        record.c.run_id == _p("b_id"), record.c.kind == sa.literal_column("'cancel'")
    )
)
_others: Final = [column for column in record.c if column.name != "run_id"]
_COPY: Final = Statement(
    sa.insert(record).from_select(
        ["run_id", *(column.name for column in _others)],
        sa.select(_p("b_new"), *_others).where(record.c.run_id == _p("b_id"), _before),
    )
)
_later: Final = record.alias("later")
_CUT: Final = Statement(
    sa.delete(record).where(
        record.c.run_id == _p("b_new"),
        ~_of_children,
        sa.exists().where(
            _later.c.run_id == _p("b_id"),
            *(_later.c[name] == record.c[name] for name in _CALL),
            _later.c.seq >= _p("b_from", sa.Integer),
        ),
    )
)
_MOVE: Final = Statement(
    sa.update(run).where(run.c.parent_id == _p("b_id"), run.c.parent_call == _p("b_call")).values(parent_id=_p("b_new"))
)
_HAND_DOWN: Final = Statement(
    sa.update(run)
    .where(run.c.id == _p("b_new"))
    .values(
        generation=_p("b_generation", sa.Integer),
        children=_p("b_children", sa.Integer),
        ever_claimed=_p("b_claimed", sa.SmallInteger),
    )
)


def first_cancel(session: Session, run_id: str) -> int | None:
    """The number of the first record that says where the run's code was told of a cancel."""
    row = session.one(_FIRST_CANCEL, b_id=run_id)
    return None if row is None else row[0]


def started(session: Session, run_id: str, before: int) -> list[Started]:
    """The calls that started children in records up to number *before*, itself left out, in order."""
    return [Started(*row) for row in session.all(_STARTED, b_id=run_id, b_from=before)]


def copy(session: Session, old: str, new: str, before: int) -> int:
    """*new* has the records of *old* up to number *before*, itself left out; answers how many.

    A call one of whose records lies beyond is left out whole, but for what started children.
    """
    copied = session.run(_COPY, b_id=old, b_new=new, b_from=before)
    return copied - session.run(_CUT, b_id=old, b_new=new, b_from=before)


def move_children(session: Session, old: str, new: str, calls: Iterable[str]) -> int:
    """The children that *calls* of *old* started are those of *new*; answers how many there are."""
    return session.run_many(_MOVE, [{"b_id": old, "b_new": new, "b_call": call} for call in calls])


def hand_down(session: Session, run_id: str, *, generation: int, children: int, ever_claimed: bool) -> None:
    """The new run is of that generation, has so many children, and counts as claimed if somebody worked on it."""
    session.run(_HAND_DOWN, b_new=run_id, b_generation=generation, b_children=children, b_claimed=int(ever_claimed))
