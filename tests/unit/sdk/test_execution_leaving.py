"""endpoint_sdk.execution: hand-off, drain and pause, and never with a body in flight."""

import asyncio
import threading
from datetime import timedelta

import pytest

from endpoint_sdk.execution import Conclusion, Execution, margin
from endpoint_sdk.run import Run
from endpoint_sdk.tasks import task
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import workflow
from tests.unit.sdk.handling import Handling, bodies, one


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    bodies.clear()


@pytest.mark.parametrize(
    ("limit", "seconds"), [(None, 0), (900, 45), (30, 2), (40, 2), (60, 3), (3, 1.5), (1, 0.5), (0, 0), (-1, 0)]
)
def test_the_margin_is_five_percent_at_least_two_seconds_at_most_half(limit: float | None, seconds: float) -> None:
    """min(max(2 s, 5 %), half the limit)."""
    assert margin(None if limit is None else timedelta(seconds=limit)) == pytest.approx(seconds)


async def test_time_nearly_up_hands_the_run_off_at_a_boundary() -> None:
    """Inside the margin no further task starts; what is done is recorded, and the run goes on elsewhere."""
    handling = Handling()
    handling.left = timedelta(seconds=900)
    handling.execution = Execution(handling.context, handling.dispatcher.delivery(), lambda: handling.left)

    def nearly_up() -> None:
        handling.left = timedelta(seconds=40)

    handling.dispatcher.before["progress"] = nearly_up
    conclusion = await handling.run()

    assert conclusion == Conclusion("settled", "release")
    assert handling.dispatcher.ending == messages.Release("handoff")
    assert bodies == ["one"]
    assert [record.name for record in handling.dispatcher.records] == ["one"]


async def test_hand_off_with_a_body_in_flight() -> None:
    """The margin comes in the middle of a thread's body: nothing is released before that body is over."""
    started, finish = threading.Event(), threading.Event()

    @task(name="slow")
    def slow(value: str) -> str:
        started.set()
        assert finish.wait(5)
        return value

    @workflow("order")
    async def slowly(run: Run, value: str) -> str:
        await run.task(slow, value)
        return await run.task(one, value)

    handling = Handling(slowly)
    handling.left = timedelta(seconds=10)
    handling.execution = Execution(handling.context, handling.dispatcher.delivery(), lambda: handling.left)
    running = asyncio.create_task(handling.run())
    assert await asyncio.to_thread(started.wait, 5)
    handling.left = timedelta(seconds=1)
    handling.execution._leave()
    for _ in range(20):
        await asyncio.sleep(0)
    assert handling.dispatcher.sent("progress") == []

    finish.set()
    assert await running == Conclusion("settled", "release")
    assert [record.name for record in handling.dispatcher.records] == ["slow"]
    assert bodies == []


async def test_a_drain_releases_with_its_reason_and_keeps_refreshing() -> None:
    """C15: until the run is released the claim is refreshed; then it is released as a drain."""
    started, finish = asyncio.Event(), asyncio.Event()

    @task
    async def slow(value: str) -> str:
        started.set()
        await finish.wait()
        return value

    @workflow("order")
    async def slowly(run: Run, value: str) -> str:
        await run.task(slow, value)
        return await run.task(one, value)

    handling = Handling(slowly)
    running = asyncio.create_task(handling.run())
    await started.wait()
    handling.execution.drain()
    assert handling.refresh() == 1
    finish.set()

    assert await running == Conclusion("settled", "release")
    assert handling.dispatcher.ending == messages.Release("drain")


async def test_a_standing_pause_releases_with_its_reason() -> None:
    """An answer that carries stop: pause is obeyed at the next task boundary."""
    handling = Handling()

    def paused() -> None:
        handling.dispatcher.stop = "pause"

    handling.dispatcher.before["progress"] = paused
    await handling.run()

    assert handling.dispatcher.ending == messages.Release("pause")
    assert bodies == ["one"]


async def test_a_claim_granted_under_a_pause_starts_no_task() -> None:
    """The grant itself may carry the stop."""
    handling = Handling()
    handling.dispatcher.stop = "pause"
    await handling.run()

    assert handling.dispatcher.ending == messages.Release("pause")
    assert bodies == []
