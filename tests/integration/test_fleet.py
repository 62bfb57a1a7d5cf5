"""The fleet row and the probe: when nobody may judge the age of a claim (I5, I11)."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from dispatcher import errors, recovery
from dispatcher.settings import Publishing, Recovery, Stalling
from dispatcher.store import Session, Store
from dispatcher.store.drivers import PostgresConnection, PostgresDriver, SqliteConnection, SqliteDriver
from tests.integration.world import DAY_MS, HOUR_MS, IDLE_MS, World, claims


async def test_time_with_no_server_up_is_not_idleness(world: World) -> None:
    """C31: after ten minutes down nothing is released at once; what is still silent an idle timeout later is."""
    alive, dead = await claims(world, 2)
    world.advance(600_000)
    assert (await world.recovers())["released"] == 0
    assert world.fleet().up_since == pytest.approx(world.now(), abs=2_000)
    world.elapse(60_000)
    assert await world.is_held(alive)
    world.elapse(25_000)
    assert (await world.recovers())["released"] == 0
    world.elapse(10_000)
    assert (await world.recovers())["released"] == 1
    assert world.status(dead.run_id) == ("queued", 2)
    assert world.status(alive.run_id) == ("running", 1)


async def test_first_start_ever_judges_nobody(world: World) -> None:
    """A fleet row nobody ever stamped means that the fleet is up since this tick."""
    world.sees(0, up_since=0)
    [claim] = await claims(world, 1)
    world.set_entry(claim.run_id, refreshed_at=world.now() - HOUR_MS)
    assert (await world.recovers())["released"] == 0
    row = world.fleet()
    assert row.up_since == row.seen_at == pytest.approx(world.now(), abs=2_000)


async def test_three_intervals_are_no_outage(world: World) -> None:
    """Missing three intervals changes nothing; missing more is an outage."""
    before = world.fleet().up_since
    world.advance(29_000)
    await world.recovers()
    assert world.fleet().up_since == before
    world.advance(31_000)
    await world.recovers()
    assert world.fleet().up_since == pytest.approx(world.now(), abs=2_000)


async def test_overdue_deliveries_wait_after_an_outage(world: World) -> None:
    """Deliveries out while no server was up could not be claimed: they get a claim deadline from the restart on."""
    run_id = await world.submit()
    world.publish(run_id)
    world.advance(600_000)
    assert (await world.recovers())["redelivered"] == 0
    world.elapse(31_000)
    assert (await world.recovers())["redelivered"] == 1


async def test_clock_stepped_forward(world: World) -> None:
    """I11: an hour's step forward makes nobody idle."""
    [claim] = await claims(world, 1)
    world.advance(HOUR_MS)
    assert (await world.recovers())["released"] == 0
    assert await world.is_held(claim)


async def test_clock_stepped_back(world: World) -> None:
    """I11: stamps of before a step back are in the future: they neither end a claim now nor keep it for ever."""
    dead, alive = await claims(world, 2)
    world.advance(-HOUR_MS)
    assert (await world.recovers())["released"] == 0
    assert world.fleet().up_since == pytest.approx(world.now(), abs=2_000)
    world.elapse(60_000)
    assert await world.is_held(alive)
    world.elapse(IDLE_MS - 55_000)
    assert (await world.recovers())["released"] == 1
    assert world.status(dead.run_id) == ("queued", 2)
    assert world.status(alive.run_id) == ("running", 1)


async def test_up_since_in_the_future_is_clamped(world: World) -> None:
    """A fleet row from a clock ahead does not keep recovery away until that clock is reached."""
    world.sees(world.now(), up_since=world.now() + DAY_MS)
    await world.recovers()
    assert world.fleet().up_since <= world.now()


async def test_a_stamp_a_little_ahead_is_alive(world: World) -> None:
    """I4: a claim refreshed after the tick read its clock, stamped later than that, is not released."""
    [claim] = await claims(world, 1)
    world.set_entry(claim.run_id, refreshed_at=world.now() + 5_000)
    assert (await world.recovers())["released"] == 0
    assert await world.is_held(claim)


