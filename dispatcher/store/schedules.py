"""Schedules: what starts by the clock, who owns it, and which of its occurrences is next."""

from typing import Any, Final, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from dispatcher.store.schema import now, run
from dispatcher.store.schema import schedule as t
from dispatcher.store.session import Session, Statement, columns_of
from endpoint_sdk.wire.messages import Overlap, Status

Owner = Literal["code", "yaml", "api"]


class Definition(msgspec.Struct, frozen=True):
    """What the owner of a schedule says of it; *tags* is a JSON object, *input* JSON bytes."""

    namespace: str
    name: str
    workflow: str
    version: str | None
    cron: str | None
    timezone: str
    every_ms: int | None
    input: bytes
    pool: str
    tags: str
    priority: int
    overlap: Overlap
    catch_up: int
    jitter_ms: int


class State(NamedTuple):
    """Which occurrence is next, when it is looked at, and why it could not start so far or never will."""

    next_at: int | None
    wake_at: int | None
    problem: str | None = None


class Row(Definition, frozen=True):
    """A schedule; *active* is 0 when its code no longer declares it, *updated_at* when somebody last changed it."""

    owner: Owner
    paused: int
    active: int
    next_at: int | None
    wake_at: int | None
    problem: str | None
    last_at: int | None
    last_run_id: str | None
    skipped: int
    created_at: int
    updated_at: int

    def definition(self) -> Definition:
        """What its owner said of it."""
        return Definition(*(getattr(self, name) for name in Definition.__struct_fields__))


class Key(NamedTuple):
    """A schedule that is due, and what it starts."""

    namespace: str
    name: str
    workflow: str
    version: str | None


def _p(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Text) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=kind())


_COLUMNS: Final = columns_of(Row, t)
_DEFINED: Final = Definition.__struct_fields__
_this: Final = sa.and_(t.c.namespace == _p("b_namespace"), t.c.name == _p("b_name"))
_in_force: Final = sa.and_(t.c.wake_at.is_not(None), t.c.paused == sa.literal_column("0"))
_GET: Final = Statement(sa.select(*_COLUMNS).where(_this))
_LOCK: Final = Statement(sa.select(*_COLUMNS).where(_this).with_for_update())
_LOCK_IF_FREE: Final = Statement(sa.select(*_COLUMNS).where(_this).with_for_update(skip_locked=True))
_PAGE: Final = Statement(
    sa.select(*_COLUMNS)
    .where(t.c.namespace == _p("b_namespace"), t.c.name > _p("b_after"))
    .order_by(t.c.name)
    .limit(_p("b_limit", sa.Integer))
)
_OWNED: Final = Statement(sa.select(*_COLUMNS).where(t.c.owner == _p("b_owner")).order_by(t.c.namespace, t.c.name))
_IN_FORCE: Final = Statement(sa.select(*_COLUMNS).where(_in_force).order_by(t.c.namespace, t.c.name))
_DUE: Final = Statement(
    sa.select(t.c.namespace, t.c.name, t.c.workflow, t.c.version)
    .where(_in_force, t.c.wake_at <= _p("b_now", sa.BigInteger))
    .order_by(t.c.wake_at)
    .limit(_p("b_limit", sa.Integer))
)
_UPCOMING: Final = Statement(sa.select(t.c.wake_at).where(_in_force).order_by(t.c.wake_at).limit(1))
_STATE: Final = {
    "next_at": _p("b_next_at", sa.BigInteger),
    "wake_at": _p("b_wake_at", sa.BigInteger),
    "problem": _p("b_problem"),
}
_INSERT: Final = Statement(
    sa.insert(t).values(
        {
            **{name: sa.bindparam(f"b_{name}", type_=t.c[name].type) for name in (*_DEFINED, "owner")},
            **_STATE,
            "created_at": _p("b_now", sa.BigInteger),
            "updated_at": _p("b_now", sa.BigInteger),
        }
    )
)
_DEFINE: Final = Statement(
    sa.update(t)
    .where(_this)
    .values(
        {
            **{
                name: sa.bindparam(f"b_{name}", type_=t.c[name].type)
                for name in (*_DEFINED, "owner")
                if name not in {"namespace", "name"}
            },
            **_STATE,
            "active": sa.literal_column("1"),
            "updated_at": now,
        }
    )
)
_SET: Final = Statement(sa.update(t).where(_this).values(_STATE))
_PAUSE: Final = Statement(sa.update(t).where(_this).values(paused=_p("b_paused", sa.SmallInteger), updated_at=now))
_RETIRE: Final = Statement(
    sa.update(t).where(_this).values({**_STATE, "active": sa.literal_column("0"), "updated_at": now})
)
_ADVANCE: Final = Statement(
    sa.update(t)
    .where(_this)
    .values(
        {
            **_STATE,
            "last_at": sa.func.coalesce(_p("b_last_at", sa.BigInteger), t.c.last_at),
            "last_run_id": sa.func.coalesce(_p("b_last_run_id"), t.c.last_run_id),
            "skipped": t.c.skipped + _p("b_skipped", sa.Integer),
        }
    )
)
_DELETE: Final = Statement(sa.delete(t).where(_this))
_open: Final = sa.and_(
    run.c.namespace == _p("b_namespace"), run.c.schedule == _p("b_name"), run.c.finished_at.is_(None)
)
_LIVE: Final = Statement(
    sa.select(run.c.id)
    .where(_open, sa.func.coalesce(run.c.stop, sa.literal_column("''")) != sa.literal_column("'cancel'"))
    .order_by(run.c.id)
    .limit(_p("b_limit", sa.Integer))
)
_IS_LIVE: Final = Statement(sa.select(run.c.id).where(_open).limit(1))
_STATUS: Final = Statement(sa.select(run.c.status).where(run.c.id == _p("b_id")))


