"""Bodies of tasks: threads, timeouts, and what a body can ask."""

import asyncio
import contextvars
import threading
from datetime import timedelta

import pytest

from endpoint_sdk import ConfigurationError, Retry, Run, task, task_context, workflow
from tests.unit.sdk.replay_lab import MemoryPort, execute, plain
from tests.unit.sdk.task_workflows import calling


async def test_def_bodies_run_in_threads_with_the_callers_context() -> None:
    """A def task runs beside the loop and sees the context variables of the code that called it."""
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")

    @task
    def where() -> list[str]:
        return [threading.current_thread().name, tenant.get(), task_context().run_id]

    @workflow("w")
    async def handler(run: Run) -> list[str]:
        tenant.set("acme")
        return await run.task(where)

    ended, _ = await execute(handler)
    name, seen, run_id = plain(ended)

    assert name.startswith("pointsman-task")
    assert (seen, run_id) == ("acme", "run_1")


async def test_a_timeout_cancels_an_async_body() -> None:
    """An async body over its timeout is unwound and its attempt fails by TimeoutError."""
    unwound: list[bool] = []

    @task(retry=Retry.never(), timeout=timedelta(milliseconds=5))
    async def stuck() -> None:
        left = task_context().remaining()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            unwound.append(left is not None and left <= timedelta(milliseconds=5))

    ended, _ = await execute(calling(stuck))

    assert plain(ended)[2]["error_type"] == "TimeoutError"
    assert unwound == [True]


@pytest.mark.parametrize("gives_up", [True, False])
async def test_a_def_body_sees_its_timeout_and_may_still_return(gives_up: bool) -> None:
    """A def body is told by `cancelled`; raising then is a TimeoutError, returning counts."""

    @task(retry=Retry.never(), timeout=timedelta(milliseconds=5))
    def slow() -> str:
        while not task_context().cancelled:
            threading.Event().wait(0.001)
        if gives_up:
            raise RuntimeError("gave up")
        return "late"

    ended, _ = await execute(calling(slow))

    assert plain(ended)[2]["error_type"] == "TimeoutError" if gives_up else plain(ended) == "late"


async def test_the_hosts_time_is_part_of_remaining() -> None:
    """`remaining` is the lesser of the host's time and the task's own."""
    port = MemoryPort()
    port.left = timedelta(hours=1)

    @task
    async def host() -> float:
        left = task_context().remaining()
        return left.total_seconds() if left else -1

    ended, _ = await execute(calling(host), port=port)
    own, _ = await execute(calling(host.with_options(timeout=timedelta(seconds=9))), port=port)

    assert plain(ended) == 3600
    assert 8 < plain(own) <= 9


def test_task_context_is_for_tasks() -> None:
    """Asked outside a task it is a configuration error."""
    with pytest.raises(ConfigurationError):
        task_context()


async def test_a_direct_call_in_a_workflow_runs_unrecorded_with_one_warning() -> None:
    """Called like a function a task is one: it warns once with the fix, and nothing is recorded."""

    @task
    def double(value: int) -> int:
        return value * 2

    @workflow("w")
    async def handler(_: Run) -> int:
        return double(2) + double(3)

    with pytest.warns(RuntimeWarning, match=r"write run\.task\(") as warned:
        ended, records = await execute(handler)

    assert plain(ended) == 10
    assert len(warned) == 1
    assert records == []
    assert double(4) == 8
