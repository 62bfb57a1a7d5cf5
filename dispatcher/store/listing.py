"""Lists of runs, newest first, by whatever an operator filters on."""

from typing import Any, Final

import msgspec
import sqlalchemy as sa

from dispatcher import lifecycle
from dispatcher.store.entries import COLUMNS as ENTRY_COLUMNS
from dispatcher.store.entries import Entry
from dispatcher.store.runs import COLUMNS as RUN_COLUMNS
from dispatcher.store.runs import Row
from dispatcher.store.schema import outbox_entry, run
from dispatcher.store.session import Session, Statement


class RunFilter(msgspec.Struct, frozen=True):
    """None and empty filter nothing; `stuck_for_ms` keeps unfinished runs that have not moved for that long."""

    status: str | None = None
    reason: str | None = None
    workflow: str | None = None
    version: str | None = None
    idempotency_key: str | None = None
    tags: dict[str, str] = {}
    stuck_for_ms: int | None = None


_EQUALITIES: Final = ("status", "reason", "workflow", "version", "idempotency_key")
_JOINED: Final = sa.select(*RUN_COLUMNS, *ENTRY_COLUMNS).select_from(
    run.outerjoin(outbox_entry, outbox_entry.c.run_id == run.c.id)
)
_ONE: Final = Statement(_JOINED.where(run.c.id == sa.bindparam("b_id"), run.c.namespace == sa.bindparam("b_namespace")))
_statements: dict[tuple[Any, ...], Statement] = {}


def one(session: Session, namespace: str, run_id: str) -> tuple[Row, Entry | None] | None:
    """The run of that namespace and its outbox entry."""
    row = session.one(_ONE, b_id=run_id, b_namespace=namespace)
    return _split(row) if row else None


def page(
    session: Session, namespace: str, wanted: RunFilter, *, limit: int, after: str | None
) -> list[tuple[Row, Entry | None]]:
    """Up to *limit* runs older than the run *after*, newest first."""
    shape = (*shape_of(wanted), after is not None)
    statement = _statements.get(shape)
    if statement is None:
        statement = _statements[shape] = Statement(_select(wanted, after))
    values = values_of(session, wanted)
    if after is not None:
        values["b_after"] = after
    return [_split(row) for row in session.all(statement, b_namespace=namespace, b_limit=limit, **values)]


def shape_of(wanted: RunFilter) -> tuple[Any, ...]:
    """What of *wanted* its conditions depend on; the rest are values."""
    return (*_equal(wanted), len(wanted.tags), wanted.stuck_for_ms is not None)


def conditions(wanted: RunFilter) -> list[sa.ColumnElement[bool]]:
    """What is true of the runs that are *wanted*, in the namespace `b_namespace`."""
    found = [run.c.namespace == sa.bindparam("b_namespace")]
    found += [run.c[name] == sa.bindparam(f"b_{name}") for name in _equal(wanted)]
    for number in range(len(wanted.tags)):
        found.append(sa.func.strpos(run.c.tags, sa.bindparam(f"b_tag_{number}", type_=sa.Text())) > 0)
    if wanted.stuck_for_ms is not None:
        found.append(run.c.updated_at < sa.bindparam("b_before", type_=sa.BigInteger()))
        found.append(run.c.status.not_in([sa.literal_column(f"'{status}'") for status in sorted(lifecycle.TERMINAL)]))
    return found


def values_of(session: Session, wanted: RunFilter) -> dict[str, Any]:
    """The values of those conditions, but for the namespace."""
    values: dict[str, Any] = {f"b_{name}": getattr(wanted, name) for name in _equal(wanted)}
    values.update({f"b_tag_{n}": _pair(*pair) for n, pair in enumerate(sorted(wanted.tags.items()))})
    if wanted.stuck_for_ms is not None:
        values["b_before"] = session.now() - wanted.stuck_for_ms
    return values


def _equal(wanted: RunFilter) -> list[str]:
    return [name for name in _EQUALITIES if getattr(wanted, name) is not None]


def _select(wanted: RunFilter, after: str | None) -> sa.Select[Any]:
    query = _JOINED.where(*conditions(wanted))
    if after is not None:
        query = query.where(run.c.id < sa.bindparam("b_after"))
    return query.order_by(run.c.id.desc()).limit(sa.bindparam("b_limit", type_=sa.Integer()))


def _pair(key: str, value: str) -> str:
    # A quote inside a JSON string is escaped, so this text stands in `tags` only where the pair itself does.
    return msgspec.json.encode({key: value}).decode()[1:-1]


def _split(row: tuple[Any, ...]) -> tuple[Row, Entry | None]:
    width = len(RUN_COLUMNS)
    return Row(*row[:width]), Entry(*row[width:]) if row[width] is not None else None
