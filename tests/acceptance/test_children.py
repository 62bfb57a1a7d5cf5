"""Children end to end: a real dispatcher, a polling worker with parents and children, typed results and failures."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest

from endpoint_sdk import AsyncClient, ChildFailed, Retry, Run, RunFailed, SyncRun, Worker, subscribers, task, workflow
from tests.faults import rig

SECONDS = 60
bodies: Counter[str] = Counter()


class Order(msgspec.Struct):
    id: str
    cents: int


class Receipt(msgspec.Struct):
    number: str


@task(retry=Retry.never())
async def charge(order: Order) -> str:
    bodies[order.id] += 1
    if order.cents < 0:
        raise ValueError("nothing to pay")
    return f"paid {order.id}"


@workflow("pay")
async def pay(run: Run, order: Order) -> Receipt:
    return Receipt(await run.task(charge, order))


@workflow("basket")
async def basket(run: Run, orders: list[Order]) -> list[str]:
    first = await run.start_child(pay, orders[0], idempotency_key=f"first of {run.id}")
    others = asyncio.create_task(run.map(pay, orders[1:], limit=20))
    refused: list[str] = []
    try:
        await run.child(refund, orders[0].id)
    except ChildFailed as failure:
        refused = [failure.error_type, failure.message]
    again, receipts = await asyncio.gather(first.result(), others)
    return [again.number, *refused, *(receipt.number for receipt in receipts)]


@workflow("refund")
def refund(run: SyncRun, order_id: str) -> None:
    raise LookupError(f"no receipt of {order_id}")


@workflow("blocking")
def blocking(run: SyncRun, order: Order) -> list[str]:
    children = [run.start_child(pay, Order(f"{order.id}-{number}", order.cents)) for number in range(3)]
    return [child.result().number for child in children]


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    bodies.clear()


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[AsyncClient]:
    """A client of a dispatcher whose runs a worker executes."""
    with rig.dispatcher(database_url) as http:
        url = str(http.base_url).rstrip("/")
        made = await asyncio.to_thread(http.post, "/v1/keys", json={"name": "worker", "scopes": ["execute"]})
        worker = Worker(
            [pay, basket, refund, blocking],
            subscriber=subscribers.poll(),
            url=url,
            api_key=made.json()["key"],
            max_concurrent_runs=20,
        )
        serving = asyncio.create_task(worker.serve())
        async with AsyncClient(url, api_key=rig.ADMIN_KEY) as connected:
            yield connected
        worker.stop()
        await serving


async def test_a_parent_a_failing_child_and_a_map_of_fifty(client: AsyncClient) -> None:
    """Every child runs once; results come back typed and in order, a failure as ChildFailed."""
    orders = [Order(f"o{number}", 5) for number in range(51)]
    run = await client.start(basket, orders)

    numbers = [f"paid o{number}" for number in range(51)]
    expected = [numbers[0], "LookupError", "no receipt of o0", *numbers[1:]]
    assert await run.result(timeout=SECONDS) == expected
    assert bodies == Counter(order.id for order in orders)


async def test_a_failing_child_of_a_map_and_a_blocking_parent(client: AsyncClient) -> None:
    """The parent's error says which child it was, and of what it died; a `def` workflow has children too."""
    run = await client.start(basket, [Order("o0", 5), Order("o1", 5), Order("bad", -1), Order("o2", 5)])
    beside = await client.start(blocking, Order("b", 5))
    with pytest.raises(RunFailed) as failed:
        await run.result(timeout=SECONDS)

    assert failed.value.error_type == "ChildFailed"
    assert isinstance(failed.value.details, dict)
    assert failed.value.details["type"] == "TaskFailed"
    assert await beside.result(timeout=SECONDS) == ["paid b-0", "paid b-1", "paid b-2"]
