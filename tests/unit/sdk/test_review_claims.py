"""Claims: what the refresher's thread knows, what happens if there is no thread, and divergence on a short host."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import Run, monotonic, task, workflow
from endpoint_sdk.execution import Execution
from endpoint_sdk.refresher import Refresher
from endpoint_sdk.wire import messages
from tests.unit.sdk.dispatcher_double import BlockingDouble
from tests.unit.sdk.handling import Handling
from tests.unit.sdk.replay_lab import execute

started: list[str] = []


@task
async def charge(value: str) -> str:
    started.append(value)
    return value


async def test_no_body_starts_once_the_refresher_has_heard_of_the_loss() -> None:
    """I3: user code blocks the loop while the verdict arrives; the body that was about to start does not."""
    started.clear()

    def blocked() -> None:
        handling.dispatcher.takes_over()
        hearing = threading.Thread(target=handling.refresher.once, args=(BlockingDouble(handling.dispatcher),))
        hearing.start()
        hearing.join()

    @workflow("order")
    async def blocking(run: Run, value: str) -> str:
        branch = asyncio.create_task(run.task(charge, value))
        await asyncio.sleep(0)
        blocked()
        return await branch

    handling = Handling(blocking)
    conclusion = await handling.run()

    assert conclusion.what == "claim lost: revision_conflict"
    assert started == []


async def test_a_thread_that_cannot_start_costs_one_run_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next claim tries again, and nothing of the failed one is left."""
    start = threading.Thread.start
    failures = ["can't start new thread"]

    def failing(thread: threading.Thread) -> None:
        if thread.name == "pointsman-refresher" and failures:
            raise RuntimeError(failures.pop())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    handling = Handling(refreshing=Refresher)
    with pytest.raises(RuntimeError, match="can't start"):
        await handling.execution.run()
    assert handling.refresher.once(BlockingDouble(handling.dispatcher)) == 0

    handling.dispatcher.state = "queued"
    held: list[bool] = []
    handling.dispatcher.before["progress"] = lambda: held.append(
        any(thread.name == "pointsman-refresher" for thread in threading.enumerate())
    )
    handling.execution = Execution(handling.context, handling.dispatcher.delivery(), lambda: None)
    conclusion = await handling.run()

    assert conclusion.what == "complete"
    assert all(held)
    assert held


async def test_a_divergence_is_named_on_a_host_with_little_time() -> None:
    """A Lambda of three seconds would hand the run off for ever before ten idle seconds had passed."""

    @workflow("order")
    async def changed(run: Run, value: str) -> str:
        return await run.task(charge, "new")

    @workflow("order")
    async def before(run: Run, value: str) -> str:
        return await run.task(charge, "old")

    _, records = await execute(before, value="in")
    handling = Handling(changed)
    handling.dispatcher.records = list(records)
    end = monotonic.now() + 1.0
    handling.execution = Execution(
        handling.context, handling.dispatcher.delivery(), lambda: timedelta(seconds=max(end - monotonic.now(), 0))
    )
    await handling.run()

    ending: Any = handling.dispatcher.ending
    assert isinstance(ending, messages.Stall)
    assert ending.details["changed"] == ["value"]
