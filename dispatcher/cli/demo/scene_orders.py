"""First scene: orders through real Lambda runtime clients behind a function URL."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from dispatcher.cli.demo import orders
from dispatcher.cli.demo.front import Front
from dispatcher.cli.demo.runtime_api import Sandbox
from dispatcher.cli.demo.stage import Stage
from endpoint_sdk import AsyncClient

_SANDBOXES: Final = 8
_CUSTOMERS: Final = 8
_FUNCTION_TIMEOUT: Final = 30.0
_PATIENCE: Final = 60.0


@dataclass
class Ordered:
    """Runs by id with the epoch ms they were submitted at, and how long each took from submit to result, in ms."""

    submitted: dict[str, float] = field(default_factory=dict)
    e2e_ms: list[float] = field(default_factory=list)
    completed: int = 0


async def place_orders(stage: Stage, count: int) -> Ordered:
    """*count* orders, each customer placing the next when the last was answered."""
    async with AsyncExitStack() as stack:
        sandboxes = await _sandboxes(stage, stack)
        front = Front(sandboxes, _FUNCTION_TIMEOUT)
        await front.start()
        stack.push_async_callback(front.stop)
        await asyncio.to_thread(
            stage.site.add_endpoint, "orders-lambda", front.url, stage.site.secret, "lambda-url", _SANDBOXES
        )
        stage.say(f"{len(sandboxes)} Lambda runtime clients behind {front.url}, registered and probed")
        ordered = Ordered()
        numbers = iter(range(1, count + 1))
        async with asyncio.TaskGroup() as group:
            for customer in range(_CUSTOMERS):
                url = stage.site.urls[customer % len(stage.site.urls)]
                group.create_task(_customer(AsyncClient(url, api_key=stage.site.admin_key), numbers, ordered))
        stage.say(f"{ordered.completed} of {count} orders completed in {front.invocations} invocations")
        return ordered


async def _sandboxes(stage: Stage, stack: AsyncExitStack) -> list[Sandbox]:
    environment = stage.executor_environment("orders-lambda", "order")
    sandboxes = [
        Sandbox(stage.processes, f"lambda-{number}", "orders.handler", stage.bundle, environment)
        for number in range(1, _SANDBOXES + 1)
    ]
    for sandbox in sandboxes:
        stack.push_async_callback(sandbox.stop)
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    return sandboxes


async def _customer(client: AsyncClient, numbers: Iterator[int], ordered: Ordered) -> None:
    for number in numbers:
        wall, begun = time.time() * 1000, time.perf_counter()
        request = orders.Order(f"o{number}", 100 + number)
        handle = await client.start(orders.order, request, idempotency_key=request.id)
        ordered.submitted[handle.id] = wall
        receipt = await handle.result(timeout=_PATIENCE)
        ordered.e2e_ms.append((time.perf_counter() - begun) * 1000)
        expected = orders.Receipt(request.id, f"{request.cents} for {request.id}", f"parcel-{request.id}")
        ordered.completed += receipt == expected
