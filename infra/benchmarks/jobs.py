"""The jobs: `j3` for throughput, `start` for latency at idle, `children` for one parent of many.

Each returns the figures of its JSON line.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from dispatcher.cli.demo.figures import spread
from endpoint_sdk import AsyncClient
from infra.benchmarks.rig import Rig

_SUBMITTERS: Final = 32
_PATIENCE: Final = 300.0
_GAP: Final = 0.01

Submitted = dict[str, float]


async def j3(rig: Rig, runs: int, warm_up: int) -> dict[str, Any]:
    """Wall time from the first submit until *runs* runs are completed, after *warm_up* runs that do not count."""
    await _drive(rig, warm_up, before=0)
    return await _timed(rig, runs, before=warm_up)


async def start(rig: Rig, runs: int, warm_up: int) -> dict[str, Any]:
    """Latency of *runs* runs, each submitted when the one before has completed."""
    await _one_by_one(rig, warm_up)
    return await _timed(rig, runs, before=None)


async def children(rig: Rig, runs: int, warm_up: int) -> dict[str, Any]:
    """One parent that maps a workflow of one task over *runs* inputs, after one over *warm_up* that does not count.

    `parent_claims` is how often it was handed to an executor, `database_bytes` by how much the database grew.
    """
    client = _client(rig)
    await (await client.start("children", warm_up, version="1")).result(timeout=_PATIENCE)
    statements, size, cpu, begun = rig.statements(), rig.database_bytes(), rig.cpu(), time.perf_counter()
    handle = await client.start("children", runs, version="1")
    total = await handle.result(timeout=_PATIENCE)
    seconds = time.perf_counter() - begun
    assert total == sum(range(1, runs + 1))
    return {
        "runs": runs,
        "seconds": round(seconds, 2),
        "runs_s": round(runs / seconds, 1),
        "parent_claims": rig.claims(handle.id),
        "database_bytes": rig.database_bytes() - size,
        "queries": rig.statements() - statements,
        "cpu_s": {name: round(after - cpu[name], 2) for name, after in rig.cpu().items()},
        "rss_mb": rig.rss(),
    }


async def _timed(rig: Rig, runs: int, before: int | None) -> dict[str, Any]:
    statements, cpu, begun = rig.statements(), rig.cpu(), time.perf_counter()
    submitted = await (_one_by_one(rig, runs) if before is None else _drive(rig, runs, before))
    seconds = time.perf_counter() - begun
    spent = {name: round(after - cpu[name], 2) for name, after in rig.cpu().items()}
    return {
        "runs": len(submitted),
        "runs_s": round(len(submitted) / seconds, 1),
        "start_ms": spread(_delays(submitted, rig.started())),
        "e2e_ms": spread(_delays(submitted, rig.finished())),
        "cpu_s": spent,
        "rss_mb": rig.rss(),
        "queries": rig.statements() - statements,
    }


async def _drive(rig: Rig, runs: int, before: int) -> Submitted:
    """*runs* runs submitted by several clients at once, and completed."""
    submitted: Submitted = {}
    numbers = iter(range(runs))
    client = _client(rig)

    async def submitter() -> None:
        for number in numbers:
            at = time.time() * 1000
            handle = await client.start("j3", number, version="1")
            submitted[handle.id] = at

    async with asyncio.TaskGroup() as group:
        for _ in range(_SUBMITTERS):
            group.create_task(submitter())
    async with asyncio.timeout(_PATIENCE):
        while await asyncio.to_thread(rig.completed) < before + runs:
            rig.endpoint.require()
            rig.site.dispatchers[0].require()
            await asyncio.sleep(0.02)
    return submitted


async def _one_by_one(rig: Rig, runs: int) -> Submitted:
    submitted: Submitted = {}
    client = _client(rig)
    for number in range(runs):
        at = time.time() * 1000
        handle = await client.start("j3", number, version="1")
        submitted[handle.id] = at
        await handle.result(timeout=_PATIENCE)
        await asyncio.sleep(_GAP)
    return submitted


def _client(rig: Rig) -> AsyncClient:
    return AsyncClient(rig.site.urls[0], api_key=rig.site.admin_key)


def _delays(submitted: Submitted, reached: Mapping[str, float]) -> list[float]:
    return [reached[run] - at for run, at in submitted.items() if run in reached]
