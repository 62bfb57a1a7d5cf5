"""The executor of the benchmark: a workflow of three trivial tasks, each recorded durably on its own, and a parent."""

import os
import time

from endpoint_sdk import Endpoint, Run, Worker, subscribers, task, workflow

_LOG = os.open(os.environ["POINTSMAN_BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


@task
async def add_one(number: int) -> int:
    return number + 1


@task
async def double(number: int) -> int:
    return number * 2


@task
async def square(number: int) -> int:
    return number * number


@workflow("j3", version="1")
async def j3(run: Run, number: int) -> int:
    if not run.replaying:
        os.write(_LOG, f"{run.id} {time.time() * 1000:.3f}\n".encode())
    return await run.task(square, await run.task(double, await run.task(add_one, number)))


@workflow("child", version="1")
async def child(run: Run, number: int) -> int:
    return await run.task(add_one, number)


@workflow("children", version="1")
async def children(run: Run, count: int) -> int:
    return sum(await run.map(child, range(count), limit=10_000))


served = [j3, child, children]

match os.environ.get("POINTSMAN_BENCH_ROUTE"):
    case None:
        app = Endpoint(served).asgi
    case "redis":
        worker = Worker(served, subscriber=subscribers.redis(os.environ["REDIS_URL"]), max_concurrent_runs=64)
    case "sqs":
        queue = subscribers.sqs(os.environ["QUEUE_URL"], endpoint_url=os.environ["SQS_URL"])
        worker = Worker(served, subscriber=queue, max_concurrent_runs=64)
    case _:
        worker = Worker(served, max_concurrent_runs=64)
