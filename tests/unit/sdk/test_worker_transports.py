"""endpoint_sdk.worker: polling, and a broker that fails and comes back."""

import asyncio
import logging

import pytest

from endpoint_sdk import Worker
from endpoint_sdk.wire import messages
from tests.unit.sdk.dispatcher_double import unreachable
from tests.unit.sdk.fleet_double import API_KEY, FAILED, URL, Fleet, MemorySubscriber, message, serving, until
from tests.unit.sdk.gated_worker import gate, gated, made, order


# --- transports that fail --------------------------------------------------------------------------------------------
async def test_a_broker_that_fails_is_stood_in_for_by_polling_and_taken_back(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Runs come by poll while the broker is away, and from it when it works again; each change is logged once."""
    caplog.set_level(logging.INFO)
    subscriber = MemorySubscriber(pools=["a", "b"])
    async with serving(made(subscriber, api_key=API_KEY)):
        await until(lambda: subscriber.limits)
        subscriber.fail(FAILED)
        polled = fleet.queue()
        await until(lambda: polled.ending is not None, "the run by poll")
        await until(lambda: subscriber.opened > 5)
        subscriber.fail(None)
        subscriber.put(*(message(fleet.queue(silently=True)) for _ in range(3)))
        await until(lambda: len(subscriber.settled) == 3)
        await until(lambda: "works again" in caplog.text)
        asked = len([poll for poll in fleet.polls if poll["limit"]])

    assert fleet.polls[-1]["pools"] == ["a", "b"]
    assert asked >= 1
    assert caplog.text.count("is polled until it works again") == 1
    assert caplog.text.count("MemorySubscriber works again") == 1
    assert caplog.text.count("cannot receive and tries again: the broker is away") == 1


async def test_one_failure_alone_changes_nothing(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """A hiccup is tried again, without polling."""
    subscriber = MemorySubscriber()
    async with serving(made(subscriber, api_key=API_KEY)):
        await until(lambda: subscriber.limits)
        subscriber.fail(FAILED)
        subscriber.failing = None
        run = fleet.queue(silently=True)
        subscriber.put(message(run))
        await until(lambda: subscriber.settled)

    assert [poll for poll in fleet.polls if poll["limit"]] == []
    assert "is polled" not in caplog.text


async def test_both_ways_of_receiving_share_the_places(fleet: Fleet) -> None:
    """While the broker is probed and the dispatcher polled, no more runs are held than there are places."""
    subscriber = MemorySubscriber()
    async with serving(made(subscriber, api_key=API_KEY, max_concurrent_runs=3)):
        subscriber.fail(FAILED)
        for _ in range(4):
            fleet.queue("gated")
        await until(lambda: gate.inside == 3)
        subscriber.fail(None)
        subscriber.put(*(message(fleet.queue("gated", silently=True)) for _ in range(4)))
        await asyncio.sleep(0.1)
        assert gate.most == 3
        gate.open.set()
        await until(lambda: len(subscriber.settled) == 4)

    assert gate.most == 3


async def test_without_an_api_key_a_failing_broker_is_tried_again(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing else can be asked, and that is said once."""
    subscriber = MemorySubscriber()
    async with serving(made(subscriber)):
        subscriber.fail(FAILED)
        await until(lambda: subscriber.opened > 10)
        subscriber.fail(None)
        subscriber.put(message(fleet.queue()))
        await until(lambda: subscriber.settled)

    assert fleet.polls == []
    assert caplog.text.count("nobody else can be asked") == 1


async def test_a_subscriber_may_raise_anything(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """A fault in a subscriber of the user's own is logged and does not end the worker."""
    subscriber = MemorySubscriber()
    async with serving(made(subscriber)):
        subscriber.fail(ZeroDivisionError("user code"))
        await until(lambda: subscriber.opened > 3)
        subscriber.fail(None)
        subscriber.put(message(fleet.queue()))
        await until(lambda: subscriber.settled)

    assert "ZeroDivisionError" in caplog.text


# --- polling ---------------------------------------------------------------------------------------------------------
async def test_a_worker_polls_by_default(fleet: Fleet) -> None:
    """Without a broker runs come claimed from the dispatcher, as many as there are places."""
    worker = Worker([order, gated], url=URL, api_key=API_KEY, max_concurrent_runs=2)
    async with serving(worker):
        runs = [fleet.queue("gated") for _ in range(3)]
        await until(lambda: gate.inside == 2)
        gate.open.set()
        await until(lambda: all(run.ending is not None for run in runs))

    assert gate.most == 2
    assert all(isinstance(run.ending, messages.Complete) for run in runs)
    assert runs[0].sent("claim") == []


async def test_a_dispatcher_that_is_away_is_polled_again(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """Said once, and once more when it answers."""
    caplog.set_level(logging.INFO)
    fleet.faults["claims"].extend([unreachable] * 8)
    async with serving(Worker([order], url=URL, api_key=API_KEY)):
        run = fleet.queue()
        await until(lambda: run.ending is not None)

    assert caplog.text.count("cannot receive and tries again") == 1
    assert caplog.text.count("PollSubscriber receives again") == 1
    assert "nobody else" not in caplog.text
