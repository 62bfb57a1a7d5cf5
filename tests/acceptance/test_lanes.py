"""Keyed concurrency through the real dispatcher and a worker: as many bodies at once as the workflow declares."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from starlette.types import ASGIApp

from dispatcher import access, app
from dispatcher.settings import Settings
from dispatcher.store import Store, invariants, overview
from endpoint_sdk import AsyncClient, Concurrency, Run, Worker, task, workflow
from endpoint_sdk.wire.operating import CreateKey
from tests.faults.rig import ADMIN_KEY, Serving

RUNS, CUSTOMERS, PLACES = 20, 4, 2
inside: Counter[str] = Counter()
most: Counter[str] = Counter()
all_places_taken, go_on = asyncio.Event(), asyncio.Event()


@task
async def ship(customer: str) -> None:
    inside[customer] += 1
    most[customer] = max(most[customer], inside[customer])
    if sum(inside.values()) == CUSTOMERS * PLACES:
        all_places_taken.set()
    await go_on.wait()
    inside[customer] -= 1


@workflow("shipping", concurrency=Concurrency(PLACES, key="customer"))
async def shipping(run: Run, customer: str) -> str:
    await run.task(ship, customer)
    return customer


@pytest.fixture
def served(sqlite_url: str) -> Iterator[tuple[str, Store]]:
    """The URL of a dispatcher in a thread, and its store."""
    settings = Settings.model_validate(
        {"database": {"url": sqlite_url}, "secret_key": "k" * 40, "admin_key": ADMIN_KEY}
    )
    made: list[app.Dispatcher] = []

    def make(url: str) -> ASGIApp:
        made.append(app.build(settings, url=url))
        return app.asgi(made[0])

    serving = Serving(make).open()
    yield serving.url, made[0].store
    serving.stop()


async def test_no_customer_has_more_than_its_share(served: tuple[str, Store]) -> None:
    """Twenty runs of four customers, two places each, a worker with room for all: two bodies a customer at the most."""
    url, store = served
    declared = threading.Event()
    store.listen("declared", lambda _namespace: declared.set())
    key = (await access.create(store, CreateKey("worker", ["execute"], "default"))).key
    worker = Worker([shipping], url=url, api_key=key, max_concurrent_runs=RUNS)
    working = asyncio.create_task(worker.serve())
    customers = [f"c{number % CUSTOMERS}" for number in range(RUNS)]
    async with AsyncClient(url, api_key=ADMIN_KEY) as client, asyncio.timeout(60):
        assert await asyncio.to_thread(declared.wait, 50)
        handles = [await client.start(shipping, each, tags={"customer": each}) for each in customers]
        await all_places_taken.wait()
        [queue] = await store.transact(lambda session: overview.queues(session, "", limit=9, offset=0))
        assert (queue.pending, queue.claimed, queue.held) == (0, CUSTOMERS * PLACES, RUNS - CUSTOMERS * PLACES)
        go_on.set()
        results = await asyncio.gather(*(handle.result(timeout=50) for handle in handles))
    assert await store.transact(invariants.check) == []
    worker.stop()
    await working
    assert results == customers
    assert dict(most) == dict.fromkeys(customers, PLACES)
