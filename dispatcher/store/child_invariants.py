"""What must be true of parents and children: no end untold, nothing counted wrongly, no cancel kept from a child."""

from typing import Any, Final

import sqlalchemy as sa

from dispatcher import lifecycle
from dispatcher.store.schema import record, run, wait
from dispatcher.store.session import Session, Statement

PACE_MS: Final = 1_000
"""How long after its end a child that is waited for with others is told of at the latest."""

_parent: Final = run.alias("parent")
_child: Final = run.alias("child")
_PARKED: Final = [sa.literal(name) for name in lifecycle.PARKED]


def _call(of: Any) -> sa.ColumnElement[str]:
    ordinal = sa.cast(of.c.ordinal, sa.Text)
    return of.c.kind + ":" + of.c.args_hash + ":" + ordinal + ":" + of.c.name  # type: ignore[no-any-return]


_of_wait: Final = sa.and_(_child.c.parent_id == wait.c.run_id, _child.c.parent_call == _call(wait))
_unsuccessful: Final = sa.case((_child.c.status.in_([sa.literal("failed"), sa.literal("cancelled")]), 1), else_=0)
_ENDED: Final = Statement(
    sa.select(_parent.c.id, wait.c.name, _child.c.finished_at, _parent.c.wake_at)
    .join_from(_parent, wait, sa.and_(wait.c.run_id == _parent.c.id, wait.c.kind == sa.literal("child")))
    .join(_child, _of_wait)
    .where(_parent.c.status.in_(_PARKED), _child.c.finished_at.is_not(None))
)
_OPEN: Final = Statement(
    sa.select(
        _parent.c.id,
        _parent.c.status,
        wait.c.name,
        wait.c.open,
        sa.func.count() - sa.func.count(_child.c.finished_at),
        sa.func.sum(_unsuccessful),
    )
    .join_from(_parent, wait, sa.and_(wait.c.run_id == _parent.c.id, wait.c.kind == sa.literal("children")))
    .join(_child, _of_wait)
    .where(sa.or_(_parent.c.status.in_(_PARKED), _parent.c.parked_as.in_(_PARKED)))
    .group_by(_parent.c.id, _parent.c.status, wait.c.name, wait.c.args_hash, wait.c.ordinal, wait.c.open)
)
_COUNTED: Final = Statement(
    sa.select(_parent.c.id, _parent.c.children, sa.func.count(_child.c.id))
    .select_from(_parent.outerjoin(_child, _child.c.parent_id == _parent.c.id))
    .group_by(_parent.c.id, _parent.c.children)
    .having(_parent.c.children != sa.func.count(_child.c.id))
)
_started: Final = record.alias("started")
_ended: Final = record.alias("ended")
_LOST: Final = Statement(
    sa.select(_started.c.run_id, _started.c.name)
    .select_from(
        _started.outerjoin(
            _ended,
            sa.and_(
                _ended.c.phase == sa.literal("ended"),
                *(_ended.c[name] == _started.c[name] for name in ("run_id", "kind", "name", "args_hash", "ordinal")),
            ),
        ).outerjoin(_child, sa.and_(_child.c.parent_id == _started.c.run_id, _child.c.parent_call == _call(_started)))
    )
    .where(
        _started.c.phase == sa.literal("started"),
        _started.c.kind.in_([sa.literal("child"), sa.literal("children")]),
        _ended.c.run_id.is_(None),
        _child.c.id.is_(None),
        # The children of an ended run may have gone over to the run it was restarted as.
        sa.exists().where(run.c.id == _started.c.run_id, run.c.finished_at.is_(None)),
    )
)
_KEPT: Final = Statement(
    sa.select(_parent.c.id, _child.c.id)
    .join_from(_parent, _child, _child.c.parent_id == _parent.c.id)
    .where(
        _parent.c.status == sa.literal("cancelled"),
        _parent.c.cascade == sa.literal(0),
        _child.c.finished_at.is_(None),
        sa.func.coalesce(_child.c.stop, "") != sa.literal("cancel"),
    )
)


def paced(session: Session) -> dict[str, int]:
    """The parked runs a child of which has ended, and when the timers have to wake each of them at the latest."""
    latest: dict[str, int] = {}
    for run_id, _name, finished_at, _wake_at in session.all(_ENDED):
        latest[run_id] = min(finished_at + PACE_MS, latest.get(run_id, finished_at + PACE_MS))
    return latest


def check(session: Session) -> list[str]:
    """Every breach the rows show, a sentence each."""
    found = [
        f"I9 {run_id} waits for the child {name}, which has ended, until {wake_at}"
        for run_id, name, finished_at, wake_at in session.all(_ENDED)
        if wake_at is None or wake_at > finished_at + PACE_MS
    ]
    for run_id, status, name, counted, still_open, unsuccessful in session.all(_OPEN):
        if counted != still_open:
            found.append(f"I9 {run_id} waits for {counted} children {name}, {still_open} of which run")
        if status != "paused" and (not still_open or unsuccessful):
            found.append(f"I9 {run_id} waits for children {name}, whose end is decided")
    found += [f"I9 {run_id} has started {name}, and there is no such child" for run_id, name in session.all(_LOST)]
    found += [f"{run_id} counts {counted} children and has {there}" for run_id, counted, there in session.all(_COUNTED)]
    found += [f"{run_id} was cancelled, and its child {child} never told" for run_id, child in session.all(_KEPT)]
    return found
