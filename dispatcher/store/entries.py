"""Outbox entries: the narrow rows that say which run is deliverable or claimed.

An entry is locked before its run, always. The fence of an executor's write is the predicate of `lock_held`: run,
revision, claim id and `claimed`, checked under the row's lock (infra/docs/protocol.md, I2).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from dispatcher.store.schema import CLAIMED, HAS_PLACE, PENDING, PUBLISHED, now, run
from dispatcher.store.schema import outbox_entry as t
from dispatcher.store.session import Session, Statement, columns_of
from endpoint_sdk.wire.messages import Stop


class Entry(msgspec.Struct, frozen=True):
    run_id: str
    revision: int
    queue: str
    rank: int
    status: str
    next_publish_at: int
    queued_at: int
    attempt: int
    push_number: int
    publisher_index: int
    publisher: str | None
    failures: int
    endings: int
    kills: int
    claim_id: str | None
    claim_push_number: int | None
    executor: str | None
    claimed_at: int | None
    refreshed_at: int | None
    recorded_at: int | None
    route: str | None
    published_at: int | None
    copies: int
    signals: int
    lane: str | None
    held: int
    step: str | None = None


class Seen(NamedTuple):
    """What the holder of a claim is told when it writes: what it is asked to do, the number of the newest signal.

    And *step*, the task it last said it was in.
    """

    stop: Stop | None
    signal_seq: int
    step: str | None = None


COLUMNS: Final = columns_of(Entry, t)


def _p(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Text) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


_this: Final = t.c.run_id == _p("b_run_id")
_held: Final = sa.and_(
    _this, t.c.revision == _p("b_revision", sa.Integer), t.c.claim_id == _p("b_claim_id"), t.c.status == CLAIMED
)
_unclaimed: Final[dict[str, Any]] = {
    "claim_id": None,
    "claim_push_number": None,
    "executor": None,
    "claimed_at": None,
    "refreshed_at": None,
    "recorded_at": None,
    "step": None,
}
_unpublished: Final[dict[str, Any]] = {"publisher": None, "route": None, "published_at": None}

_GET: Final = Statement(sa.select(*COLUMNS).where(_this))
_LOCK: Final = Statement(sa.select(*COLUMNS).where(_this).with_for_update())
_LOCK_HELD: Final = Statement(sa.select(*COLUMNS).where(_held).with_for_update())
_INSERT: Final = Statement(
    sa.insert(t).values(
        run_id=_p("b_run_id"),
        revision=_p("b_revision", sa.Integer),
        queue=_p("b_queue"),
        rank=_p("b_rank", sa.BigInteger),
        status=PENDING,
        next_publish_at=_p("b_next", sa.BigInteger),
        queued_at=now,
        attempt=_p("b_attempt", sa.Integer),
        lane=_p("b_lane"),
        held=_p("b_held", sa.SmallInteger),
    )
)
_CLAIM: Final = Statement(
    sa.update(t)
    .where(_this, t.c.revision == _p("b_revision", sa.Integer), t.c.status != CLAIMED, HAS_PLACE)
    .values(
        status=CLAIMED,
        revision=t.c.revision + 1,
        claim_id=_p("b_claim_id"),
        claim_push_number=_p("b_push_number", sa.Integer),
        executor=_p("b_executor"),
        claimed_at=now,
        refreshed_at=now,
        recorded_at=None,
        step=None,
        failures=0,
        copies=0,
        signals=0,
    )
)
_seen: Final = [
    *(
        sa.select(run.c[name]).where(run.c.id == t.c.run_id).correlate(t).scalar_subquery()
        for name in ("stop", "signal_seq")
    ),
    t.c.step,
]
_FREE: Final = (
    sa.select(t.c.run_id).where(_held).with_for_update(skip_locked=True).cte("free").prefix_with("MATERIALIZED")
)
_REFRESH: Final = Statement(sa.update(t).where(t.c.run_id == _FREE.c.run_id).values(refreshed_at=now).returning(*_seen))
_PROGRESS: Final = Statement(
    sa.update(t).where(_held).values(refreshed_at=now, recorded_at=now, endings=0, kills=0).returning(*_seen)
)
_STEP: Final = Statement(sa.update(t).where(_held).values(step=_p("b_step")))
_COUNTED: Final = Statement(
    sa.update(t).where(_this).values(endings=_p("b_endings", sa.Integer), kills=_p("b_kills", sa.Integer))
)
_SIGNALS: Final = Statement(sa.update(t).where(_this).values(signals=_p("b_signals", sa.Integer)))
_RELEASE: Final = Statement(
    sa.update(t)
    .where(_held)
    .values(
        status=PENDING,
        revision=t.c.revision + 1,
        next_publish_at=_p("b_next", sa.BigInteger),
        queued_at=now,
        publisher_index=t.c.publisher_index + 1,
        copies=0,
        endings=_p("b_endings", sa.Integer),
        kills=_p("b_kills", sa.Integer),
        **_unpublished,
        **_unclaimed,
    )
)
_delivered: Final = sa.and_(
    _this,
    t.c.revision == _p("b_revision", sa.Integer),
    t.c.push_number == _p("b_push_number", sa.Integer),
    t.c.status == PUBLISHED,
)
_UNPUBLISH: Final = Statement(
    sa.update(t)
    .where(_delivered)
    .values(
        status=PENDING,
        next_publish_at=_p("b_next", sa.BigInteger),
        publisher_index=t.c.publisher_index + 1,
        failures=_p("b_failures", sa.Integer),
        endings=_p("b_endings", sa.Integer),
        **_unpublished,
    )
)
_COPIED: Final = Statement(
    sa.update(t)
    .where(_delivered)
    .values(
        next_publish_at=_p("b_next", sa.BigInteger),
        failures=_p("b_failures", sa.Integer),
        copies=_p("b_copies", sa.Integer),
    )
)
_HOLD: Final = Statement(sa.update(t).where(_delivered).values(next_publish_at=_p("b_next", sa.BigInteger)))
_DELETE: Final = Statement(sa.delete(t).where(_this).returning(t.c.push_number, t.c.lane))


def get(session: Session, run_id: str) -> Entry | None:
    """The entry of *run_id*, unlocked."""
    row = session.one(_GET, b_run_id=run_id)
    return Entry(*row) if row else None


def lock(session: Session, run_id: str) -> Entry | None:
    """The entry of *run_id*, locked until the transaction ends."""
    row = session.one(_LOCK, b_run_id=run_id)
    return Entry(*row) if row else None


def lock_held(session: Session, run_id: str, revision: int, claim_id: str) -> Entry | None:
    """The entry, locked, if exactly this claim holds it at exactly this revision: the fence of every executor write."""
    row = session.one(_LOCK_HELD, b_run_id=run_id, b_revision=revision, b_claim_id=claim_id)
    return Entry(*row) if row else None


class New(NamedTuple):
    """The entry of a run that became queued: deliverable from *due_at* on, ranked by *rank*.

    With a *lane* it is held back until the lane has a place for it.
    """

    run_id: str
    revision: int
    queue: str
    rank: int
    due_at: int
    attempt: int
    lane: str | None = None


def insert(session: Session, new: New) -> None:
    """A run that became queued has its one entry, with fresh counters; whoever waits for it hears of that.

    Those are the relay and the pollers of its queue, or what opens the places of its lane.
    """
    session.run(_INSERT, **_row(new))
    _tell(session, new)


def insert_many(session: Session, new: Sequence[New]) -> None:
    """As `insert` of each, in one go."""
    session.run_many(_INSERT, [_row(entry) for entry in new])
    for entry in new:
        _tell(session, entry)


def _row(new: New) -> dict[str, Any]:
    return {
        "b_run_id": new.run_id,
        "b_revision": new.revision,
        "b_queue": new.queue,
        "b_rank": new.rank,
        "b_next": new.due_at,
        "b_attempt": new.attempt,
        "b_lane": new.lane,
        "b_held": int(new.lane is not None),
    }


def _tell(session: Session, new: New) -> None:
    if new.lane is not None:
        session.announce("lane", new.lane)
        return
    session.announce("queued", new.run_id)
    session.announce("backlog", new.queue)


def claim(session: Session, run_id: str, revision: int, claim_id: str, push_number: int | None, executor: str) -> bool:
    """Whether the unclaimed entry at *revision* became claimed, one revision on (I1)."""
    return (
        session.run(
            _CLAIM,
            b_run_id=run_id,
            b_revision=revision,
            b_claim_id=claim_id,
            b_push_number=push_number,
            b_executor=executor,
        )
        == 1
    )


def refresh(session: Session, run_id: str, revision: int, claim_id: str) -> Seen | None:
    """Something if the claim is held and its entry was free to say so: then it counts as alive from now.

    Never waits: one entry that is being written must not make a process late for all its other claims.
    """
    row = session.one(_REFRESH, b_run_id=run_id, b_revision=revision, b_claim_id=claim_id)
    return Seen(*row) if row else None


def note_progress(session: Session, run_id: str, revision: int, claim_id: str) -> Seen | None:
    """As `refresh`; a new record was written, so endings and kills start again at 0."""
    row = session.one(_PROGRESS, b_run_id=run_id, b_revision=revision, b_claim_id=claim_id)
    return Seen(*row) if row else None


def note_step(session: Session, run_id: str, revision: int, claim_id: str, step: str | None) -> None:
    """The holder of the claim is in the task *step*, or in none."""
    session.run(_STEP, b_run_id=run_id, b_revision=revision, b_claim_id=claim_id, b_step=step)


def note_signals(session: Session, run_id: str, seq: int) -> None:
    """Record *seq* is the newest outcome of a wait that was written while the claim is held."""
    session.run(_SIGNALS, b_run_id=run_id, b_signals=seq)


def set_counters(session: Session, run_id: str, *, endings: int, kills: int) -> None:
    """So many endings and kills without progress are counted for the run, whose entry the caller holds."""
    session.run(_COUNTED, b_run_id=run_id, b_endings=endings, b_kills=kills)


def release(session: Session, entry: Entry, *, due_at: int, endings: int, kills: int) -> bool:
    """Whether the claim *entry* was locked with ended, and the entry is pending, one revision on."""
    return (
        session.run(
            _RELEASE,
            b_run_id=entry.run_id,
            b_revision=entry.revision,
            b_claim_id=entry.claim_id,
            b_next=due_at,
            b_endings=endings,
            b_kills=kills,
        )
        == 1
    )


def unpublish(session: Session, entry: Entry, *, due_at: int, failures: int, endings: int) -> bool:
    """Whether the entry, still published under the same push number and unclaimed, is pending again."""
    return session.run(_UNPUBLISH, **_ended(entry, due_at, failures, endings)) == 1


class Handed(NamedTuple):
    """What a broker made of the delivery of *entry*: when it is due again, and how many in a row it did not take."""

    entry: Entry
    due_at: int
    failures: int


def unpublish_copies(session: Session, ended: Iterable[Handed]) -> int:
    """As `unpublish` for each, in one go and without counting an ending; answers how many."""
    rows = [_ended(entry, due_at, failures, entry.endings) for entry, due_at, failures in _in_lock_order(ended)]
    return session.run_many(_UNPUBLISH, rows)


def note_copies(session: Session, taken: Iterable[Handed]) -> int:
    """Each entry, still published under the same push number and unclaimed, has one copy more, and its slow clock.

    Answers how many.
    """
    rows = [
        {**_delivery(entry), "b_next": due_at, "b_failures": failures, "b_copies": entry.copies + 1}
        for entry, due_at, failures in _in_lock_order(taken)
    ]
    return session.run_many(_COPIED, rows)


def hold(session: Session, published: Iterable[Entry], until: int) -> int:
    """Those still published under the same push number and unclaimed stay so *until*; answers how many."""
    rows = [{**_delivery(entry), "b_next": until} for entry in sorted(published, key=lambda entry: entry.run_id)]
    return session.run_many(_HOLD, rows)


def _delivery(entry: Entry) -> dict[str, Any]:
    return {"b_run_id": entry.run_id, "b_revision": entry.revision, "b_push_number": entry.push_number}


def _ended(entry: Entry, due_at: int, failures: int, endings: int) -> dict[str, Any]:
    return {**_delivery(entry), "b_next": due_at, "b_failures": failures, "b_endings": endings}


def _in_lock_order(handed: Iterable[Handed]) -> list[Handed]:
    """Two transactions that write the same entries wait for one another's in one order, so neither waits for ever."""
    return sorted(handed, key=lambda item: item.entry.run_id)


def delete(session: Session, run_id: str) -> int:
    """The run is neither deliverable nor claimed any more; answers how often it was pushed since it was queued.

    If it has a lane, what opens the lane's places hears of it.
    """
    row = session.one(_DELETE, b_run_id=run_id)
    if row is None:
        return 0
    pushes, lane = row
    if lane is not None:
        session.announce("lane", lane)
    return int(pushes)
