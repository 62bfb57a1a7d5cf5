"""Lambda functions as a user writes them, loaded by the real runtime client.

Bodies leave marks in the file POINTSMAN_TEST_MARKS names, which outlives a killed sandbox.
"""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from endpoint_sdk.endpoint import Endpoint
from endpoint_sdk.run import Run
from endpoint_sdk.tasks import task
from endpoint_sdk.workflow import workflow

ORPHANS: list[asyncio.Task[None]] = []
LATER = asyncio.Event()


def mark(text: str) -> None:
    with Path(os.environ["POINTSMAN_TEST_MARKS"]).open("a") as marks:
        marks.write(text + "\n")


@task(name="quick")
def quick(value: str) -> str:
    mark("quick")
    return value + "!"


@task(name="hang")
def hang(value: str) -> str:
    mark("hang")
    while True:
        time.sleep(0.05)


@task(name="pause")
def pause(value: str) -> str:
    mark("pause")
    time.sleep(0.4)
    return value


@task(name="leave")
async def leave(value: str) -> str:
    ORPHANS.append(asyncio.create_task(_orphan()))
    return value


@task(name="later")
async def later(value: str) -> str:
    LATER.set()
    await asyncio.sleep(0.05)
    return value


@task(name="exit")
def exit_(value: str) -> str:
    sys.exit(value)


async def _orphan() -> None:
    """Marks if it is still there in an invocation that opens LATER."""
    await LATER.wait()
    mark("orphan ran on")


@workflow("order")
async def order(run: Run, value: str) -> str:
    return await run.task(quick, value)


@workflow("endless")
async def endless(run: Run, value: str) -> str:
    return await run.task(hang, await run.task(quick, value))


@workflow("long")
async def long(run: Run, value: str) -> str:
    for number in range(8):
        await run.task(pause, f"{value}{number}")
    return value


@workflow("untidy")
async def untidy(run: Run, value: str) -> str:
    return await run.task(leave, value)


@workflow("afterwards")
async def afterwards(run: Run, value: str) -> str:
    return await run.task(later, value)


@workflow("exiting")
async def exiting(run: Run, value: str) -> str:
    return await run.task(exit_, value)


endpoint = Endpoint([order, endless, long, untidy, afterwards, exiting])
handler = endpoint.lambda_handler


@endpoint.lambda_handler
def over(event: Any, context: Any) -> Any:
    if event == "threads":
        return sorted(thread.name for thread in threading.enumerate() if thread.is_alive())
    if event == "raise":
        raise ValueError("the user's own")
    return {"theirs": event, "request": context.aws_request_id != ""}


@endpoint.lambda_handler
async def over_async(event: Any, context: Any) -> Any:
    ORPHANS.append(asyncio.create_task(_orphan()))
    await asyncio.sleep(0)
    return {"theirs": event}
