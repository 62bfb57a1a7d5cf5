"""Two sessions on one PostgreSQL database, synchronised by events: one works and waits before its commit."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dispatcher.store import Session, Store
from dispatcher.store.drivers import PostgresDriver, driver_for
from tests.integration.world import World

T = TypeVar("T")
PATIENCE_SECONDS = 10.0


class HeldStore(Store):
    """A store one transaction of which, its work done, can be kept from committing."""

    _holding = False

    def hold(self) -> None:
        """The next transaction sets `reached` when its work is done, and commits after `let_go` is set."""
        self.reached = threading.Event()
        self.let_go = threading.Event()
        self._holding = True

    async def transact(self, operation: Callable[[Session], T]) -> T:
        if not self._holding:
            return await super().transact(operation)
        self._holding = False

        def held(session: Session) -> T:
            result = operation(session)
            session.finish()
            self.reached.set()
            assert self.let_go.wait(PATIENCE_SECONDS)
            return result

        return await super().transact(held)


class Pair:
    """Two dispatchers on one database. What `one` begins stays uncommitted until `commit`; `other` runs into it."""

    def __init__(self, url: str) -> None:
        self._held = HeldStore(driver_for(url))
        self._free = Store.open(url)
        self.one = World(self._held)
        self.other = World(self._free)
        self.other.keys = self.one.keys

    async def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """*work*, a call of `one`, has done everything but commit."""
        self._held.hold()
        task = asyncio.create_task(work)
        assert await asyncio.to_thread(self._held.reached.wait, PATIENCE_SECONDS)
        return task

    async def blocks(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """*work*, a call of `other`, waits for a lock."""
        task = asyncio.create_task(work)
        await asyncio.to_thread(waits_for_a_lock, self._free)
        return task

    def commit(self) -> None:
        """What `one` began commits now."""
        self._held.let_go.set()

    def close(self) -> None:
        """Both stores are closed; the invariants hold."""
        try:
            self.other.check()
        finally:
            self._held.close()
            self._free.close()


def waits_for_a_lock(store: Store) -> None:
    """Returns once a session of the database waits for a lock; fails after ten seconds."""
    driver = store.driver
    assert isinstance(driver, PostgresDriver)
    query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    deadline = time.monotonic() + PATIENCE_SECONDS
    with driver.raw() as connection:
        connection.autocommit = True
        while connection.execute(query).fetchone() is None:
            assert time.monotonic() < deadline, "nobody waits for a lock"
            time.sleep(0.005)  # the database has no signal for it
