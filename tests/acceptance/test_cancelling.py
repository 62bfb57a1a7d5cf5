"""Sagas, restarts and attempts of runs against the real dispatcher."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import (
    CancelRequested,
    Client,
    Endpoint,
    Event,
    Retry,
    Run,
    RunCancelled,
    RunFailed,
    SyncRun,
    Workflow,
    task,
    workflow,
)
from endpoint_sdk.testing import local_dispatcher
from endpoint_sdk.wire import signature

WAREHOUSE = Event[bool]("warehouse")

done: list[str] = []


@task
def charge(order: str) -> str:
    done.append(f"charge {order}")
    return f"receipt {order}"


@task
def refund(order: str) -> None:
    done.append(f"refund {order}")


@task(retry=Retry.fixed(max_attempts=2, delay=timedelta(milliseconds=10)))
def restock(order: str) -> None:
    done.append(f"restock {order}")
    if done.count(f"restock {order}") == 1:
        raise ConnectionError("busy")


@workflow("order-saga")
async def saga(run: Run, order: str) -> str:
    run.undo(refund, order)
    receipt = await run.task(charge, order)
    run.undo(restock, order)
    try:
        await run.wait_event(WAREHOUSE, timeout=timedelta(days=1))
    except CancelRequested as cancel:
        done.append(f"told: {cancel.reason}")
        await run.compensate()
        raise
    return receipt


@workflow("blocking-saga")
def blocking(run: SyncRun, order: str) -> str:
    run.undo(refund, order)
    run.task(charge, order)
    try:
        run.sleep("cool-off", timedelta(days=1))
    except CancelRequested:
        run.compensate()
        raise
    return order


@workflow("counting")
async def counting(run: Run, number: int) -> str:
    await run.task(charge, f"round {number}")
    if number < 3:
        run.restart(number + 1)
    return f"{number} of generation {run.info.generation}"


@workflow("apology")
async def apology(run: Run, failure: dict[str, Any]) -> None:
    await run.task(charge, f"apology for {failure['runId']}")


@workflow("unlucky", retry=Retry.fixed(max_attempts=2, delay=timedelta(milliseconds=10)), on_failure=apology)
async def unlucky(run: Run, order: str) -> None:
    await run.task(charge, order)
    raise ValueError(f"attempt {run.info.attempt}")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a dispatcher that pushes to one endpoint with all workflows here."""
    served: list[Workflow[Any, Any]] = [saga, blocking, counting, unlucky, apology]
    with local_dispatcher(Endpoint(served, secret=signature.new_secret())) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


def _waits(handle: Any, status: str) -> None:
    """Returns once the run has *status*, by its changes."""
    seen = handle.state()
    while seen.status != status:
        assert seen.status not in ("completed", "failed", "cancelled", "stalled"), seen
        seen = handle.state()


def test_a_waiting_order_is_cancelled_and_compensates(client: Client) -> None:
    """What was done is undone in reverse order, each once, a failed undo tried again; then the run is cancelled."""
    handle = client.start(saga, "o1")
    _waits(handle, "awaiting_event")
    handle.cancel("customer changed her mind")

    with pytest.raises(RunCancelled, match="changed her mind"):
        handle.result(timeout=20)
    assert done == ["charge o1", "told: customer changed her mind", "restock o1", "restock o1", "refund o1"]


def test_a_blocking_saga_is_cancelled_and_compensates(client: Client) -> None:
    """The same over a `def` workflow."""
    handle = client.start(blocking, "o2")
    _waits(handle, "sleeping")
    handle.cancel("no more")

    with pytest.raises(RunCancelled):
        handle.result(timeout=20)
    assert done == ["charge o2", "refund o2"]


def test_a_run_restarts_itself_under_its_id(client: Client) -> None:
    """Three generations, each with its own history, one result."""
    assert client.start(counting, 1).result(timeout=20) == "3 of generation 2"
    assert done == ["charge round 1", "charge round 2", "charge round 3"]


def test_a_failing_run_is_tried_again_and_answered_for(client: Client) -> None:
    """What succeeded is not done again; the last failure starts the workflow that on_failure= names."""
    handle = client.start(unlucky, "o3")
    with pytest.raises(RunFailed, match="attempt 2"):
        handle.result(timeout=20)
    assert done[0] == "charge o3"
    client.get(apology, idempotency_key=f"on_failure:{handle.id}").result(timeout=20)
    assert done == ["charge o3", f"charge apology for {handle.id}"]
