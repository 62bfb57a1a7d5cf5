"""What the integration suites share: a world per test, checked when the test is over."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.sessions import Pair
    from tests.integration.world import World

_EMPTY = """
    SET lock_timeout = '5s';
    TRUNCATE run, outbox_entry, run_transition, record, wait, event, endpoint, signing_key, api_key, served_workflow,
        workflow_declaration, schedule, bulk_action;
    UPDATE fleet SET seen_at = 0, up_since = 0, release_slot_at = 0;
    CREATE OR REPLACE FUNCTION pointsman_now() RETURNS bigint LANGUAGE sql VOLATILE
    AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint'
"""


@pytest.fixture(scope="module")
def module_postgres_url(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """A migrated PostgreSQL database of the module's own."""
    from tests.conftest import fresh_database

    yield from fresh_database(postgres_server, postgres_template)


@pytest.fixture
def empty_postgres_url(module_postgres_url: str) -> Iterator[str]:
    """A migrated PostgreSQL database without a row, the clock right: emptied rather than made, which takes longer."""
    import psycopg

    yield module_postgres_url
    with psycopg.connect(module_postgres_url) as connection:
        connection.execute(_EMPTY)


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest) -> Iterator["World"]:
    """Services over an empty store, once on each database; afterwards every invariant of the rows holds (I8)."""
    from dispatcher.store import Store
    from tests.integration.world import World

    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "empty_postgres_url")
    opened = World(Store.open(url))
    yield opened
    try:
        opened.check()
    finally:
        opened.store.close()


@pytest.fixture
def pair(empty_postgres_url: str) -> Iterator["Pair"]:
    """Two dispatchers on one PostgreSQL database; afterwards every invariant of the rows holds (I8)."""
    from tests.integration.sessions import Pair

    opened = Pair(empty_postgres_url)
    yield opened
    opened.close()
