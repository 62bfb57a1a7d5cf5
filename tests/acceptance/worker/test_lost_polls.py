"""Polls whose answer is lost on the way, between a worker and a real dispatcher."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from endpoint_sdk import Run, Worker, subscribers, workflow
from tests.acceptance.worker.processes import execute_key, moves
from tests.faults import rig

PATIENT = {"interval_ms": 500, "claim_idle_timeout_ms": 90_000, "claim_refresh_interval_ms": 30_000}


@workflow("order")
async def order(run: Run) -> str:
    return run.id


async def ended(client: Any, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = await asyncio.to_thread(rig.ended, client, run_id, 40)
    return found


@pytest.mark.parametrize("fault", ["lose_reply", "lose_request"])
async def test_a_run_claimed_by_a_lost_answer_is_taken_over(sqlite_url: str, fault: rig.Fault) -> None:
    """I6: it completes under the claim that answer granted, without waiting for recovery."""
    with rig.dispatcher(sqlite_url, recover_overdue_outbox_entries=PATIENT) as client:
        proxy = rig.FaultProxy(str(client.base_url).rstrip("/"))
        key = execute_key(client)
        worker = Worker([order], subscriber=subscribers.poll(wait=timedelta(seconds=1)), url=proxy.url, api_key=key)
        run_id = rig.submit(client, "order", input=None, version="1")
        lost: list[str] = []

        def once(_number: int, path: str) -> rig.Fault:
            # The announcement and the first poll set out together; the lost one is the first that claims.
            body = proxy.seen[-1][1]
            if path == "/v1/claims" and b'"limit":0' not in body and not lost:
                lost.append(path)
                return fault
            return "pass"

        proxy.arm(once)
        serving = asyncio.create_task(worker.serve())
        try:
            run = await ended(client, run_id)
        finally:
            worker.stop()
            await serving
            proxy.stop()

        assert lost
        assert run["status"] == "completed"
        assert moves(client, run_id) == ["queued", "running", "completed"]


async def test_a_poll_cut_off_by_a_drain_loses_no_run(sqlite_url: str, tmp_path: Path) -> None:
    """Runs submitted while workers come and go are all completed, none by way of recovery."""
    with rig.dispatcher(sqlite_url, recover_overdue_outbox_entries=PATIENT) as client:
        key, url = execute_key(client), str(client.base_url).rstrip("/")
        runs: list[str] = []
        for _ in range(8):
            worker = Worker([order], url=url, api_key=key)
            serving = asyncio.create_task(worker.serve())
            runs += await asyncio.to_thread(
                lambda: [rig.submit(client, "order", input=None, version="1") for _ in "abc"]
            )
            worker.stop()
            await asyncio.wait_for(serving, 30)
        last = Worker([order], url=url, api_key=key)
        serving = asyncio.create_task(last.serve())
        found = [await ended(client, run_id) for run_id in runs]
        last.stop()
        await serving

        assert {run["status"] for run in found} == {"completed"}
        assert {run["kills"] for run in found} == {0}
