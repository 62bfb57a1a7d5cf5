"""A worker with the workflows that wait for a gate file, and two of its own."""

import os
import time
from datetime import timedelta

from endpoint_sdk import Run, Worker, task, workflow
from tests.faults.gate_app import GATE, after, blocked, gated, note


@task
async def spin() -> None:
    note("spin")
    while not GATE.exists():
        time.sleep(0.02)  # noqa: ASYNC251 - and another


@workflow("quick", version="2", accepts=["1"])
async def quick(run: Run) -> list[str]:
    return [await run.task(after)]


@workflow("spinning")
async def spinning(run: Run) -> None:
    await run.task(spin)


worker = Worker(
    workflows=[quick, gated, blocked, spinning],
    max_concurrent_runs=int(os.environ.get("PLACES", "4")),
    drain_timeout=timedelta(seconds=float(os.environ.get("DRAIN", "25"))),
)
