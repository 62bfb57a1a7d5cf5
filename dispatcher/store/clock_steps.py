"""The outbox and the schedules after the database's clock has stepped back."""

from typing import Any, Final

import sqlalchemy as sa

from dispatcher.store.schema import CLAIMED, schedule
from dispatcher.store.schema import outbox_entry as t
from dispatcher.store.session import Session, Statement


def _int(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=sa.BigInteger())


_now: Final = _int("b_now")
_STAMPS: Final = (t.c.claimed_at, t.c.refreshed_at, t.c.recorded_at)
_CLAMP: Final = Statement(
    sa.update(t)
    .where(t.c.status == CLAIMED, sa.or_(*(stamp > _now for stamp in _STAMPS)))
    .values({stamp: sa.case((stamp > _now, _now), else_=stamp) for stamp in _STAMPS})
)
_SET_BACK: Final = Statement(
    sa.update(t)
    .where(
        t.c.status != CLAIMED,
        sa.or_(t.c.next_publish_at > _now, t.c.queued_at > _now, t.c.published_at > _now),
    )
    .values(
        next_publish_at=sa.case(
            (t.c.next_publish_at - _int("b_by") > _now, t.c.next_publish_at - _int("b_by")),
            (t.c.next_publish_at > _now, _now),
            else_=t.c.next_publish_at,
        ),
        queued_at=sa.case((t.c.queued_at > _now, _now), else_=t.c.queued_at),
        published_at=sa.case((t.c.published_at > _now, _now), else_=t.c.published_at),
    )
)
_LOOK_AGAIN: Final = Statement(
    sa.update(schedule)
    .where(schedule.c.wake_at > _now)
    .values(wake_at=_now, next_at=sa.case((schedule.c.next_at > _now, sa.null()), else_=schedule.c.next_at))
)


def clamp(session: Session, now: int, by: int) -> None:
    """No stamp is later than *now* by reason of a clock since stepped back by at least *by* milliseconds (I11).

    A claim must not outlive the step, nor a delivery wait for it: what was due in a minute still is. Schedules are
    looked at at once, and have the occurrence next that is next now.
    """
    session.run(_LOOK_AGAIN, b_now=now)
    session.run(_CLAMP, b_now=now)
    session.run(_SET_BACK, b_now=now, b_by=by)
