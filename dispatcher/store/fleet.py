"""The one row all dispatchers share: when any of them was last well, since when, and the pace of releases (I11)."""

from typing import Final, NamedTuple

import sqlalchemy as sa

from dispatcher.store.schema import fleet as t
from dispatcher.store.session import Session, Statement


class Fleet(NamedTuple):
    seen_at: int
    up_since: int
    release_slot_at: int


_ROW: Final = sa.select(t.c.seen_at, t.c.up_since, t.c.release_slot_at)
_GET: Final = Statement(_ROW)
_LOCK: Final = Statement(_ROW.with_for_update())
_TICK: Final = Statement(
    sa.update(t).values(
        seen_at=sa.bindparam("b_seen_at", type_=sa.BigInteger()),
        up_since=sa.bindparam("b_up_since", type_=sa.BigInteger()),
    )
)
_SLOT: Final = Statement(sa.update(t).values(release_slot_at=sa.bindparam("b_slot", type_=sa.BigInteger())))


def get(session: Session) -> Fleet:
    """The row, unlocked."""
    row = session.one(_GET)
    assert row is not None
    return Fleet(*row)


def lock(session: Session) -> Fleet:
    """The row, locked: recovery ticks of all replicas take turns."""
    row = session.one(_LOCK)
    assert row is not None
    return Fleet(*row)


def tick(session: Session, *, seen_at: int, up_since: int) -> None:
    """Some dispatcher was well at *seen_at*; ages count from *up_since*."""
    session.run(_TICK, b_seen_at=seen_at, b_up_since=up_since)


def take_slots(session: Session, slot_at: int) -> None:
    """The next release of the fleet may happen at *slot_at*."""
    session.run(_SLOT, b_slot=slot_at)
