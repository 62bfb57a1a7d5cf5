"""What pollers say they serve: one row for each (namespace, workflow, version), with when it was last said."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dispatcher.store.schema import served_workflow as t
from dispatcher.store.session import Session, Statement


class Served(NamedTuple):
    """Pollers have served the version since `first_seen_at` without an absence that counts, last at `seen_at`."""

    version: str
    first_seen_at: int
    seen_at: int


def _int(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=sa.BigInteger())


def _pairs(dialect: str) -> tuple[sa.TableValuedAlias, list[sa.ColumnElement[str]]]:
    given = sa.bindparam("b_pairs", type_=sa.Text())
    if dialect == "sqlite":
        pairs = sa.func.json_each(given).table_valued("value", name="pairs")
        return pairs, [sa.func.json_extract(pairs.c.value, f"$[{place}]") for place in (0, 1)]
    pairs = sa.func.json_array_elements(sa.cast(given, sa.JSON)).table_valued("value", name="pairs")
    return pairs, [pairs.c.value.op("->>")(sa.literal_column(str(place))) for place in (0, 1)]


def _see(dialect: str) -> Statement:
    _, (workflow, version) = _pairs(dialect)
    # SQLite takes the ON of an upsert for that of a join unless a WHERE stands between.
    rows = sa.select(
        sa.bindparam("b_namespace", type_=sa.Text()), workflow, version, _int("b_now"), _int("b_now")
    ).where(sa.literal_column("1 = 1"))
    insert = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(t)
    upsert = insert.from_select([t.c.namespace, t.c.workflow, t.c.version, t.c.first_seen_at, t.c.seen_at], rows)
    return Statement(
        upsert.on_conflict_do_update(
            index_elements=[t.c.namespace, t.c.workflow, t.c.version],
            set_={
                "first_seen_at": sa.case(
                    (t.c.seen_at < _int("b_absent_before"), upsert.excluded.first_seen_at), else_=t.c.first_seen_at
                ),
                "seen_at": upsert.excluded.seen_at,
            },
        )
    )


_SEE: Final = {dialect: _see(dialect) for dialect in ("sqlite", "postgresql")}
_VERSIONS: Final = Statement(
    sa.select(t.c.version, t.c.first_seen_at, t.c.seen_at)
    .where(t.c.namespace == sa.bindparam("b_namespace"), t.c.workflow == sa.bindparam("b_workflow"))
    .order_by(t.c.version)
)
_SEEN: Final = Statement(
    sa.select(t.c.workflow, t.c.version, t.c.seen_at).where(t.c.namespace == sa.bindparam("b_namespace"))
)


def see(session: Session, namespace: str, pairs: Sequence[tuple[str, str]], *, now_ms: int, absent_before: int) -> None:
    """Each (workflow, version) is served at *now_ms*, newly so if nobody has said it since *absent_before*."""
    # In one order everywhere: two dispatchers that write the same rows wait for each other, they do not deadlock.
    session.run(
        _SEE[session.dialect],
        b_namespace=namespace,
        b_pairs=msgspec.json.encode(sorted(pairs)).decode(),
        b_now=now_ms,
        b_absent_before=absent_before,
    )


def versions(session: Session, namespace: str, workflow: str) -> list[Served]:
    """Every version of *workflow* that pollers of *namespace* have ever served."""
    return [Served(*row) for row in session.all(_VERSIONS, b_namespace=namespace, b_workflow=workflow)]


def seen_in(session: Session, namespace: str) -> dict[tuple[str, str], int]:
    """When pollers of *namespace* last asked for each (workflow, version)."""
    return {(workflow, version): seen_at for workflow, version, seen_at in session.all(_SEEN, b_namespace=namespace)}
