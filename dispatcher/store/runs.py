"""Runs: the wide, cold rows. Every move of a status goes through `move`, which guards it and writes its history."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from dispatcher import lifecycle
from dispatcher.store import transitions
from dispatcher.store.schema import now
from dispatcher.store.schema import run as t
from dispatcher.store.session import Session, Statement, columns_of
from endpoint_sdk.wire.messages import Status, Stop


class Row(msgspec.Struct, frozen=True):
    id: str
    namespace: str
    workflow: str
    version: str
    status: Status
    reason: str | None
    revision: int
    attempt: int
    priority: int
    pool: str
    tags: str
    idempotency_key: str | None
    request_id: str | None
    note: str | None
    parent_id: str | None
    scheduled_for: int | None
    created_at: int
    queued_at: int | None
    due_at: int | None
    updated_at: int
    finished_at: int | None
    signal_seq: int
    stop: Stop | None
    cancel_forced_at: int | None
    ever_claimed: int
    deliveries: int
    input: bytes
    result: bytes | None
    error: bytes | None
    traceparent: str | None
    wake_at: int | None
    parked_as: Status | None
    cancel_reason: str | None
    event_seq: int
    parent_call: str | None
    parent_index: int | None
    children: int
    cascade: int
    generation: int
    lane: str | None
    lane_limit: int | None
    expires_at: int | None
    schedule: str | None


def _p(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Text) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


def _literals(statuses: Iterable[Status]) -> list[sa.ColumnClause[Any]]:
    return [sa.literal_column(f"'{status}'") for status in sorted(statuses)]


COLUMNS: Final = columns_of(Row, t)
_this: Final = t.c.id == _p("b_id")
_GET: Final = Statement(sa.select(*COLUMNS).where(_this))
_LOCK: Final = Statement(sa.select(*COLUMNS).where(_this).with_for_update())
_BY_KEY: Final = Statement(
    sa.select(*COLUMNS).where(
        t.c.namespace == _p("b_namespace"), t.c.workflow == _p("b_workflow"), t.c.idempotency_key == _p("b_key")
    )
)
_BY_REQUEST: Final = Statement(
    sa.select(*COLUMNS).where(t.c.namespace == _p("b_namespace"), t.c.request_id == _p("b_request_id"))
)
_NOTE: Final = Statement(sa.update(t).where(_this).values(note=_p("b_note"), updated_at=now))
_STOP: Final = Statement(sa.update(t).where(_this).values(stop=_p("b_stop"), updated_at=now))
_CANCEL: Final = Statement(
    sa.update(t)
    .where(_this)
    .values(
        stop=sa.literal_column("'cancel'"),
        cancel_reason=_p("b_reason"),
        cancel_forced_at=_p("b_forced_at", sa.BigInteger),
        updated_at=now,
    )
)
_BORN: Final[dict[str, type[sa.types.TypeEngine[Any]]]] = {
    "id": sa.Text,
    "namespace": sa.Text,
    "workflow": sa.Text,
    "version": sa.Text,
    "priority": sa.SmallInteger,
    "pool": sa.Text,
    "tags": sa.Text,
    "idempotency_key": sa.Text,
    "request_id": sa.Text,
    "input": sa.LargeBinary,
    "parent_id": sa.Text,
    "parent_call": sa.Text,
    "parent_index": sa.Integer,
    "scheduled_for": sa.BigInteger,
    "schedule": sa.Text,
    "lane": sa.Text,
    "lane_limit": sa.Integer,
    "expires_at": sa.BigInteger,
}
_INSERT_VALUES: Final[dict[str, Any]] = {
    **{name: _p(f"b_{name}", kind) for name, kind in _BORN.items()},
    "status": _p("b_status"),
    "revision": 0,
    "attempt": 1,
    "created_at": _p("b_now", sa.BigInteger),
    "queued_at": _p("b_queued_at", sa.BigInteger),
    "due_at": _p("b_due_at", sa.BigInteger),
    "wake_at": _p("b_wake_at", sa.BigInteger),
    "updated_at": _p("b_now", sa.BigInteger),
}


# PostgreSQL's construct for ON CONFLICT DO NOTHING compiles to the same words for SQLite.
_insert: Final = postgresql.insert(t).values(**_INSERT_VALUES).on_conflict_do_nothing()
_INSERT: Final = Statement(_insert.returning(*COLUMNS))
_INSERT_MANY: Final = Statement(_insert)
_ends: Final = _p("b_to").in_(_literals(lifecycle.TERMINAL))
# An unfinished run has an error while it waits for the next attempt after that, wherever it waits.
_between_attempts: Final = sa.and_(t.c.error.is_not(None), t.c.finished_at.is_(None))
_MOVE: Final = Statement(
    sa.update(t)
    .where(_this, t.c.revision == _p("b_revision", sa.Integer), t.c.status == _p("b_from"))
    .values(
        status=_p("b_to"),
        revision=t.c.revision + 1,
        reason=_p("b_reason"),
        version=sa.func.coalesce(_p("b_version"), t.c.version),
        note=sa.func.coalesce(_p("b_note"), t.c.note),
        result=sa.func.coalesce(_p("b_result", sa.LargeBinary), t.c.result),
        error=sa.func.coalesce(
            _p("b_error", sa.LargeBinary),
            sa.case((sa.and_(_between_attempts, _p("b_to").in_(_literals({"paused", "awaiting_retry"}))), t.c.error)),
        ),
        attempt=sa.case(
            (sa.and_(_between_attempts, _p("b_to") == sa.literal_column("'queued'")), t.c.attempt + 1),
            else_=t.c.attempt,
        ),
        deliveries=t.c.deliveries + _p("b_deliveries", sa.Integer),
        ever_claimed=sa.case((_p("b_to") == sa.literal_column("'running'"), 1), else_=t.c.ever_claimed),
        queued_at=sa.case((_p("b_to") == sa.literal_column("'queued'"), now), else_=t.c.queued_at),
        finished_at=sa.case(
            (_ends, now),
            else_=sa.null(),
        ),
        # A request to pause is met when the run is paused, and nothing is asked of a run that cannot go on. That a run
        # was to be cancelled stays with it.
        stop=sa.case(
            (sa.and_(_ends, t.c.stop == sa.literal_column("'pause'")), sa.null()),
            (_p("b_to").in_(_literals({"paused", "stalled"})), sa.null()),
            else_=t.c.stop,
        ),
        cancel_forced_at=sa.case((_ends, sa.null()), else_=t.c.cancel_forced_at),
        cascade=sa.case(
            (sa.and_(_p("b_to") == sa.literal_column("'cancelled'"), t.c.children > 0), 1), else_=t.c.cascade
        ),
        expires_at=sa.case((_ends, sa.null()), else_=t.c.expires_at),
        wake_at=_p("b_wake_at", sa.BigInteger),
        parked_as=_p("b_parked_as"),
        updated_at=now,
    )
    .returning(*COLUMNS)
)
_SIGNAL: Final = Statement(
    sa.update(t)
    .where(_this)
    .values(signal_seq=t.c.signal_seq + 1, event_seq=t.c.event_seq + 1)
    .returning(t.c.event_seq)
)
_BEGIN_ANEW: Final = Statement(
    sa.update(t)
    .where(_this)
    .values(input=_p("b_input", sa.LargeBinary), generation=t.c.generation + 1, attempt=1)
    .returning(*COLUMNS)
)
_EXPIRED: Final = Statement(sa.update(t).where(_this).values(expires_at=None))
# What it started is started anew, under the same key if it has one.
_WAKE_AT: Final = Statement(sa.update(t).where(_this).values(wake_at=_p("b_wake_at", sa.BigInteger)))


class Birth(msgspec.Struct, frozen=True):
    """What a submit decides about a run, born at revision 0: queued, or scheduled for *due_at* or in *delay_ms*."""

    id: str
    namespace: str
    workflow: str
    version: str
    priority: int
    pool: str
    tags: str
    idempotency_key: str | None
    request_id: str | None
    input: bytes
    due_at: int | None = None
    delay_ms: int = 0
    parent_id: str | None = None
    parent_call: str | None = None
    parent_index: int | None = None
    scheduled_for: int | None = None
    schedule: str | None = None
    lane: str | None = None
    lane_limit: int | None = None
    expires_at: int | None = None


def get(session: Session, run_id: str) -> Row | None:
    """The run, unlocked."""
    row = session.one(_GET, b_id=run_id)
    return Row(*row) if row else None


def lock(session: Session, run_id: str) -> Row | None:
    """The run, locked until the transaction ends; its entry has been locked before."""
    row = session.one(_LOCK, b_id=run_id)
    return Row(*row) if row else None


def by_idempotency_key(session: Session, namespace: str, workflow: str, key: str) -> Row | None:
    """The run a caller named by its own key."""
    row = session.one(_BY_KEY, b_namespace=namespace, b_workflow=workflow, b_key=key)
    return Row(*row) if row else None


def by_request(session: Session, namespace: str, request_id: str) -> Row | None:
    """The run an earlier copy of the same submit made."""
    row = session.one(_BY_REQUEST, b_namespace=namespace, b_request_id=request_id)
    return Row(*row) if row else None


def insert(session: Session, birth: Birth, now_ms: int) -> Row | None:
    """The run, born at revision 0, or None when its idempotency key or request id is taken.

    It is queued if it is due at *now_ms*, else scheduled.
    """
    due_at = (now_ms if birth.due_at is None else birth.due_at) + birth.delay_ms
    later = due_at > now_ms
    row = session.one(
        _INSERT,
        **{f"b_{name}": getattr(birth, name) for name in _BORN},
        b_now=now_ms,
        b_status="scheduled" if later else "queued",
        b_queued_at=None if later else now_ms,
        b_due_at=due_at,
        b_wake_at=due_at if later else None,
    )
    return Row(*row) if row else None


def insert_many(session: Session, births: Sequence[Birth], now_ms: int) -> int:
    """As `insert` of each, in one go, all due at *now_ms*; answers how many were new."""
    moment = {"b_now": now_ms, "b_status": "queued", "b_queued_at": now_ms, "b_due_at": now_ms, "b_wake_at": None}
    return session.run_many(
        _INSERT_MANY, [{**{f"b_{name}": getattr(birth, name) for name in _BORN}, **moment} for birth in births]
    )


def signal(session: Session, run_id: str) -> int:
    """One more event has come to the run, locked by the caller: answers the event's number."""
    row = session.one(_SIGNAL, b_id=run_id)
    assert row is not None, "the run is locked"
    return int(row[0])


