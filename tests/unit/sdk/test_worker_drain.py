"""endpoint_sdk.worker: how it ends, at every moment of a run."""

import asyncio
import logging
import threading
from datetime import timedelta

import pytest

from endpoint_sdk.subscribers.base import Claim
from endpoint_sdk.wire import messages
from tests.unit.sdk.fleet_double import SECRET, Fleet, MemorySubscriber, message, serving, until
from tests.unit.sdk.gated_worker import gate, made


async def test_a_drain_takes_nothing_and_releases_at_the_boundary(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """C15, C45: the task under way ends and is recorded, the run is released as a drain and the message settled."""
    caplog.set_level(logging.INFO)
    subscriber, run = MemorySubscriber(), fleet.queue("gated")
    worker = made(subscriber)
    async with serving(worker):
        subscriber.put(message(run))
        await until(lambda: gate.inside == 1)
        worker.stop()
        await until(lambda: "draining" in caplog.text)
        subscriber.put(message(fleet.queue()))
        await asyncio.sleep(0.05)
        assert (run.ending, gate.inside) == (None, 1)
        gate.open.set()

    assert run.ending == messages.Release("drain")
    assert [record.name for record in run.records] == ["hold"]
    assert len(subscriber.settled) == 1
    assert len(subscriber.items) == 1


async def test_a_body_that_outlasts_the_drain_is_cancelled_and_the_run_released(fleet: Fleet) -> None:
    """An `async def` body is awaited before anything is said."""
    subscriber, run = MemorySubscriber(), fleet.queue("gated")
    worker = made(subscriber, drain_timeout=timedelta(seconds=0.5))
    async with serving(worker) as served:
        subscriber.put(message(run))
        await until(lambda: gate.inside == 1)
        worker.stop()
        await asyncio.wait_for(served, 10)

    assert gate.inside == 0
    assert run.ending == messages.Release("drain")
    assert run.records == []


async def test_a_thread_that_outlasts_the_drain_says_nothing(fleet: Fleet) -> None:
    """While a `def` body runs neither the run nor its message is ended; the worker returns all the same."""
    subscriber, run = MemorySubscriber(), fleet.queue("blocked")
    worker = made(subscriber, drain_timeout=timedelta(seconds=0.5))
    async with serving(worker) as served:
        subscriber.put(message(run))
        await until(lambda: gate.inside == 1)
        worker.stop()
        await asyncio.wait_for(served, 10)

    assert run.ending is None
    assert (subscriber.settled, subscriber.returned) == ([], [])
    assert worker.holding == []
    assert worker.left_to_recovery == 1


async def test_a_message_being_judged_when_the_drain_comes_goes_back_at_once(fleet: Fleet) -> None:
    """It was not claimed, so somebody else may have it now."""
    fetching, go_on = threading.Event(), threading.Event()

    def slow_secret() -> str:
        fetching.set()
        go_on.wait(10)
        return SECRET

    subscriber, run = MemorySubscriber(), fleet.queue()
    worker = made(subscriber, secret=slow_secret)
    async with serving(worker):
        subscriber.put(message(run))
        await until(fetching.is_set)
        worker.stop()
        await asyncio.sleep(0)
        go_on.set()

    assert [delay for _, delay in subscriber.returned] == [0]
    assert run.requests == []


async def test_a_claim_that_is_granted_into_a_drain_is_released(fleet: Fleet) -> None:
    """The claim was on its way: no task starts, and the run is given back as soon as it is ours."""
    subscriber, run = MemorySubscriber(), fleet.queue("gated")
    worker = made(subscriber)
    run.before["claim"] = worker.stop
    async with serving(worker):
        subscriber.put(message(run))
        await until(lambda: run.ending is not None)

    assert run.ending == messages.Release("drain")
    assert gate.most == 0


async def test_cancelling_serve_drains(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """A task group that ends its children does not lose a run."""
    caplog.set_level(logging.INFO)
    subscriber, run = MemorySubscriber(), fleet.queue("gated")
    worker = made(subscriber)
    async with serving(worker) as served:
        subscriber.put(message(run))
        await until(lambda: gate.inside == 1)
        served.cancel()
        await until(lambda: "draining" in caplog.text)
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await served

    assert run.ending == messages.Release("drain")


async def test_cancelling_serve_twice_drops_everything(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever insists gets an end at once: nothing is sent, and no task is left in the loop."""
    caplog.set_level(logging.INFO)
    before = asyncio.all_tasks()
    subscriber, run = MemorySubscriber(), fleet.queue("gated")
    worker = made(subscriber)
    async with serving(worker) as served:
        subscriber.put(message(run))
        await until(lambda: gate.inside == 1)
        served.cancel()
        await until(lambda: "draining" in caplog.text)
        served.cancel()
        with pytest.raises(asyncio.CancelledError):
            await served
        await until(lambda: asyncio.all_tasks() <= before, "the end of every task")

    assert run.ending is None


async def test_stop_is_heard_from_any_thread_and_any_number_of_times(fleet: Fleet) -> None:
    """Also after everything has ended."""
    worker = made(MemorySubscriber())
    async with serving(worker) as served:
        await asyncio.gather(*(asyncio.to_thread(worker.stop) for _ in range(5)))
        await asyncio.wait_for(served, 10)
        worker.stop()

    assert worker.stopping


async def test_a_worker_stopped_before_it_serves_serves_nothing(fleet: Fleet) -> None:
    """A signal may come before the loop runs."""
    subscriber = MemorySubscriber()
    worker = made(subscriber)
    worker.stop()
    await asyncio.wait_for(worker.serve(), 10)

    assert subscriber.opened == 0


async def test_a_worker_serves_once(fleet: Fleet) -> None:
    """Serving twice at a time would give it twice its places."""
    worker = made(MemorySubscriber())
    async with serving(worker):
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="once"):
            await worker.serve()


async def test_run_says_what_to_do_in_a_running_loop(fleet: Fleet) -> None:
    """It has a loop of its own, and there can be only one in a thread."""
    with pytest.raises(RuntimeError, match=r"await worker\.serve"):
        made(MemorySubscriber()).run()


def test_run_returns_after_stop(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may run a worker in a thread of its own, where no signals are watched."""
    worker = made(PlainSubscriber())
    thread = threading.Thread(target=worker.run)
    thread.start()
    worker.stop()
    thread.join(20)

    assert not thread.is_alive()


class PlainSubscriber(MemorySubscriber):
    """Made outside an event loop."""


async def test_a_claim_that_comes_during_a_drain_goes_back(fleet: Fleet) -> None:
    """It was never started, so it is released and not left to recovery."""
    subscriber, run = MemorySubscriber(), fleet.queue()
    worker = made(subscriber)
    run.state, run.revision, run.claim_id = "running", 5, "req_x"
    claim = Claim(run._grant(), 0.0)
    async with serving(worker):
        await until(lambda: subscriber.limits)
        worker.stop()
        subscriber.put(claim)

    assert subscriber.returned == [(claim, 0)]


async def test_a_drain_waits_for_no_thread_of_the_loops_pool(fleet: Fleet) -> None:
    """Bodies that were cancelled leave threads of the loop's own pool behind: nothing of the worker needs one."""
    release = threading.Event()
    loop = asyncio.get_running_loop()
    busy = [loop.run_in_executor(None, release.wait, 60) for _ in range(64)]
    subscriber = MemorySubscriber()
    worker = made(subscriber, secret=lambda: SECRET)
    try:
        async with serving(worker) as served:
            subscriber.put(message(fleet.queue()))
            await until(lambda: subscriber.settled)
            worker.stop()
            await asyncio.wait_for(served, 20)
    finally:
        release.set()
        await asyncio.gather(*busy)
