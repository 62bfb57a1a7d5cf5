"""endpoint_sdk.execution: hand-off, drain and pause, and never with a body in flight."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from endpoint_sdk.exchange import Exchange, Times
from endpoint_sdk.execution import Conclusion, Execution
from endpoint_sdk.host_time import margin
from endpoint_sdk.retry import Retry
from endpoint_sdk.run import Run
from endpoint_sdk.tasks import task
from endpoint_sdk.transport import Answer, AnswerTimeout
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import workflow
from tests.unit.sdk.dispatcher_double import URL, DispatcherDouble, FakeClock, unreachable
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


class Slow(DispatcherDouble):
    """Takes its time to acknowledge the first write."""

    async def request(self, method: str, url: str, *rest: Any, **more: Any) -> Answer:
        answer = await super().request(method, url, *rest, **more)
        first = url.endswith("/progress") and len(self.sent("progress")) == 1
        for _ in range(200 if first else 0):
            await asyncio.sleep(0)
        return answer


async def test_an_attempt_that_fails_as_the_run_ends_here_is_not_waited_for() -> None:
    """Its failure is recorded and the run released; the next attempt is for whoever claims it then."""

    @task(name="fails", retry=Retry.fixed(delay=timedelta(seconds=9), max_attempts=2))
    async def fails(value: str) -> str:
        raise ValueError("x")

    @workflow("order")
    async def failing(run: Run, value: str) -> str:
        return await run.task(fails, value)

    handling = Handling(failing, Slow())
    handling.dispatcher.before["progress"] = handling.execution.expire
    async with asyncio.timeout(5):
        conclusion = await handling.run()

    assert conclusion == Conclusion("settled", "release")
    assert [record.state for record in handling.dispatcher.records] == ["failed"]


async def test_what_is_acknowledged_after_the_run_ended_here_leaves_nothing_behind() -> None:
    """The record stands; no task is left that would hand it out, which `run` of the fixture checks."""

    @workflow("order")
    async def both(run: Run, value: str) -> list[str]:
        return list(await asyncio.gather(run.task(one, value), run.task(one, value + "2")))

    handling = Handling(both, Slow())
    handling.dispatcher.before["progress"] = handling.execution.expire

    assert await handling.run() == Conclusion("settled", "release")
    assert handling.dispatcher.records


@pytest.mark.parametrize("call", ["claim", "progress"])
async def test_a_call_without_an_answer_is_given_up_before_the_host_ends(call: str) -> None:
    """The host's own answer needs time too: an executor that is killed instead fails whatever else it was given."""
    handling = Handling()
    limit = timedelta(seconds=8)
    begun = handling.clock.now()
    handling.dispatcher.faults[call].extend([unreachable] * 1_000)

    def left() -> timedelta:
        return limit - timedelta(seconds=handling.clock.now() - begun)

    handling.execution = Execution(handling.context, handling.dispatcher.delivery(), left)
    conclusion = await handling.run()

    assert conclusion.result == "retry"
    assert left() > timedelta(0)
    assert len(handling.dispatcher.sent(call)) > 3


class Silent(DispatcherDouble):
    """Takes every call of `silent` and says nothing for as long as the caller waits."""

    def __init__(self, silent: str) -> None:
        super().__init__()
        self.silent = silent
        self.clock = FakeClock()
        self.waits: list[float] = []

    async def request(self, method: str, url: str, *rest: Any, timeout: float = 30.0, **more: Any) -> Answer:
        if not url.endswith(f"/{self.silent}"):
            return await super().request(method, url, *rest, timeout=timeout, **more)
        self.waits.append(timeout)
        self.clock.pass_(timeout)
        raise AnswerTimeout("no answer")


@pytest.mark.parametrize("call", ["claim", "progress"])
@pytest.mark.parametrize("limit", [1, 3, 8, 13, 15, 60, 900])
async def test_no_call_is_waited_for_beyond_the_hosts_time(call: str, limit: int) -> None:
    """A dispatcher that takes calls and hangs: the last wait ends before the host does, whatever time there was."""
    silent = Silent(call)
    handling = Handling(dispatcher=silent)
    handling.clock = silent.clock
    times = Times(silent.clock.now, silent.clock.sleep, lambda low, high: (low + high) / 2)
    handling.context = msgspec.structs.replace(handling.context, exchange=Exchange(silent, URL, times))
    end = silent.clock.now() + limit

    def left() -> timedelta:
        return timedelta(seconds=end - silent.clock.now())

    handling.execution = Execution(handling.context, silent.delivery(), left)
    conclusion = await handling.run()

    assert conclusion.result == "retry"
    assert left().total_seconds() >= margin(timedelta(seconds=limit)) / 4 - 0.001


async def test_a_last_write_is_given_half_of_what_is_left() -> None:
    """A body that ate up the margin: its record is sent, and a host with a moment left still answers."""
    silent = Silent("progress")
    handling = Handling(dispatcher=silent)
    times = Times(silent.clock.now, silent.clock.sleep, lambda low, high: (low + high) / 2)
    handling.context = msgspec.structs.replace(handling.context, exchange=Exchange(silent, URL, times))
    end = silent.clock.now() + 20

    def left() -> timedelta:
        return timedelta(seconds=end - silent.clock.now())

    silent.before["claim"] = lambda: silent.clock.pass_(19.8)
    handling.execution = Execution(handling.context, silent.delivery(), left)
    conclusion = await handling.run()

    assert conclusion.result == "retry"
    assert silent.waits == pytest.approx([0.1])
    assert left() > timedelta(0)


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