def begin_anew(session: Session, run_id: str, payload: bytes) -> Row:
    """The run has *payload* as its input and is at the first attempt of its next generation."""
    row = session.one(_BEGIN_ANEW, b_id=run_id, b_input=payload)
    assert row is not None, "the run is locked"
    return Row(*row)


def forget_expiry(session: Session, run_id: str) -> None:
    """What was to happen when the run's time is up has happened."""
    session.run(_EXPIRED, b_id=run_id)


def set_wake_at(session: Session, run_id: str, wake_at: int | None) -> None:
    """The timers look at the run at *wake_at*, or never."""
    session.run(_WAKE_AT, b_id=run_id, b_wake_at=wake_at)


def set_stop(session: Session, run_id: str, stop: Stop | None) -> None:
    """The executor of the run is asked to *stop*, or to go on."""
    session.run(_STOP, b_id=run_id, b_stop=stop)


def request_cancel(session: Session, run_id: str, reason: str | None, forced_at: int) -> None:
    """The run is to cancel itself until *forced_at*; a request to pause ends with that."""
    session.run(_CANCEL, b_id=run_id, b_reason=reason, b_forced_at=forced_at)


def set_note(session: Session, run_id: str, note: str) -> None:
    """The run shows *note* to whoever looks at it."""
    session.run(_NOTE, b_id=run_id, b_note=note)


