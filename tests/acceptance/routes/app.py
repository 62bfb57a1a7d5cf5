"""What every route's executors serve: orders of three tasks, and runs that hold until a gate file appears."""

import asyncio
import os
from pathlib import Path
from typing import Any

from endpoint_sdk import Endpoint, Run, Worker, Workflow, subscribers, task, task_context, workflow
from endpoint_sdk.subscribers.base import Subscriber

_LOG = Path(os.environ.get("BODY_LOG", os.devnull))
_GATE = Path(os.environ.get("GATE", os.devnull))
_WHO = os.environ.get("WHO", "?")


def _note(name: str) -> None:
    with _LOG.open("a") as log:
        log.write(f"{task_context().run_id} {name}:{_WHO}\n")


@task
def reserve(order: str) -> str:
    _note("reserve")
    return f"reserved {order}"


@task
async def pay(order: str) -> str:
    _note("pay")
    return f"paid {order}"


@task
def ship(order: str) -> str:
    _note("ship")
    return f"shipped {order}"


@task
async def first() -> str:
    _note("first")
    return _WHO


@task
async def hold() -> str:
    _note("hold")
    while not await asyncio.to_thread(_GATE.exists):  # noqa: ASYNC110 - the gate is a file another process opens
        await asyncio.sleep(0.02)
    _note("held")
    return _WHO


@task
async def last() -> str:
    _note("last")
    return _WHO


@workflow("order", version="1")
async def order(run: Run, number: str) -> list[str]:
    return [await run.task(reserve, number), *await asyncio.gather(run.task(pay, number), run.task(ship, number))]


@workflow("gated", version="1")
async def gated(run: Run) -> list[str]:
    return [await run.task(first), await run.task(hold), await run.task(last)]


WORKFLOWS: list[Workflow[Any, Any]] = [order, gated]


def _subscriber(route: str) -> Subscriber:
    if route == "redis":
        return subscribers.redis(os.environ["REDIS_URL"])
    if route == "sqs":
        return subscribers.sqs(os.environ["QUEUE_URL"], endpoint_url=os.environ["SQS_URL"])
    return subscribers.poll()


if _route := os.environ.get("WORKER"):
    worker = Worker(WORKFLOWS, subscriber=_subscriber(_route))
else:
    endpoint = Endpoint(WORKFLOWS)
    app = endpoint.asgi
    handler = endpoint.lambda_handler
