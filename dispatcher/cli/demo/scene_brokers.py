"""Last scene: orders through Redis and through SQS to real workers, one of each killed while it holds runs.

Both brokers are played at the same time. What the killed worker had taken from its broker is gone or hidden: the
dispatcher notices its silence, takes its claims, and publishes again (infra/docs/protocol.md, I4).
"""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from dispatcher.cli.demo import orders
from dispatcher.cli.demo.brokers import AWS, Brokers
from dispatcher.cli.demo.processes import Child
from dispatcher.cli.demo.stage import Stage
from endpoint_sdk import AsyncClient, Workflow

HELD: Final = 5
_CUSTOMERS: Final = 4
_PATIENCE: Final = 60.0
_ORDERS: Final = {"redis": orders.redis_order, "sqs": orders.sqs_order}
_PARCELS: Final = {"redis": orders.redis_parcel, "sqs": orders.sqs_parcel}


@dataclass
class Brokered:
    """Orders by run id with the epoch ms they were submitted at, and the runs a killed worker held."""

    submitted: dict[str, float] = field(default_factory=dict)
    completed: int = 0
    held: list[str] = field(default_factory=list)
    recovered: int = 0


async def through_brokers(stage: Stage, brokers: Brokers, count: int) -> dict[str, Brokered]:
    """*count* orders through each broker, then the death of the worker that took them."""
    played = await asyncio.gather(*(_through(stage, brokers, kind, count) for kind in _ORDERS))
    return dict(zip(_ORDERS, played, strict=True))


async def _through(stage: Stage, brokers: Brokers, kind: str, count: int) -> Brokered:
    client = AsyncClient(stage.site.urls[-1], api_key=stage.site.admin_key)
    first, second = f"{kind}-worker-a", f"{kind}-worker-b"
    worker = _worker(stage, brokers, kind, first)
    brokered = Brokered()
    # How long a worker takes to start is no latency of its broker.
    await (await client.start(_ORDERS[kind], orders.Order(f"{kind}-o0", 100))).result(timeout=_PATIENCE)
    numbers = iter(range(1, count + 1))
    async with asyncio.TaskGroup() as group:
        for _ in range(_CUSTOMERS):
            group.create_task(_customer(client, _ORDERS[kind], kind, numbers, brokered))
    stage.say(f"{brokered.completed} of {count} orders completed through {kind} by {first} (pid {worker.pid})")
    await _kill_holder(stage, client, worker, kind, brokered, lambda: _worker(stage, brokers, kind, second))
    return brokered


async def _customer(
    client: AsyncClient,
    workflow: Workflow[orders.Order, orders.Receipt],
    kind: str,
    numbers: Iterator[int],
    brokered: Brokered,
) -> None:
    for number in numbers:
        wall = time.time() * 1000
        request = orders.Order(f"{kind}-o{number}", 100 + number)
        handle = await client.start(workflow, request, idempotency_key=request.id)
        brokered.submitted[handle.id] = wall
        receipt = await handle.result(timeout=_PATIENCE)
        brokered.completed += receipt == orders.Receipt(
            request.id, f"{request.cents} for {request.id}", f"parcel-{request.id}"
        )


async def _kill_holder(
    stage: Stage, client: AsyncClient, first: Child, kind: str, brokered: Brokered, next_worker: Callable[[], Child]
) -> None:
    handles = [
        await client.start(_PARCELS[kind], orders.Order(f"{kind}-p{number}", 100), idempotency_key=f"{kind}-p{number}")
        for number in range(HELD)
    ]
    brokered.held = [handle.id for handle in handles]
    await stage.until(lambda: _holding(stage, first.name) == HELD, f"{first.name} holds {HELD} runs", first)
    first.send(signal.SIGKILL)
    first.popen.wait()
    stage.say(f"kill -9 of {first.name} (pid {first.pid}), which held {HELD} runs")
    second = next_worker()
    stage.open_gate(second.name)
    results = await asyncio.gather(*(handle.result(timeout=_PATIENCE) for handle in handles))
    second.require()
    brokered.recovered = sum(result.endswith(f" by {second.name}") for result in results)
    stage.say(f"{brokered.recovered} of {HELD} runs recovered through {kind} and completed by {second.name}")


def _worker(stage: Stage, brokers: Brokers, kind: str, name: str) -> Child:
    address = brokers.redis_url if kind == "redis" else brokers.queue_url
    environment = {
        **stage.executor_environment(kind, f"{_ORDERS[kind].name} {_PARCELS[kind].name}"),
        **AWS,
        "POINTSMAN_DEMO_PROCESS": name,
        "POINTSMAN_DEMO_BROKER": f"{kind} {address}",
        "POINTSMAN_DEMO_SQS": brokers.sqs_url,
    }
    return stage.site.start_worker(name, "orders:worker", stage.bundle, environment)


def _holding(stage: Stage, process: str) -> int:
    return len({line.run for line in stage.bodies() if line.what == "hold" and line.process == process})