def get(session: Session, namespace: str, name: str) -> Row | None:
    """The schedule, unlocked."""
    row = session.one(_GET, b_namespace=namespace, b_name=name)
    return Row(*row) if row else None


def lock(session: Session, namespace: str, name: str) -> Row | None:
    """The schedule, locked until the transaction ends. It is locked before every entry and run."""
    row = session.one(_LOCK, b_namespace=namespace, b_name=name)
    return Row(*row) if row else None


def lock_if_free(session: Session, namespace: str, name: str) -> Row | None:
    """As `lock`, None also while somebody else holds the lock."""
    row = session.one(_LOCK_IF_FREE, b_namespace=namespace, b_name=name)
    return Row(*row) if row else None


def page(session: Session, namespace: str, *, after: str, limit: int) -> list[Row]:
    """The schedules of *namespace* beyond name *after*, in the order of their names."""
    return [Row(*row) for row in session.all(_PAGE, b_namespace=namespace, b_after=after, b_limit=limit)]


def owned(session: Session, owner: Owner) -> list[Row]:
    """The schedules of *owner* in all namespaces."""
    return [Row(*row) for row in session.all(_OWNED, b_owner=owner)]


def in_force(session: Session) -> list[Row]:
    """The schedules of all namespaces that are not paused and have an occurrence to come."""
    return [Row(*row) for row in session.all(_IN_FORCE)]


def due(session: Session, now_ms: int, limit: int) -> list[Key]:
    """The schedules to be looked at by *now_ms*, those due longest first."""
    return [Key(*row) for row in session.all(_DUE, b_now=now_ms, b_limit=limit)]


def upcoming(session: Session) -> int | None:
    """When the next schedule is to be looked at."""
    row = session.one(_UPCOMING)
    return None if row is None else int(row[0])


def insert(session: Session, given: Definition, owner: Owner, state: State, now_ms: int) -> None:
    """There is such a schedule from *now_ms* on; its name is new."""
    session.run(_INSERT, **_defined(given, owner), **_stated(state), b_now=now_ms)


def define(session: Session, given: Definition, owner: Owner, state: State) -> None:
    """The schedule, locked by the caller, is as *given*; whether it is paused, and its past, stay."""
    session.run(_DEFINE, **_defined(given, owner), **_stated(state))


def set_state(session: Session, row: Row, state: State) -> None:
    """The schedule, locked by the caller, has this occurrence next."""
    session.run(_SET, b_namespace=row.namespace, b_name=row.name, **_stated(state))


def set_paused(session: Session, row: Row, *, paused: bool) -> None:
    """The schedule, locked by the caller, is paused, or is not."""
    session.run(_PAUSE, b_namespace=row.namespace, b_name=row.name, b_paused=int(paused))


def retire(session: Session, row: Row, problem: str) -> None:
    """The schedule, locked by the caller, starts nothing any more; *problem* says why."""
    session.run(_RETIRE, b_namespace=row.namespace, b_name=row.name, **_stated(State(None, None, problem)))


def advance(session: Session, row: Row, state: State, *, skipped: int = 0, last: tuple[int, str] | None = None) -> None:
    """What was due of the schedule, locked by the caller, is done with; *last* is what it started last."""
    session.run(
        _ADVANCE,
        b_namespace=row.namespace,
        b_name=row.name,
        **_stated(state),
        b_last_at=last and last[0],
        b_last_run_id=last and last[1],
        b_skipped=skipped,
    )


def delete(session: Session, namespace: str, name: str) -> None:
    """There is no such schedule; runs it started are as they were."""
    session.run(_DELETE, b_namespace=namespace, b_name=name)


def is_live(session: Session, namespace: str, name: str) -> bool:
    """Whether a run of the schedule has not ended."""
    return session.one(_IS_LIVE, b_namespace=namespace, b_name=name) is not None


def live(session: Session, namespace: str, name: str, limit: int) -> list[str]:
    """The runs of the schedule that have not ended and were not asked to, the oldest first."""
    return [row[0] for row in session.all(_LIVE, b_namespace=namespace, b_name=name, b_limit=limit)]


def status_of(session: Session, run_id: str) -> Status | None:
    """Where the run is, None if it is gone."""
    row = session.one(_STATUS, b_id=run_id)
    return None if row is None else row[0]


def _defined(given: Definition, owner: Owner) -> dict[str, Any]:
    return {**{f"b_{name}": getattr(given, name) for name in _DEFINED}, "b_owner": owner}


def _stated(state: State) -> dict[str, Any]:
    return {"b_next_at": state.next_at, "b_wake_at": state.wake_at, "b_problem": state.problem}
