"""A long backlog: who is served first, who waits for whom, over pushes and over brokers."""

import asyncio
import time

import pytest
import sqlalchemy as sa
from msgspec import Raw

from dispatcher import submission
from dispatcher.loop import Loop
from dispatcher.queues import Queue
from dispatcher.settings import Route
from dispatcher.store import Session, Statement, backlog, schema
from dispatcher.store.entries import Entry
from endpoint_sdk.wire.messages import Delivery
from endpoint_sdk.wire.operating import SubmitRun
from publishers.base import Outcome
from tests.integration.relays import ACCEPTED, PATIENCE_SECONDS, Endpoint, Relays, over, settle
from tests.integration.world import NAMESPACE, World

ROUTES = pytest.mark.parametrize("route", ["push", "broker"])
PLENTY = 10_000
PRIORITY = 5


@pytest.fixture
def relays(world: World) -> Relays:
    """No publisher yet."""
    return Relays(world)


def publisher(relays: Relays, route: str, name: str) -> Endpoint:
    """A publisher by *route* with room for all there is."""
    return relays.endpoint(name, max_in_flight=PLENTY) if route == "push" else relays.broker(name)


async def flood(world: World, count: int, *, namespace: str = NAMESPACE, workflow: str = "order") -> list[str]:
    """The ids of *count* runs submitted in one transaction, as they will be ranked."""
    request = SubmitRun(workflow, version="1", input=Raw(b"1"), priority=PRIORITY)
    found = await submission.submit_batch(world.store, namespace, [(request, None)] * count, "tester")
    return sorted(item.run.id for item in found if isinstance(item, submission.Submission))


