"""What a review found in starting up: databases that refuse, and files with odd names."""

from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from dispatcher import errors, secrets
from dispatcher.store import Store


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
