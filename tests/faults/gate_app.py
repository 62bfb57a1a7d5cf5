"""Tasks that wait for a gate file, so that a test decides how long an executor holds its run; and one that dies."""

import asyncio
import os
import signal
import time
from pathlib import Path

from endpoint_sdk import Endpoint, Run, SyncRun, task, task_context, workflow

_LOG = Path(os.environ.get("BODY_LOG", os.devnull))
GATE = Path(os.environ.get("GATE", os.devnull))
_WHO = os.environ.get("WHO", "?")


def note(name: str) -> None:
    with _LOG.open("a") as log:
        log.write(f"{task_context().run_id} {name}:{_WHO}\n")


@task
async def hold() -> str:
    note("hold")
    try:
        while not await asyncio.to_thread(GATE.exists):  # noqa: ASYNC110 - the gate is a file another process opens
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        note("cancelled")
        raise
    note("held")
    return _WHO


@task
def block() -> str:
    note("block")
    while not GATE.exists():
        time.sleep(0.02)
    return _WHO


@task
def after() -> str:
    note("after")
    return _WHO


@task
def die() -> None:
    note("die")
    os.kill(os.getpid(), signal.SIGKILL)


@workflow("gated", version="1")
async def gated(run: Run) -> list[str]:
    return [await run.task(hold), await run.task(after)]


@workflow("blocked", version="1")
def blocked(run: SyncRun) -> list[str]:
    return [run.task(block), run.task(after)]


@workflow("deadly", version="1")
async def deadly(run: Run) -> None:
    await run.task(after)
    await run.task(die)


endpoint = Endpoint(workflows=[gated, blocked, deadly])
app = endpoint.asgi
