"""Bringing the schema to this code's version, and refusing to start on one that does not fit."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from dispatcher import errors
from dispatcher.store import schema
from dispatcher.store.session import Session, Statement

if TYPE_CHECKING:
    from dispatcher.store.store import Store

CODE_VERSION: Final = 4
"""The schema version this code needs; `schema_version.min_code` names the oldest code a schema still serves."""

_MIGRATION_LOCK: Final = 0x706F696E74  # "point": one migration at a time over all replicas
_VERSION: Final = Statement(sa.select(schema.schema_version.c.version, schema.schema_version.c.min_code))


def upgrade(store: "Store") -> None:
    """The schema is at CODE_VERSION, or as a later release left it; safe to call from several replicas at once."""
    with _connected(store) as connection:
        config = _config(connection)
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        # Alembic refuses a revision it does not know; whether this code fits that schema is for `check` to say.
        if known.issuperset(MigrationContext.configure(connection).get_current_heads()):
            command.upgrade(config, "head")


def check(store: "Store") -> None:
    """Raises StartUpError when the database lacks the schema, or one of the two is too old for the other."""

    def read(session: Session) -> tuple[Any, ...] | None:
        return session.one(_VERSION)

    try:
        found = store.transact_blocking(read)
    except errors.Unavailable:
        raise
    except Exception as error:
        raise errors.StartUpError(
            "schema_missing", "the database has no Pointsman schema", hint="run: pointsman migrate"
        ) from error
    version, min_code = found or (0, 0)
    if version < CODE_VERSION:
        raise errors.StartUpError(
            "schema_too_old",
            f"the schema is at version {version}, this code needs {CODE_VERSION}",
            hint="run: pointsman migrate",
        )
    if min_code > CODE_VERSION:
        raise errors.StartUpError(
            "code_too_old",
            f"the schema serves code from version {min_code} on, this is {CODE_VERSION}",
            hint="deploy a newer pointsman",
        )


def current(store: "Store") -> int:
    """The version of the schema found, 0 for none."""
    try:
        row = store.transact_blocking(lambda session: session.one(_VERSION))
    except errors.Unavailable:
        raise
    except Exception:
        return 0
    return int(row[0]) if row else 0


def _config(connection: sa.Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    config.attributes["connection"] = connection
    return config


@contextmanager
def _connected(store: "Store") -> Iterator[sa.Connection]:
    engine = sa.create_engine(store.driver.engine_url, creator=store.driver.raw, poolclass=sa.NullPool)
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            yield connection
    except sa.exc.OperationalError as error:
        raise errors.StartUpError(
            "database_unreachable", f"the database cannot be used: {str(error.orig).strip().splitlines()[-1]}"
        ) from error
    except sa.exc.DBAPIError as error:
        raise errors.StartUpError(
            "migration_refused",
            f"the database refused to make the schema ({type(error.orig).__name__})",
            hint="its user needs the right to create tables and functions: run pointsman migrate as its owner",
        ) from error
    finally:
        engine.dispose()
