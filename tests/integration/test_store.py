"""Connections that break: what is sent again, what is not, and that the store comes back by itself."""

from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa

from dispatcher import errors
from dispatcher.store import Session, Statement, Store

PID = Statement(sa.select(sa.func.pg_backend_pid()))


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Store]:
    """A store on PostgreSQL alone."""
    store = Store.open(postgres_url)
    yield store
    store.close()


class Killer:
    """Ends the server's side of the connection an operation runs on."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.runs = 0

    def kill(self, session: Session) -> None:
        row = session.one(PID)
        assert row is not None
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", row)


def test_a_broken_connection_is_replaced(postgres: Store, postgres_url: str) -> None:
    """An operation whose connection breaks before its COMMIT is run again on a fresh one."""
    killer = Killer(postgres_url)

    def operation(session: Session) -> int:
        killer.runs += 1
        if killer.runs == 1:
            killer.kill(session)
        return session.now()

    assert postgres.transact_blocking(operation) > 0
    assert killer.runs == 2


def test_a_commit_without_an_answer_is_not_sent_again(postgres: Store, postgres_url: str) -> None:
    """A COMMIT whose connection breaks leaves the outcome unknown: one run, Unavailable, and the store goes on."""
    killer = Killer(postgres_url)

    def operation(session: Session) -> None:
        killer.runs += 1
        killer.kill(session)

    with pytest.raises(errors.Unavailable):
        postgres.transact_blocking(operation)
    assert killer.runs == 1
    assert postgres.transact_blocking(lambda session: session.now()) > 0


def test_a_deadlock_is_run_again(postgres: Store) -> None:
    """The victim of a deadlock runs again by itself, and its caller does not hear of it."""
    runs = 0

    def operation(_session: Session) -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise psycopg.errors.DeadlockDetected
        return "done"

    assert postgres.transact_blocking(operation) == "done"
    assert runs == 2


async def test_a_refusal_stores_nothing(store: Store) -> None:
    """What an operation raises on purpose reaches its caller, and its statements are taken back."""
    heard: list[str] = []
    store.listen("queued", heard.append)

    def operation(session: Session) -> None:
        session.announce("queued", "run_x")
        session.run(Statement(sa.text("UPDATE fleet SET up_since = 7")))
        raise errors.Conflict("run_finished", "no")

    with pytest.raises(errors.Conflict):
        await store.transact(operation)
    row = await store.transact(lambda session: session.one(Statement(sa.text("SELECT up_since FROM fleet"))))
    assert row == (0,)
    assert heard == []
