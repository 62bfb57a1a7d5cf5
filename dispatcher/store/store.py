"""The one door to the database: operations in, results out, each operation one transaction on a store thread."""

import asyncio
import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from dispatcher import errors
from dispatcher.store.drivers import Connection, Driver, Fate, driver_for
from dispatcher.store.session import Session

T = TypeVar("T")
Operation = Callable[[Session], T]
Listener = Callable[[str], None]

_TRIES: Final = 6
_CLOSING_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


class Store:
    """Runs operations against one database.

    An operation may be run again after a deadlock or a lost connection, so it has no effect but its statements.
    Coalescing will go where `_attempt` is: operations that wait while a transaction is in flight can share the next.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._threads = ThreadPoolExecutor(driver.threads, "store")
        self._local = threading.local()
        self._open: list[Connection] = []
        self._lock = threading.Lock()
        self._listeners: dict[str, list[Listener]] = defaultdict(list)
        self._running = 0
        self._closing = False
        self.statements = 0

    @classmethod
    def open(cls, url: str) -> "Store":
        """A store on `sqlite:///path` or `postgresql://…`; nothing is created or migrated yet.

        Raises StartUpError when the URL is of neither kind or the SQLite file is in use by another process.
        """
        return cls(driver_for(url))

    @property
    def dialect(self) -> str:
        return self.driver.dialect

    def listen(self, kind: str, listener: Listener) -> None:
        """*listener* is called with what was announced after each commit of *kind*, in the event loop's thread."""
        self._listeners[kind].append(listener)

    async def transact(self, operation: Operation[T]) -> T:
        """What *operation* returned, its transaction committed.

        Raises what the operation raised, with nothing stored, or Unavailable when the database could not answer: then
        the outcome is unknown, and the caller's request id makes a repeat harmless (I6).
        """
        loop = asyncio.get_running_loop()
        result, announced = await loop.run_in_executor(self._threads, self._run, operation)
        self._announce(announced)
        return result

    def transact_blocking(self, operation: Operation[T]) -> T:
        """As `transact`, for callers without an event loop; listeners are called in this thread."""
        result, announced = self._threads.submit(self._run, operation).result()
        self._announce(announced)
        return result

    def migrate(self) -> None:
        """The schema is at this code's version."""
        from dispatcher.store import migrating

        migrating.upgrade(self)

    def check_schema(self) -> None:
        """Raises StartUpError unless schema and code can work together."""
        from dispatcher.store import migrating

        migrating.check(self)

    def close(self) -> None:
        """Every connection is closed, and nothing runs any more.

        Operations under way have five seconds to end; after that a database that does not answer is hung up on, and
        their outcome is unknown.
        """
        self._closing = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + _CLOSING_SECONDS
        while self._running and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._running:
            with self._lock:
                for connection in self._open:
                    connection.abort()
        self._threads.shutdown(wait=True)
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open.clear()
        self.driver.close()

    def _announce(self, announced: list[tuple[str, str]]) -> None:
        for kind, run_id in announced:
            for listener in self._listeners[kind]:
                listener(run_id)

    def _run(self, operation: Operation[T]) -> tuple[T, list[tuple[str, str]]]:
        with self._lock:
            self._running += 1
        try:
            return self._repeat(operation)
        finally:
            with self._lock:
                self._running -= 1

    def _repeat(self, operation: Operation[T]) -> tuple[T, list[tuple[str, str]]]:
        for tried in range(1, _TRIES + 1):
            connection = self._connection()
            try:
                return self._attempt(connection, operation)
            except self.driver.errors as error:
                fate = self.driver.judge(error, committing=connection.committing)
                if fate.broken:
                    self._drop(connection)
                if not fate.again or tried == _TRIES or self._closing:
                    raise _unavailable(fate, error) from error
                time.sleep(random.uniform(0, 0.01 * 2**tried))  # noqa: S311 - jitter, not a secret
        raise AssertionError("unreachable")

    def _attempt(self, connection: Connection, operation: Operation[T]) -> tuple[T, list[tuple[str, str]]]:
        session = Session(connection.begin(), self.driver.dialect)
        try:
            result = operation(session)
            session.finish()
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            self.statements += session.statements
        return result, session.announced

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            try:
                connection = self.driver.connect()
            except self.driver.errors as error:
                raise errors.Unavailable("unavailable", "the database does not answer", retry_after=1) from error
            self._local.connection = connection
            with self._lock:
                self._open.append(connection)
        return connection

    def _drop(self, connection: Connection) -> None:
        self._local.connection = None
        with self._lock:
            self._open.remove(connection)
        connection.close()


def _unavailable(fate: Fate, error: Exception) -> Exception:
    if fate.bug:
        return error
    log.warning("database unavailable", extra={"cause": type(error).__name__})
    return errors.Unavailable("unavailable", "the database could not finish this request in time", retry_after=1)
