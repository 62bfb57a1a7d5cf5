"""Statements compiled once, sent on the driver's own connection.

Core writes the SQL for both databases; at run time nothing of SQLAlchemy is on the path. A `Session` is one open
transaction of one store thread; store functions take it, return rows or None, and never commit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.elements import ClauseElement

T = TypeVar("T")

DIALECTS: Final[dict[str, Any]] = {
    "postgresql": postgresql.psycopg.dialect(),  # type: ignore[no-untyped-call]
    "sqlite": sqlite.dialect(paramstyle="named"),
}


class Cursor(Protocol):
    """What both drivers' cursors offer."""

    @property
    def rowcount(self) -> int: ...
    def execute(self, sql: Any, parameters: Any = ..., /) -> Any: ...
    def executemany(self, sql: Any, parameters: Any, /) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Statement:
    """A Core statement with its text per dialect; bind parameters are given by name when it runs."""

    def __init__(self, core: ClauseElement) -> None:
        self._core = core
        self._compiled: dict[str, tuple[str, dict[str, Any]]] = {}

    def compiled(self, dialect: str) -> tuple[str, dict[str, Any]]:
        """The SQL text and the parameters that have a value of their own."""
        found = self._compiled.get(dialect)
        if found is None:
            compiled = self._core.compile(dialect=DIALECTS[dialect])
            fixed = {k: v for k, v in compiled.params.items() if v is not None or not _is_required(compiled, k)}
            found = self._compiled[dialect] = (str(compiled), fixed)
        return found


def _is_required(compiled: Any, name: str) -> bool:
    return any(bind.required for bind, key in compiled.bind_names.items() if key == name)


class Session:
    """One transaction on one connection of the store."""

    def __init__(self, cursor: Cursor, dialect: str) -> None:
        self._cursor = cursor
        self.dialect = dialect
        self.statements = 0
        self.announced: list[tuple[str, str]] = []
        self._last: list[tuple[str, Callable[[Session], None]]] = []

    def defer(self, key: str, operation: "Callable[[Session], None]") -> None:
        """Before the commit, when everything else is done, *operation* is called; several in the order of their keys.

        For locks that come last in the order of locks: a transaction of many rows takes them one after another.
        """
        self._last.append((key, operation))

    def finish(self) -> None:
        """All that was put off until now is done; the transaction can commit."""
        while self._last:
            due, self._last = sorted(self._last, key=lambda item: item[0]), []
            for _key, operation in due:
                operation(self)

    def announce(self, kind: str, what: str) -> None:
        """After the commit, listeners of *kind* hear of *what*: a run's id, of `backlog` a queue's key."""
        self.announced.append((kind, what))

    def all(self, statement: Statement, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """Every row of *statement*, as tuples in the order of its columns."""
        self._send(statement, parameters)
        return self._cursor.fetchall()

    def one(self, statement: Statement, /, **parameters: Any) -> tuple[Any, ...] | None:
        """The first row of *statement*, or None."""
        rows = self.all(statement, **parameters)
        return rows[0] if rows else None

    def run(self, statement: Statement, /, **parameters: Any) -> int:
        """How many rows *statement*, which returns none, changed.

        Not for a statement that begins with WITH: sqlite3 does not count its rows, so it has to return them.
        """
        self._send(statement, parameters)
        return self._cursor.rowcount

    def run_many(self, statement: Statement, rows: Sequence[Mapping[str, Any]]) -> int:
        """How many rows *statement* changed, run once for each of *rows*, in their order and without waiting between.

        As `run`, not for a statement that begins with WITH.
        """
        if not rows:
            return 0
        text, fixed = statement.compiled(self.dialect)
        self.statements += 1
        self._cursor.executemany(text, [{**fixed, **row} for row in rows])
        return self._cursor.rowcount

    def now(self) -> int:
        """The database's clock, in milliseconds since the epoch."""
        row = self.one(_NOW)
        assert row is not None
        return int(row[0])

    def _send(self, statement: Statement, parameters: dict[str, Any]) -> None:
        text, fixed = statement.compiled(self.dialect)
        self.statements += 1
        self._cursor.execute(text, {**fixed, **parameters} if fixed else parameters)


_NOW: Final = Statement(sa.select(sa.func.pointsman_now()))


def columns_of(struct: type[msgspec.Struct], *tables: sa.FromClause) -> list[sa.ColumnElement[Any]]:
    """The columns that fill *struct* by position, each from the first of *tables* that has it."""
    return [next(table.c[name] for table in tables if name in table.c) for name in struct.__struct_fields__]