def age(world: World, ids: list[str], *, oldest_ms: int) -> None:
    """The runs were queued one after the other, the first *oldest_ms* ago."""
    t, now = schema.outbox_entry, world.now()
    at = sa.bindparam("b_at", type_=sa.BigInteger())
    aged = {"rank": at - PRIORITY * submission.PRIORITY_STEP_MS, "queued_at": at}
    statement = Statement(sa.update(t).where(t.c.run_id == sa.bindparam("b_id")).values(aged))
    rows = [
        {"b_id": run_id, "b_at": now - oldest_ms + number * oldest_ms // len(ids)} for number, run_id in enumerate(ids)
    ]
    world.store.transact_blocking(lambda session: session.run_many(statement, rows))


def waited(world: World) -> int:
    """How long the oldest pending entry has waited, in milliseconds."""
    t = schema.outbox_entry
    oldest = Statement(sa.select(sa.func.min(t.c.queued_at)).where(t.c.status == schema.PENDING))

    def operation(session: Session) -> int:
        row = session.one(oldest)
        return 0 if row is None or row[0] is None else session.now() - int(row[0])

    return world.store.transact_blocking(operation)


@ROUTES
async def test_pushes_bypassed_the_outage_backlog(world: World, relays: Relays, route: str) -> None:
    """C33: behind a backlog of 5 000 and with 50 new a second, the oldest go first and the backlog's age falls."""
    to = publisher(relays, route, "orders")
    old = await flood(world, 5_000)
    age(world, old, oldest_ms=600_000)
    relay = relays.relay(over("orders"))
    ages = [waited(world)]
    fresh: list[str] = []
    while ages[-1]:
        fresh += await flood(world, 50)
        for _ in range(9):
            await relay.once()
            await settle(relay)
        world.elapse(1_000)
        ages.append(waited(world))
    assert len(ages) <= 8
    assert ages == sorted(ages, reverse=True)
    served = [delivery.run_id for delivery in to.deliveries]
    assert served[:5_000] == old, "by age, whatever came meanwhile"
    assert sorted(served[5_000:]) == sorted(fresh)


@ROUTES
async def test_one_slow_endpoint_held_every_slot(world: World, relays: Relays, route: str) -> None:
    """C34: publisher A hangs with a thousand due; 99 of 100 runs are dispatched to B within a second."""
    forever = asyncio.Event()
    arrivals: dict[str, float] = {}

    async def never(_delivery: Delivery) -> Outcome:
        await forever.wait()
        return ACCEPTED

    async def notes(delivery: Delivery) -> Outcome:
        arrivals[delivery.run_id] = time.monotonic()
        arrived.set()
        return ACCEPTED

    arrived = asyncio.Event()
    for name, answer in (("slow", never), ("healthy", notes)):
        if route == "push":
            relays.endpoint(name, answer)
        else:
            relays.broker(name, answer)
    await flood(world, 1_000, workflow="slow")
    routes = (Route(workflows=("slow",), publish=("slow",)), Route(publish=("healthy",)))
    relay = relays.relay(*routes)
    loop = Loop(relay, interval_ms=1_000)
    world.store.listen("queued", loop.wake)
    relay.on_room = loop.wake
    loop.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await relays.endpoints["slow"].arrived.wait()
    delays = []
    for _ in range(100):
        submitted = time.monotonic()
        run_id = await world.submit("quick")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while run_id not in arrivals:
                arrived.clear()
                await arrived.wait()
        delays.append(arrivals[run_id] - submitted)
        await world.cancel(run_id)  # an endpoint takes fifty at a time
    await loop.stop()
    forever.set()
    await settle(relay)
    assert sorted(delays)[98] < 1.0
    assert len(arrivals) == 100


@ROUTES
async def test_one_tenants_flood_starved_the_rest(world: World, relays: Relays, route: str) -> None:
    """C35: thousands wait in namespace A; a run of namespace B is handed over by the first tick that sees it."""
    to = publisher(relays, route, "orders")
    await flood(world, 3_000, namespace="a")
    relay = relays.relay(over("orders"))
    for tick in range(3):
        await relay.once()
        await settle(relay)
        [late] = await flood(world, 1, namespace="b")
        started = time.monotonic()
        assert (await relay.once())["leased"] == 100
        await settle(relay)
        assert late in {delivery.run_id for delivery in to.deliveries[-100:]}
        assert time.monotonic() - started < 1.0, tick
    by_namespace = [delivery.namespace for delivery in to.deliveries]
    assert (len(by_namespace), by_namespace.count("b")) == (600, 3)


@ROUTES
async def test_every_queue_has_its_turn(
    world: World, relays: Relays, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More queues than a batch has places are served one after the other, however many run into each meanwhile."""
    monkeypatch.setattr("dispatcher.leasing.BATCH", 5)
    to = publisher(relays, route, "orders")
    for number in range(20):
        await flood(world, 5, namespace=f"t{number:02}")
    relay = relays.relay(over("orders"))
    for _ in range(4):
        assert (await relay.once())["leased"] == 5
        await settle(relay)
    assert len({delivery.namespace for delivery in to.deliveries}) == 20


@ROUTES
async def test_queues_without_anything_due_cost_nothing(world: World, relays: Relays, route: str) -> None:
    """Hundreds of queues in their backoff are not asked one by one, tick for tick."""
    publisher(relays, route, "orders")
    for number in range(200):
        [run_id] = await flood(world, 1, namespace=f"t{number:03}")
        world.set_entry(run_id, next_publish_at=world.now() + 3_600_000)
    [due] = await flood(world, 1)
    relay = relays.relay(over("orders"))
    before = world.store.statements
    assert (await relay.once())["leased"] == 1
    await settle(relay)
    assert world.store.statements - before < 15
    assert world.entry(due).status == "published"


async def test_a_turn_is_found_without_reading_the_backlog(world: World, relays: Relays) -> None:
    """The second publisher of a route has nothing of a long backlog, and looks at its head only to find out."""
    relays.broker("first")
    relays.broker("second")
    ids = await flood(world, 3_000)
    for run_id in ids[:5]:
        world.set_entry(run_id, publisher_index=1)
    world.set_entry(ids[-1], publisher_index=1)
    found = world.store.transact_blocking(lambda session: _lease(session, way=1))
    assert sorted(entry.run_id for entry in found) == ids[:5]
    others = world.store.transact_blocking(lambda session: _lease(session, way=0))
    assert sorted(entry.run_id for entry in others) == ids[5:105]


def _lease(session: Session, *, way: int) -> list[Entry]:
    now = session.now()
    queue = Queue(NAMESPACE, "order", "1", "default").key()
    return backlog.lease(session, queue, "ep_x", way=way, ways=2, limit=100, now=now, until=now + 5_000, route="redis")
