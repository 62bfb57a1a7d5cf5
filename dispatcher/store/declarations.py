"""What the code of workflows declares of itself: one row for each (namespace, workflow, version), as JSON."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from dispatcher.store.schema import now
from dispatcher.store.schema import workflow_declaration as t
from dispatcher.store.session import Session, Statement


class Row(NamedTuple):
    """*declared* is a ServedWorkflow as JSON, as it has been since *declared_at*."""

    namespace: str
    workflow: str
    version: str
    declared: str
    declared_at: int


def _p(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=sa.Text())


_COLUMNS: Final = [t.c[name] for name in Row._fields]
_upsert: Final = postgresql.insert(t).values(
    namespace=_p("b_namespace"),
    workflow=_p("b_workflow"),
    version=_p("b_version"),
    declared=_p("b_declared"),
    declared_at=now,
)
# SQLite knows the same words.
_PUT: Final = Statement(
    _upsert.on_conflict_do_update(
        index_elements=[t.c.namespace, t.c.workflow, t.c.version],
        set_={"declared": _upsert.excluded.declared, "declared_at": _upsert.excluded.declared_at},
        where=t.c.declared != _upsert.excluded.declared,
    )
)
_OF_WORKFLOW: Final = Statement(
    sa.select(*_COLUMNS)
    .where(t.c.namespace.in_([_p("b_namespace"), _p("b_everywhere")]), t.c.workflow == _p("b_workflow"))
    .order_by(t.c.namespace == _p("b_everywhere"), t.c.declared_at.desc(), t.c.version)
)
_ALL: Final = Statement(sa.select(*_COLUMNS).order_by(t.c.namespace, t.c.workflow, t.c.version))


def put(session: Session, namespace: str, declared: Iterable[tuple[str, str, str]]) -> int:
    """Each (workflow, version, JSON) is declared in *namespace*; answers how many were not, or otherwise."""
    rows = [
        {"b_namespace": namespace, "b_workflow": workflow, "b_version": version, "b_declared": text}
        for workflow, version, text in sorted(declared)  # in one order everywhere, so that no two wait for ever
    ]
    return session.run_many(_PUT, rows)


def of_workflow(session: Session, namespace: str, everywhere: str, workflow: str) -> list[Row]:
    """Every version of *workflow*: those of *namespace* first, then those of *everywhere*, each the newest first."""
    rows = session.all(_OF_WORKFLOW, b_namespace=namespace, b_everywhere=everywhere, b_workflow=workflow)
    return [Row(*row) for row in rows]


def every(session: Session) -> list[Row]:
    """Every declaration of every namespace, in the order of their keys."""
    return [Row(*row) for row in session.all(_ALL)]
