"""The migrations make the tables the code describes, in one step or from any earlier version."""

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from dispatcher.store import Store, migrating, schema


@pytest.fixture
def connection(store: Store) -> sa.Connection:
    """A connection to a migrated database, for alembic."""
    engine = sa.create_engine(store.driver.engine_url, creator=store.driver.raw, poolclass=sa.NullPool)
    return engine.connect()


def test_migrations_make_the_described_tables(connection: sa.Connection) -> None:
    """Nothing is missing from the migrated schema, and nothing is there that the code does not describe."""
    with connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []


@pytest.mark.parametrize("version", ["0001", "0002", "0003"])
def test_down_and_up_again(connection: sa.Connection, version: str) -> None:
    """The way back works, and the way up from there: the schema is what it was."""
    with connection:
        config = migrating._config(connection)
        command.downgrade(config, version)
        command.upgrade(config, "head")
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
