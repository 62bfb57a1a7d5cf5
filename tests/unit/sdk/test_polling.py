"""endpoint_sdk.subscribers.polling: no claim an answer brought, or would have brought, is forgotten."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import subscribers
from endpoint_sdk.exchange import Exchange, Times
from endpoint_sdk.subscribers.base import Claim, Setup, SubscriberFailed
from endpoint_sdk.subscribers.polling import PollSubscriber
from endpoint_sdk.wire import messages
from tests.unit.sdk.dispatcher_double import FakeClock, Fault, refusal, reply_lost, status, unreachable
from tests.unit.sdk.fleet_double import API_KEY, URL, Fleet, until


class Asking:
    """A subscriber that is open, its fleet, and a clock the test moves."""

    def __init__(self, *, namespace: str = "default", **options: Any) -> None:
        self.fleet, self.clock = Fleet(), FakeClock()
        self.subscriber = PollSubscriber(**{"wait": timedelta(seconds=20), **options})
        times = Times(self.clock.now, self.clock.sleep)
        self.setup = Setup(
            namespace,
            [messages.WantedWorkflow("order", ["1"])],
            messages.ExecutorInfo("me"),
            30_000,
            Exchange(self.fleet, URL, times),
            API_KEY,
        )

    async def open(self) -> "Asking":
        await self.subscriber.open(self.setup)
        return self

    async def receive(self, limit: int = 5) -> list[str]:
        """The ids of the runs received."""
        return _ids(await self.subscriber.receive(limit))

    async def fails(self) -> str:
        """Why receiving failed."""
        with pytest.raises(SubscriberFailed) as failed:
            await self.subscriber.receive(5)
        return str(failed.value)


def _ids(items: Sequence[Any]) -> list[str]:
    assert all(isinstance(item, Claim) for item in items)
    return [item.grant.run.id for item in items]


async def test_runs_come_claimed() -> None:
    """As many as asked for, with the age of the question, under one request id each."""
    asking = await Asking(pools=["a", "b"]).open()
    runs = [asking.fleet.queue().run_id for _ in range(3)]
    asked_at = asking.clock.now()
    first = await asking.subscriber.receive(2)
    second = await asking.receive(2)

    assert _ids(first) + second == runs
    assert first[0].sent_at == asked_at
    poll = asking.fleet.polls[0]
    assert (poll["limit"], poll["waitMs"], poll["pools"]) == (2, 20_000, ["a", "b"])
    assert poll["workflows"] == [{"name": "order", "versions": ["1"]}]
    assert poll["requestId"] != asking.fleet.polls[1]["requestId"]
    assert "pointsman-namespace" not in asking.fleet.headers[0]


async def test_a_namespace_of_its_own_is_named() -> None:
    """For keys that may act in several."""
    asking = await Asking(namespace="team").open()
    asking.fleet.queue()
    await asking.receive()

    assert asking.fleet.headers[0]["pointsman-namespace"] == "team"


@pytest.mark.parametrize("lost", [reply_lost, status(502), status(200, b"{")])
async def test_what_a_lost_answer_claimed_is_taken_over(lost: Fault) -> None:
    """I6: asked again under the same id once the dispatcher can claim nothing more for it, taking nothing new."""
    asking = await Asking().open()
    run = asking.fleet.queue()
    asking.fleet.faults["claims"].append(reply_lost)
    started = asking.clock.now()
    await asking.fails()
    assert run.state == "running"

    asking.clock.pass_(24.9)
    other = asking.fleet.queue()
    assert await asking.receive() == [other.run_id]
    asking.clock.pass_(0.2)
    (late,) = await asking.subscriber.receive(5)

    assert _ids([late]) == [run.run_id]
    assert late.sent_at == started
    first, _, again = asking.fleet.polls
    assert again["requestId"] == first["requestId"]
    assert (again["limit"], again["waitMs"]) == (0, 0)


async def test_a_poll_waits_no_longer_than_until_a_lost_answer_is_due() -> None:
    """The claims of that one are ageing."""
    asking = await Asking().open()
    asking.fleet.faults["claims"].append(reply_lost)
    asking.fleet.queue()
    await asking.fails()
    asking.clock.pass_(22)
    asking.fleet.queue()
    await asking.receive()

    assert asking.fleet.polls[-1]["waitMs"] == 3_000


async def test_nothing_is_asked_again_that_was_never_sent() -> None:
    """A refused connection claimed nothing."""
    asking = await Asking().open()
    asking.fleet.faults["claims"].append(unreachable)
    assert "no answer" in await asking.fails()
    asking.clock.pass_(60)
    run = asking.fleet.queue()

    assert await asking.receive() == [run.run_id]
    assert len(asking.fleet.polls) == 2


async def test_a_lost_answer_that_claimed_nothing_is_asked_about_once() -> None:
    """Then it is forgotten."""
    asking = await Asking().open()
    asking.fleet.faults["claims"].append(status(503))
    await asking.fails()
    asking.clock.pass_(60)
    run = asking.fleet.queue()

    assert await asking.receive() == [run.run_id]
    assert [poll["limit"] for poll in asking.fleet.polls] == [5, 0, 5]


@pytest.mark.parametrize(
    ("number", "code"),
    [(401, "unauthorized"), (403, "forbidden"), (400, "malformed"), (422, "version_unknown"), (429, "rate_limited")],
)
async def test_a_refusal_names_its_code(number: int, code: str) -> None:
    """A wrong key is said in so many words, never the key."""
    asking = await Asking().open()
    asking.fleet.faults["claims"].append(refusal(number, code))
    why = await asking.fails()

    assert code in why
    assert API_KEY not in why


async def test_more_than_there_is_room_for_is_released() -> None:
    """Claims taken over late may be more than the places left now."""
    asking = await Asking().open()
    runs = [asking.fleet.queue() for _ in range(3)]
    asking.fleet.faults["claims"].append(reply_lost)
    await asking.fails()
    asking.clock.pass_(26)
    kept = await asking.receive(1)
    await until(lambda: all(run.ending is not None for run in runs[1:]))

    assert kept == [runs[0].run_id]
    assert runs[0].ending is None
    assert runs[1].ending == messages.Release("drain", 0)


async def test_a_claim_that_goes_back_is_released() -> None:
    """With the delay asked for."""
    asking = await Asking().open()
    run = asking.fleet.queue()
    (claim,) = await asking.subscriber.receive(1)
    await asking.subscriber.back(claim, 1.5)

    assert run.ending == messages.Release("drain", 1_500)
    assert asking.subscriber.held_for(claim) is None


async def test_a_release_without_an_answer_is_left_to_recovery() -> None:
    """It is tried for a while and never raises."""
    asking = await Asking().open()
    run = asking.fleet.queue()
    (claim,) = await asking.subscriber.receive(1)
    run.faults["progress"].extend([unreachable] * 1_000)
    await asking.subscriber.back(claim)

    assert run.ending is None


async def test_what_a_withdrawn_poll_claimed_is_released() -> None:
    """Cancelled while the answer was under way: nobody has to wait for recovery."""
    asking = await Asking().open()
    run = asking.fleet.queue(silently=True)
    receiving = asyncio.create_task(asking.receive())
    await until(lambda: asking.fleet.waiting)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    request_id = asking.fleet.asked["requestId"]
    run.state, run.revision, run.claim_id = "running", 5, f"{request_id}_{run.run_id}"
    asking.fleet.held[request_id] = [run.run_id]
    await asking.subscriber.close(10)

    assert run.ending == messages.Release("drain", 0)


async def test_what_a_lost_answer_claimed_is_released_on_closing() -> None:
    """A worker that ends does not stay to take it over."""
    asking = await Asking().open()
    run = asking.fleet.queue()
    asking.fleet.faults["claims"].append(reply_lost)
    await asking.fails()
    await asking.subscriber.close(10)

    assert run.ending == messages.Release("drain", 0)


async def test_closing_takes_no_longer_than_it_may() -> None:
    """A dispatcher that is away does not hold a worker up."""
    asking = await Asking().open()
    receiving = asyncio.create_task(asking.receive())
    await until(lambda: asking.fleet.waiting)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    await asyncio.wait_for(asking.subscriber.close(0), 10)
    await asyncio.sleep(0)

    assert len(asyncio.all_tasks()) == 1


async def test_it_needs_a_dispatcher() -> None:
    """A worker checks that before; a program that opens it by itself is told."""
    asking = Asking()
    asking.setup = Setup("default", [], messages.ExecutorInfo("me"), 1)
    with pytest.raises(SubscriberFailed, match="API key"):
        await asking.open()


def test_the_functions_stay_functions() -> None:
    """Loading a subscriber's module hides none of them."""
    first = subscribers.poll()

    assert isinstance(first, PollSubscriber)
    assert isinstance(subscribers.poll(pools=["a"]), PollSubscriber)
    assert first.pools == ("default",)