def move(
    session: Session,
    run_id: str,
    revision: int,
    before: Status,
    after: Status,
    *,
    actor: str,
    reason: str | None = None,
    request_id: str | None = None,
    details: dict[str, Any] | None = None,
    note: str | None = None,
    result: bytes | None = None,
    error: bytes | None = None,
    version: str | None = None,
    deliveries: int = 0,
    wake_at: int | None = None,
    parked_as: Status | None = None,
) -> Row | None:
    """The run one revision on and in status *after*, its history appended; None when it had moved already.

    A request to pause ends when the run is paused, stalled or ended; *wake_at* and *parked_as* are gone unless given.
    The *error* of a run that is to try again stays until it is queued, which is its next attempt.

    Raises ValueError for a move the lifecycle does not know: a mistake of ours, never of a caller.
    """
    if not lifecycle.is_legal(before, after):
        raise ValueError(f"{before} -> {after} is not a legal move")
    row = session.one(
        _MOVE,
        b_id=run_id,
        b_revision=revision,
        b_from=before,
        b_to=after,
        b_reason=reason,
        b_version=version,
        b_note=note,
        b_result=result,
        b_error=error,
        b_deliveries=deliveries,
        b_wake_at=wake_at,
        b_parked_as=parked_as,
    )
    if row is None:
        return None
    moved = Row(*row)
    if moved.stop == "cancel" and after in {"completed", "failed"}:
        details = {**(details or {}), "cancelRequested": True}
    transitions.append(
        session,
        run_id,
        revision + 1,
        before,
        after,
        reason=reason,
        actor=actor,
        request_id=request_id,
        details=details,
    )
    return moved
