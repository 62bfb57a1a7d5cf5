"""The demo's code bundle: copied into a folder of its own, it runs as a user's code would, on the SDK alone.

`order` runs on Lambda; `parcel` and `crate` hold in their second task until the demo opens the gate of the process
they run in. Those named `redis-…` and `sqs-…` go through that broker to a worker. Every task body appends a line to
one log, so that what ran is counted by what bodies did.
"""

import asyncio
import json
import os
import time
import uuid
from datetime import timedelta
from pathlib import Path

import msgspec

from endpoint_sdk import Endpoint, Run, Worker, Workflow, subscribers, task, task_context, workflow
from endpoint_sdk.subscribers.base import Subscriber


class Order(msgspec.Struct, frozen=True):
    id: str
    cents: int


class Receipt(msgspec.Struct, frozen=True):
    order: str
    charge: str
    tracking: str


class Done(msgspec.Struct, frozen=True):
    """What a task gives back: its result, and which execution of its body made it."""

    text: str
    body: str


@task
def charge(order: str, cents: int) -> Done:
    return Done(f"{cents} for {order}", note("charge", task_context().run_id))


@task
def ship(order: str) -> Done:
    return Done(f"parcel-{order}", note("ship", task_context().run_id))


async def _bought(run: Run, request: Order) -> Receipt:
    note("handler", run.id)
    charged = await run.task(charge, request.id, request.cents)
    shipped = await run.task(ship, request.id)
    return Receipt(request.id, charged.text, shipped.text)


@workflow("order", version="1.0.0")
async def order(run: Run, request: Order) -> Receipt:
    return await _bought(run, request)


@workflow("redis-order", version="1.0.0")
async def redis_order(run: Run, request: Order) -> Receipt:
    return await _bought(run, request)


@workflow("sqs-order", version="1.0.0")
async def sqs_order(run: Run, request: Order) -> Receipt:
    return await _bought(run, request)


@task
async def pack(order: str) -> Done:
    return Done(f"box-{order}", note("pack", task_context().run_id))


@task
async def hold(box: str) -> Done:
    body = note("hold", task_context().run_id)
    gate = Path(os.environ["POINTSMAN_DEMO_FOLDER"]) / f"{_process()}.open"
    while not gate.exists():  # noqa: ASYNC110  the gate is opened by another process
        await asyncio.sleep(0.02)
    return Done(box, body)


@task
async def label(box: str) -> Done:
    return Done(f"{box} by {_process()}", note("label", task_context().run_id))


async def _carried(run: Run, request: Order) -> str:
    packed = await run.task(pack, request.id)
    held = await run.task(hold, packed.text)
    return (await run.task(label, held.text)).text


@workflow("parcel", version="1.0.0")
async def parcel(run: Run, request: Order) -> str:
    return await _carried(run, request)


@workflow("redis-parcel", version="1.0.0")
async def redis_parcel(run: Run, request: Order) -> str:
    return await _carried(run, request)


@workflow("sqs-parcel", version="1.0.0")
async def sqs_parcel(run: Run, request: Order) -> str:
    return await _carried(run, request)


@workflow("crate", version="1.0.0")
async def crate(run: Run, request: Order) -> str:
    return await _carried(run, request)


def note(what: str, run_id: str) -> str:
    """Appends one line in one write, so that lines of processes never mix and a kill loses none; returns its id."""
    body = uuid.uuid4().hex
    line = {"run": run_id, "what": what, "at": time.time() * 1000, "process": _process(), "body": body}
    path = Path(os.environ["POINTSMAN_DEMO_FOLDER"]) / "bodies.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)
    return body


def _process() -> str:
    return os.environ["POINTSMAN_DEMO_PROCESS"]


_WORKFLOWS: tuple[Workflow[Order, Receipt] | Workflow[Order, str], ...] = (
    order,
    parcel,
    crate,
    redis_order,
    redis_parcel,
    sqs_order,
    sqs_parcel,
)


def _subscriber(kind: str, address: str) -> Subscriber:
    if kind == "redis":
        return subscribers.redis(address)
    return subscribers.sqs(address, wait=timedelta(seconds=2), endpoint_url=os.environ["POINTSMAN_DEMO_SQS"])


# The demo itself imports the workflows only, and has no secret to serve them with.
if names := os.environ.get("POINTSMAN_DEMO_SERVES"):
    served = [each for each in _WORKFLOWS if each.name in names.split()]
    if broker := os.environ.get("POINTSMAN_DEMO_BROKER"):
        worker = Worker(served, subscriber=_subscriber(*broker.split()))
    else:
        endpoint = Endpoint(served)
        handler = endpoint.lambda_handler
        app = endpoint.asgi
