"""The two databases behind one face: how to connect, begin and commit, and what an error means for a transaction."""

import fcntl
import os
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import psycopg

from dispatcher import errors
from dispatcher.store.session import Cursor

_HOT_SETTINGS: Final = (
    # A statement prepared while tables are small would keep its sequential scan for ever.
    "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;"
    "SET lock_timeout = '2s'; SET statement_timeout = '30s'; SET idle_in_transaction_session_timeout = '60s'"
)

# A server that vanished without a word is noticed within fifteen seconds.
_ALIVE: Final[dict[str, Any]] = {
    "keepalives_idle": 10,
    "keepalives_interval": 1,
    "keepalives_count": 5,
    "tcp_user_timeout": 15_000,
}


class Fate(NamedTuple):
    """What to do about a driver's error."""

    again: bool = False
    broken: bool = False
    bug: bool = False


class Connection(Protocol):
    committing: bool

    def begin(self) -> Cursor: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Driver(Protocol):
    dialect: str
    engine_url: str
    threads: int
    errors: tuple[type[Exception], ...]

    def raw(self) -> Any: ...
    def connect(self) -> Connection: ...
    def judge(self, error: Exception, *, committing: bool) -> Fate: ...
    def close(self) -> None: ...


def driver_for(url: str) -> Driver:
    """The driver of *url*; raises StartUpError for a scheme that is neither sqlite nor postgresql."""
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        return SqliteDriver(url)
    if scheme in {"postgresql", "postgres"}:
        return PostgresDriver(url)
    raise errors.StartUpError(
        "database_url_invalid",
        f"the database URL starts with {scheme!r}",
        hint="use sqlite:///path/to/pointsman.db or postgresql://user@host/database",
    )


class PostgresConnection:
    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, connect_timeout=5, **_ALIVE)
        self._connection.execute(_HOT_SETTINGS)
        self._cursor = self._connection.cursor()
        self.committing = False

    def begin(self) -> Cursor:
        self.committing = False
        self._cursor.execute("BEGIN")
        return self._cursor

    def commit(self) -> None:
        self.committing = True
        self._cursor.execute("COMMIT")
        self.committing = False

    def rollback(self) -> None:
        if not self._connection.closed and self._connection.info.transaction_status:
            try:
                self._connection.execute("ROLLBACK")
            except psycopg.Error:
                self._connection.close()

    def abort(self) -> None:
        """Ends the wait of another thread for a server that does not answer."""
        if not self._connection.closed:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


class PostgresDriver:
    """PostgreSQL under READ COMMITTED: any number of dispatchers, a few connections each."""

    dialect = "postgresql"
    engine_url = "postgresql+psycopg://"
    threads = 6
    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, url: str) -> None:
        self.url = url

    def raw(self) -> Any:
        """A connection of the driver's own, for migrations."""
        return psycopg.connect(self.url, connect_timeout=5)

    def connect(self) -> PostgresConnection:
        return PostgresConnection(self.url)

    def judge(self, error: Exception, *, committing: bool) -> Fate:
        if isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure):
            return Fate(again=True)
        if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.QueryCanceled):
            return Fate()
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            return Fate(broken=True)
        if isinstance(error, psycopg.OperationalError):
            # A COMMIT without an answer may have happened: its outcome is unknown, so it is never sent again.
            return Fate(again=not committing, broken=True)
        return Fate(bug=True)

    def close(self) -> None:
        """Nothing is held beyond the connections."""


class SqliteConnection:
    def __init__(self, path: str, now: Any) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=5, check_same_thread=False)
        self._connection.create_function("pointsman_now", 0, now)
        self._connection.create_function("strpos", 2, lambda text, part: text.find(part) + 1, deterministic=True)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-65536"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._cursor = self._connection.cursor()
        self.committing = False

    def begin(self) -> Cursor:
        # IMMEDIATE: a deferred transaction that reads first cannot become a writer after another commit.
        self._cursor.execute("BEGIN IMMEDIATE")
        return self._cursor

    def commit(self) -> None:
        self._cursor.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def abort(self) -> None:
        """Ends the statement another thread is at."""
        self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()


class SqliteDriver:
    """The embedded default: one process by lock file, one thread that does everything."""

    dialect = "sqlite"
    engine_url = "sqlite://"
    threads = 1
    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = unquote(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else ""
        if not self.path:
            raise errors.StartUpError("database_url_invalid", "a SQLite URL is sqlite:///path/to/file.db")
        self.shift_ms = 0
        self._lock = _lock_file(Path(f"{self.path}.lock"))

    def raw(self) -> Any:
        """A connection of the driver's own, for migrations."""
        return sqlite3.connect(self.path)

    def now(self) -> int:
        """This process's clock, which is the database's too when it is embedded; `shift_ms` moves it in tests."""
        return time.time_ns() // 1_000_000 + self.shift_ms

    def connect(self) -> SqliteConnection:
        return SqliteConnection(self.path, self.now)

    def judge(self, error: Exception, *, committing: bool) -> Fate:  # noqa: ARG002 - the other database needs it
        ours = not isinstance(error, sqlite3.OperationalError) or "no such" in str(error) or "syntax" in str(error)
        return Fate(bug=ours)

    def close(self) -> None:
        os.close(self._lock)


def _lock_file(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise errors.StartUpError(
            "database_in_use",
            f"another process holds {path.name}",
            hint="SQLite serves one dispatcher process; use PostgreSQL for several",
        ) from None
    except OSError as error:
        raise errors.StartUpError("database_unreachable", f"cannot open {path}: {error.strerror}") from None
    return handle
