"""What a review found in starting up: databases that refuse, and files with odd names."""

import asyncio
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import sqlalchemy as sa

from dispatcher import errors, secrets
from dispatcher.store import Statement, Store


def test_a_user_without_rights_is_told(postgres_server: str, postgres_url: str) -> None:
    """A database user that may create nothing gets one sentence with a code, no traceback."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        connection.execute("DROP ROLE IF EXISTS pointsman_weak; CREATE ROLE pointsman_weak LOGIN")
    parts = urlsplit(postgres_url)
    weak = urlunsplit(parts._replace(netloc=f"pointsman_weak:@{parts.netloc.rpartition('@')[2]}"))
    store = Store.open(weak)
    try:
        with pytest.raises(errors.StartUpError) as caught:
            store.migrate()
    finally:
        store.close()
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute("DROP ROLE pointsman_weak")
    assert caught.value.code == "migration_refused"


def test_the_key_lies_beside_the_database(tmp_path: Path) -> None:
    """`<db>.key` is beside the file itself when the URL percent-encodes its name."""
    url = f"sqlite:///{tmp_path}/my%20runs.db"
    Store.open(url).close()
    secrets.open_keys(url, None)
    assert {path.name for path in tmp_path.iterdir()} >= {"my runs.db.lock", "my runs.db.key"}


def test_the_reason_a_database_cannot_be_used_is_told(postgres_url: str) -> None:
    """A database that does not exist is named at start; a password would not be."""
    parts = urlsplit(postgres_url)
    store = Store.open(urlunsplit(parts._replace(path="/nowhere")))
    try:
        with pytest.raises(errors.StartUpError) as caught:
            store.migrate()
    finally:
        store.close()
    assert caught.value.code == "database_unreachable"
    assert 'database "nowhere" does not exist' in caught.value.message


async def test_closing_does_not_wait_for_a_silent_database(postgres_url: str) -> None:
    """An operation that gets no answer is hung up on after five seconds; its caller hears that nothing is known."""
    store = Store.open(postgres_url)
    asleep = Statement(sa.select(sa.func.pg_sleep(60)))
    waiting = asyncio.create_task(store.transact(lambda session: session.all(asleep)))
    async with asyncio.timeout(10):
        while not store._running:  # noqa: ASYNC110 - re-asserted with a deadline
            await asyncio.sleep(0.01)
    begun = time.monotonic()
    await asyncio.to_thread(store.close)
    with pytest.raises(errors.Unavailable):
        await waiting
    assert time.monotonic() - begun < 15
