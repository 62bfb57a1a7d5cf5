"""WorkflowTester: its clock, work that really runs, and runs that come to no end."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from endpoint_sdk import (
    Event,
    Retry,
    Run,
    TaskFailed,
    Workflow,
    task,
    task_context,
    workflow,
)
from endpoint_sdk.testing import WorkflowStuck, WorkflowTester

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DECISION = Event[bool]("decision")

bodies: list[str] = []


class Declined(Exception):
    """What a card does."""


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    bodies.clear()


@task
async def ship(order: str) -> str:
    return f"shipped {order}"


def test_retries_wait_on_the_virtual_clock() -> None:
    """A parked retry is awaited like everything else; the same seed gives the same delays."""

    @task(name="flaky", retry=Retry.exponential(max_attempts=3, base=timedelta(minutes=1)))
    def flaky() -> int:
        bodies.append(f"attempt {task_context().attempt}")
        if task_context().attempt < 3:
            raise Declined("not yet")
        return 5

    @workflow("w")
    async def handler(run: Run) -> int:
        return await run.task(flaky)

    t, twin = WorkflowTester(seed=7), WorkflowTester(seed=7)
    run = t.start(handler)

    assert run.status == "awaiting_retry"
    assert run.waiting_for == {"flaky"}
    assert [(step.attempt, step.status) for step in run.history] == [(1, "failed"), (2, "waiting")]
    assert run.result() == 5
    assert bodies == ["attempt 1", "attempt 2", "attempt 3"]
    assert timedelta(seconds=90) <= t.now - START <= timedelta(minutes=3)
    assert twin.run(handler) == 5
    assert twin.now == t.now


def test_a_tasks_timeout_costs_no_time() -> None:
    """An `async def` body that never ends is cancelled when its time is over, which is at once."""

    @task(timeout=HOUR, retry=Retry.never())
    async def endless() -> None:
        await asyncio.sleep(DAY.total_seconds())

    @workflow("w")
    async def handler(run: Run) -> str:
        try:
            await run.task(endless)
        except TaskFailed as failure:
            return failure.error_type
        return "ended"

    t = WorkflowTester()
    assert t.run(handler) == "TimeoutError"
    assert t.now == START + HOUR


def test_a_body_that_waits_for_another_thread_is_waited_for() -> None:
    """Work that really runs is given its time, and a quick one takes none of the virtual clock."""

    @task
    async def elsewhere() -> str:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        threading.Thread(target=loop.call_soon_threadsafe, args=(done.set,)).start()
        await done.wait()
        return await asyncio.to_thread(lambda: "done")

    @workflow("w")
    async def handler(run: Run) -> str:
        return await run.task(elsewhere)

    t = WorkflowTester()
    assert t.run(handler) == "done"
    assert t.now == START


def test_a_run_that_cannot_go_on_is_told_apart_from_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event without a timeout, a lock nobody opens, a body that waits for ever by looking at the clock."""
    monkeypatch.setattr("endpoint_sdk.testing.virtual_time._MOST_JUMPS", 500)
    monkeypatch.setattr("endpoint_sdk.testing.virtual_time._STRANGERS", 0.05)

    @workflow("event")
    async def event(run: Run) -> None:
        await run.wait_event("decision")

    @workflow("lock")
    async def lock(run: Run) -> None:
        await asyncio.Event().wait()

    @task
    async def look() -> None:
        for _ in range(10**9):
            await asyncio.sleep(60)

    @workflow("looks")
    async def looks(run: Run) -> None:
        await run.task(look)

    @task
    async def hang() -> None:
        await asyncio.Event().wait()

    @workflow("hangs")
    async def hangs(run: Run) -> None:
        await run.task(hang)

    t = WorkflowTester()
    assert t.start(event).status == "awaiting_event"
    with pytest.raises(WorkflowStuck, match="waits for event 'decision', and no time ends that"):
        t.run(event)
    with pytest.raises(WorkflowStuck, match="no task or wait of its run"):
        t.run(lock)
    with pytest.raises(WorkflowStuck):
        t.run(looks)
    with pytest.raises(WorkflowStuck, match="or a body in it"):
        t.run(hangs)


def test_timers_run_however_far_the_clock_has_come() -> None:
    """Floats count coarsely after centuries; sleeping bodies and the engine's own timers go on."""

    @workflow("w")
    async def handler(run: Run) -> str:
        await run.sleep("centuries", timedelta(days=365 * 900))
        await run.task(ship, "o")
        return f"{run.now():%Y}"

    assert WorkflowTester().run(handler) == "2925"


@workflow("sleeps-for-ever")
async def sleeps_for_ever(run: Run) -> None:
    while True:
        await run.sleep("an hour", HOUR)


@workflow("restarts-for-ever")
async def restarts_for_ever(run: Run) -> None:
    run.restart(None)


@workflow("awaits")
async def awaits(run: Run) -> bool:
    return await run.wait_event(DECISION)


@pytest.mark.parametrize("endless", [sleeps_for_ever, restarts_for_ever])
def test_a_run_without_an_end_is_told_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, endless: Workflow[None, None]
) -> None:
    """It goes on a bounded number of times for one call; after that the tester is as good as new."""
    monkeypatch.setattr("endpoint_sdk.testing.bench._MOST_TIMES", 30)
    t = WorkflowTester()

    with pytest.raises(WorkflowStuck, match="went on 30 times and has not ended"):
        t.run(endless)
    assert t.run(brief) == "brief"


def test_a_run_without_an_end_can_be_watched_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """What bounds a result bounds no advance, and another run's ticking is no hope for one that waits for an event."""
    monkeypatch.setattr("endpoint_sdk.testing.bench._MOST_TIMES", 30)
    monkeypatch.setattr("endpoint_sdk.testing.bench._MOST_MOMENTS", 40)
    t = WorkflowTester()
    ticking = t.start(sleeps_for_ever)
    t.start(brief)

    ticking.advance(timedelta(hours=35))
    assert len(ticking.history) == 36
    with pytest.raises(WorkflowStuck, match="waits for event 'decision'"):
        t.start(awaits).result()


@workflow("brief")
async def brief(run: Run) -> str:
    return "brief"
