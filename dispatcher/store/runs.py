"""Runs: the wide, cold rows. Every move of a status goes through `move`, which guards it and writes its history."""

from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from dispatcher import lifecycle
from dispatcher.store import transitions
from dispatcher.store.schema import now
from dispatcher.store.schema import run as t
from dispatcher.store.session import Session, Statement, columns_of
from endpoint_sdk.wire.messages import Status


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
    stop: str | None
    cancel_forced_at: int | None
    ever_claimed: int
    deliveries: int
    input: bytes
    result: bytes | None
    error: bytes | None
    traceparent: str | None


def _p(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Text) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


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
}
_INSERT_VALUES: Final[dict[str, Any]] = {
    **{name: _p(f"b_{name}", kind) for name, kind in _BORN.items()},
    "status": sa.literal_column("'queued'"),
    "revision": 0,
    "attempt": 1,
    "created_at": _p("b_now", sa.BigInteger),
    "queued_at": _p("b_now", sa.BigInteger),
    "due_at": _p("b_now", sa.BigInteger),
    "updated_at": _p("b_now", sa.BigInteger),
}


# PostgreSQL's construct for ON CONFLICT DO NOTHING compiles to the same words for SQLite.
_INSERT: Final = Statement(postgresql.insert(t).values(**_INSERT_VALUES).on_conflict_do_nothing().returning(*COLUMNS))
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
        error=_p("b_error", sa.LargeBinary),
        deliveries=t.c.deliveries + _p("b_deliveries", sa.Integer),
        ever_claimed=sa.case((_p("b_to") == sa.literal_column("'running'"), 1), else_=t.c.ever_claimed),
        queued_at=sa.case((_p("b_to") == sa.literal_column("'queued'"), now), else_=t.c.queued_at),
        finished_at=sa.case(
            (_p("b_to").in_([sa.literal_column(f"'{status}'") for status in sorted(lifecycle.TERMINAL)]), now),
            else_=sa.null(),
        ),
        updated_at=now,
    )
    .returning(*COLUMNS)
)


class Birth(msgspec.Struct, frozen=True):
    """What a submit decides about a run; the rest follows from being born queued at revision 0."""

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
    """The run, born queued at revision 0, or None when its idempotency key or request id is taken."""
    values = {f"b_{name}": getattr(birth, name) for name in birth.__struct_fields__}
    row = session.one(_INSERT, **values, b_now=now_ms)
    return Row(*row) if row else None


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
) -> Row | None:
    """The run one revision on and in status *after*, its history appended; None when it had moved already.

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
    )
    if row is None:
        return None
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
    return Row(*row)
