"""A program with a worker: tasks that wait for a gate file, so that a test decides how long a run is held."""

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path

from endpoint_sdk import Run, SyncRun, Worker, task, task_context, workflow

_LOG = Path(os.environ.get("BODY_LOG", os.devnull))
_GATE = Path(os.environ.get("GATE", os.devnull))
_WHO = os.environ.get("WHO", "?")


def _note(name: str) -> None:
    with _LOG.open("a") as log:
        log.write(f"{task_context().run_id} {name}:{_WHO}\n")


@task
async def hold() -> str:
    _note("hold")
    try:
        while not await asyncio.to_thread(_GATE.exists):  # noqa: ASYNC110 - the gate is a file another process opens
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        _note("cancelled")
        raise
    _note("held")
    return _WHO


@task
def block() -> str:
    _note("block")
    while not _GATE.exists():
        time.sleep(0.02)
    return _WHO


@task
def after() -> str:
    _note("after")
    return _WHO


@task
async def spin() -> None:
    _note("spin")
    while not _GATE.exists():  # noqa: ASYNC240 - a mistake users make
        time.sleep(0.02)  # noqa: ASYNC251 - and another


@workflow("quick", version="2", accepts=["1"])
async def quick(run: Run) -> list[str]:
    return [await run.task(after)]


@workflow("gated")
async def gated(run: Run) -> list[str]:
    return [await run.task(hold), await run.task(after)]


@workflow("blocked")
def blocked(run: SyncRun) -> list[str]:
    return [run.task(block), run.task(after)]


@workflow("spinning")
async def spinning(run: Run) -> None:
    await run.task(spin)


worker = Worker(
    workflows=[quick, gated, blocked, spinning],
    max_concurrent_runs=int(os.environ.get("PLACES", "4")),
    drain_timeout=timedelta(seconds=float(os.environ.get("DRAIN", "25"))),
)
