"""Workflows and executions for tests of a graceful cancel."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from endpoint_sdk import CancelRequested, Retry, Run, Workflow, task, workflow
from endpoint_sdk.port import Ended
from endpoint_sdk.replay import Engine
from endpoint_sdk.wire import messages
from tests.unit.sdk.replay_lab import IDLE_SECONDS, MemoryPort, grant

HOUR = timedelta(hours=1)
# What bodies and handlers did.
TRACE: list[str] = []


@task
async def step(name: str) -> str:
    TRACE.append(name)
    return name


@task(retry=Retry.fixed(max_attempts=2, delay=HOUR))
async def flaky(name: str) -> str:
    TRACE.append(name)
    raise ValueError(name)


async def under_cancel(
    handler: Workflow[Any, Any], records: Sequence[messages.RecordIn] = (), port: MemoryPort | None = None
) -> tuple[Ended, list[messages.RecordIn]]:
    """How one execution ended whose grant carries a cancel, and what it recorded."""
    port = port or MemoryPort()
    asked = msgspec.structs.replace(grant(records), stop="cancel", stop_reason="fraud")
    engine = Engine(handler, asked, port, idle_seconds=IDLE_SECONDS)
    async with asyncio.timeout(5):
        return await engine.run(), port.records


def kinds(records: Sequence[messages.RecordIn]) -> list[tuple[str, str]]:
    """Kind and name of each."""
    return [(record.kind, record.name) for record in records]


@workflow("saga")
async def saga(run: Run) -> str:
    await run.task(step, "pay")
    try:
        await run.task(step, "ship")
        await run.sleep("cool-off", HOUR)
    except CancelRequested as cancel:
        TRACE.append(f"told: {cancel.reason}")
        await run.task(step, "refund")
        raise
    return "shipped"


@workflow("patient")
async def patient(run: Run) -> str:
    await run.task(step, "pay")
    try:
        return str(await run.wait_event("decision"))
    except CancelRequested:
        return "gave up"