async def test_a_freeze_within_a_tick_makes_nobody_older(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """I11: a server frozen between looking at the fleet and releasing judges by the moment it looked."""
    held = await claims(world, 2)
    published = await world.submit()
    world.publish(published)
    tick = world.recovery._tick

    def then_freezes(session: Session) -> recovery.Seen:
        seen = tick(session)
        session.announce("ticked", "")
        return seen

    world.store.listen("ticked", lambda _run_id: world.advance(600_000))
    monkeypatch.setattr(world.recovery, "_tick", then_freezes)
    counts = await world.recovers()
    monkeypatch.undo()
    assert (counts["released"], counts["redelivered"]) == (0, 0)
    assert (await world.recovers())["released"] == 0
    for claim in held:
        assert await world.is_held(claim)


class _ReadOnlySqlite(SqliteDriver):
    """A second node on the file of *driver*, which may write nothing."""

    def __init__(self, driver: SqliteDriver) -> None:
        self.url, self.path, self.shift_ms = driver.url, driver.path, driver.shift_ms

    def connect(self) -> SqliteConnection:
        connection = super().connect()
        connection._connection.execute("PRAGMA query_only = ON")
        return connection

    def close(self) -> None:
        """The first node keeps the lock."""


class _ReadOnlyPostgres(PostgresDriver):
    def connect(self) -> PostgresConnection:
        connection = super().connect()
        connection._connection.execute("SET default_transaction_read_only = on")
        return connection


@pytest.fixture
def read_only_store(world: World) -> Iterator[Store]:
    """What a node sees whose connection to the same database refuses every write."""
    driver = world.store.driver
    assert isinstance(driver, SqliteDriver | PostgresDriver)
    opened = Store(_ReadOnlySqlite(driver) if isinstance(driver, SqliteDriver) else _ReadOnlyPostgres(driver.url))
    yield opened
    opened.close()


async def test_a_node_that_can_write_nothing_rescues_nobody(world: World, read_only_store: Store) -> None:
    """C32: a node whose database is read-only releases nothing and does not count itself as well; others go on."""
    [claim] = await claims(world, 1)
    world.elapse(IDLE_MS + 1_000)
    seen_at = world.fleet().seen_at
    node = recovery.RecoverOverdueOutboxEntries(read_only_store, Recovery(), Publishing(), Stalling())
    with contextlib.suppress(errors.Unavailable):  # where the probe answers, the fleet row cannot be stamped
        assert await node.once() == {"paused": 1, "more": 0}
    assert world.fleet().seen_at == seen_at
    assert world.status(claim.run_id) == ("running", 1)
    assert (await world.recovers())["released"] == 1


async def test_a_node_whose_pool_is_exhausted_pauses(world: World) -> None:
    """C32: while every connection of the API's pool is taken, recovery pauses; that time is nobody's idleness."""
    [claim] = await claims(world, 1)
    world.elapse(IDLE_MS + 1_000)
    seen_at = world.fleet().seen_at
    gate = threading.Event()
    taken = [
        asyncio.create_task(world.store.transact(lambda _session: gate.wait(10)))
        for _ in range(world.store.driver.threads)
    ]
    await asyncio.sleep(0)
    assert await world.recovers() == {"paused": 1, "more": 0}
    gate.set()
    await asyncio.gather(*taken)
    assert world.fleet().seen_at == seen_at
    assert world.status(claim.run_id) == ("running", 1)
    world.advance(31_000)
    assert (await world.recovers())["released"] == 0
    assert await world.is_held(claim)


async def test_a_database_that_refuses_pauses_recovery(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe answered with unavailable is a pause, too."""

    async def unavailable(_operation: object) -> None:
        raise errors.Unavailable("unavailable", "no")

    monkeypatch.setattr(world.store, "transact", unavailable)
    assert await world.recovers() == {"paused": 1, "more": 0}
