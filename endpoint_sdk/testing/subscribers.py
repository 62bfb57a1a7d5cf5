"""What every subscriber must do, as a pytest class: run it on one of your own.

    from endpoint_sdk.testing.subscribers import SubscriberSuite

    class TestMine(SubscriberSuite):
        hold = 2.0                                   # what the subscribers below are given; None without a hold

        @pytest.fixture
        def new_subscriber(self, broker):            # returns a function: a fresh subscriber, each on the same queue
            return lambda: MySubscriber(broker.url, hold=2.0)

        @pytest.fixture
        def send(self, broker):                      # puts one message on that queue; may be `async def`
            return broker.send

        @pytest.fixture
        def outage(self, broker):                    # optional: a function whose context is a broker that is down
            return broker.outage

The tests are plain functions that run an event loop of their own, and need no plugin. They wait in real time: give the
subscribers a hold and a wait of one or two seconds.
"""

import asyncio
import time

import pytest

from endpoint_sdk.subscribers.base import Message, Setup, Subscriber, SubscriberFailed
from endpoint_sdk.testing.subscriber_rig import Item, NewSubscriber, Outage, Send, SubscriberRig, message, put

__all__ = ["Item", "NewSubscriber", "Outage", "Send", "SubscriberSuite"]


class SubscriberSuite(SubscriberRig):
    """Override `new_subscriber` and `send`; `outage`, `worker_setup` and the attributes where they differ.

    *patience* is how many seconds anything may take, *hold* after how many seconds the transport hands out again what
    nobody keeps (None if it never does), *wait* the longest a `receive` takes when there is nothing.
    """

    # --- receiving ---------------------------------------------------------------------------------------------------
    def test_brings_what_was_sent(self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup) -> None:
        """Body and headers arrive byte for byte: they are what was signed."""

        async def scenario() -> None:
            async with self.opened(new_subscriber(), worker_setup) as subscriber:
                headers, body = message()
                await put(send, headers, body)
                [item] = await self.take(subscriber, 1)
                await subscriber.done(item)

                assert self.payload(item) == body
                assert self.identity(item) == headers["webhook-id"]
                if isinstance(item, Message):
                    assert {name.lower(): value for name, value in item.headers.items()} == headers
                    assert item.sent_at is None or abs(item.sent_at - time.time()) < 300

        self.run(scenario())

    def test_brings_no_more_than_the_limit(
        self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup
    ) -> None:
        """A receive brings at least one message and at most as many as were asked for; in the end all of them."""

        async def scenario() -> None:
            async with self.opened(new_subscriber(), worker_setup) as subscriber:
                sent = [await self.put_one(send) for _ in range(5)]
                found: list[Item] = []
                while len(found) < len(sent):
                    items = await self.receive(subscriber, 2)
                    assert len(items) <= 2
                    found += items
                    for item in items:
                        await subscriber.done(item)

                assert sorted(map(self.identity, found)) == sorted(sent)

        self.run(scenario())

    def test_an_empty_wait_ends(self, new_subscriber: NewSubscriber, worker_setup: Setup) -> None:
        """Where there is nothing, a receive brings nothing when the transport's wait is over."""

        async def scenario() -> None:
            async with self.opened(new_subscriber(), worker_setup) as subscriber:
                assert list(await self.receive(subscriber, 3)) == []

        self.run(scenario())

    def test_a_copy_is_a_message_like_any_other(
        self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup
    ) -> None:
        """The same message sent twice comes once or twice, and after `done` no more."""

        async def scenario() -> None:
            async with self.opened(new_subscriber(), worker_setup) as subscriber:
                headers, body = message()
                await put(send, headers, body)
                await put(send, headers, body)
                [first] = await self.take(subscriber, 1)
                await subscriber.done(first)
                for item in await self.left(subscriber, holds=0):
                    assert self.identity(item) == headers["webhook-id"]

                assert await self.left(subscriber) == []

        self.run(scenario())

    # --- done and back -----------------------------------------------------------------------------------------------
    def test_done_does_not_come_again(self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup) -> None:
        """What is done comes to nobody, not even when the transport's hold would have ended."""

        async def scenario() -> None:
            async with self.two(new_subscriber, worker_setup) as (one, other):
                await self.put_one(send)
                [item] = await self.take(one, 1)
                await one.done(item)

                assert await self.left(other) == []

        self.run(scenario())

    def test_back_comes_again(self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup) -> None:
        """What goes back comes again, unchanged, and to whoever receives."""

        async def scenario() -> None:
            async with self.two(new_subscriber, worker_setup) as (one, other):
                await self.put_one(send)
                [item] = await self.take(one, 1)
                await one.back(item)
                [again] = await self.take(other, 1)
                await other.done(again)

                assert self.same(item, again)

        self.run(scenario())

    def test_back_comes_after_its_delay(self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup) -> None:
        """What goes back with a delay comes again when that has passed, and not much sooner."""

        async def scenario() -> None:
            async with self.two(new_subscriber, worker_setup) as (one, other):
                await self.put_one(send)
                [item] = await self.take(one, 1)
                given_back = time.monotonic()
                await one.back(item, 2.0)
                [again] = await self.take(other, 1)
                waited = time.monotonic() - given_back
                await other.done(again)

                assert self.same(item, again)
                # Transports that count in whole seconds may count the one that has begun.
                assert waited > 0.9

        self.run(scenario())

    def test_nobody_gets_what_is_held(self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup) -> None:
        """Between `receive` and `done` nobody else gets a message, for longer than the transport's own hold."""

        async def scenario() -> None:
            async with self.two(new_subscriber, worker_setup) as (one, other):
                await self.put_one(send)
                [item] = await self.take(one, 1)

                assert await self.left(other, holds=2) == []
                held_for = one.held_for(item)
                assert (held_for is None) if self.hold is None else (held_for is not None and held_for < self.hold)
                await one.done(item)

        self.run(scenario())

    def test_a_blocked_loop_loses_no_hold(self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup) -> None:
        """User code that blocks the event loop for longer than the hold does not make the transport hand it out."""
        if self.hold is None:
            pytest.skip("the transport has no hold")
        hold = self.hold

        async def scenario() -> None:
            async with self.two(new_subscriber, worker_setup) as (one, other):
                await self.put_one(send)
                [item] = await self.take(one, 1)
                block(hold * 2)

                assert await self.left(other, holds=0) == []
                await one.done(item)

        self.run(scenario())

    # --- ending ------------------------------------------------------------------------------------------------------
    def test_a_cancelled_receive_loses_nothing(
        self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup
    ) -> None:
        """A receive may be cancelled at any moment: what it was about to bring comes to the next."""

        async def scenario() -> None:
            async with self.opened(new_subscriber(), worker_setup) as subscriber:
                sent = []
                for moment in (0.0, 0.001, 0.01, 0.05):
                    receiving = asyncio.create_task(subscriber.receive(10))
                    await asyncio.sleep(moment)
                    sent.append(await self.put_one(send))
                    await asyncio.sleep(moment)
                    receiving.cancel()
                    [outcome] = await asyncio.gather(receiving, return_exceptions=True)
                    if isinstance(outcome, Exception):
                        raise outcome
                    if not isinstance(outcome, BaseException):
                        for item in outcome:
                            await subscriber.back(item)
                found = await self.take(subscriber, len(sent))
                for item in found:
                    await subscriber.done(item)

                assert {self.identity(item) for item in found} == set(sent)

        self.run(scenario())

    def test_close_ends_a_wait(self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup) -> None:
        """`close` returns within its timeout while a receive waits, and what comes later is for others."""

        async def scenario() -> None:
            one = new_subscriber()
            await one.open(worker_setup)
            receiving = asyncio.create_task(one.receive(1))
            await asyncio.sleep(0)
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            closing = time.monotonic()
            await one.close(0.5)
            assert time.monotonic() - closing < 0.5 + self.patience / 2
            sent = await self.put_one(send)
            async with self.opened(new_subscriber(), worker_setup) as other:
                [item] = await self.take(other, 1)
                await other.done(item)

                assert self.identity(item) == sent

        self.run(scenario())

    def test_close_can_be_repeated(self, new_subscriber: NewSubscriber, worker_setup: Setup) -> None:
        """Closing what was never opened, or closed already, changes nothing; and it can be opened again."""

        async def scenario() -> None:
            subscriber = new_subscriber()
            await subscriber.close(1)
            await subscriber.open(worker_setup)
            await subscriber.close(self.patience)
            await subscriber.close(1)
            async with self.opened(subscriber, worker_setup):
                assert list(await self.receive(subscriber, 1)) == []

        self.run(scenario())

    def test_several_run_side_by_side(self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup) -> None:
        """Every message comes to some subscriber, with several of them receiving at the same time."""

        async def scenario() -> None:
            async with self.two(new_subscriber, worker_setup) as (one, other):
                sent = {await self.put_one(send) for _ in range(10)}
                found: set[str] = set()

                async def receive(subscriber: Subscriber) -> None:
                    while found < sent:
                        for item in await subscriber.receive(3):
                            found.add(self.identity(item))
                            await subscriber.done(item)

                await asyncio.wait_for(asyncio.gather(receive(one), receive(other)), self.patience + 2 * self.wait)

                assert found == sent

        self.run(scenario())

    # --- outages -----------------------------------------------------------------------------------------------------
    def test_open_says_that_the_transport_is_down(
        self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup, outage: Outage
    ) -> None:
        """Opening fails with SubscriberFailed and a sentence while the transport is down, and works afterwards."""

        async def scenario() -> None:
            subscriber = new_subscriber()
            with outage():
                with pytest.raises(SubscriberFailed) as failed:
                    await asyncio.wait_for(subscriber.open(worker_setup), self.patience)
                assert str(failed.value)
            async with self.opened(subscriber, worker_setup):
                await self.put_one(send)
                [item] = await self.take(subscriber, 1)
                await subscriber.done(item)

        self.run(scenario())

    def test_receive_says_that_the_transport_is_down(
        self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup, outage: Outage
    ) -> None:
        """An open subscriber's receive fails with SubscriberFailed; opened once more it receives again."""

        async def scenario() -> None:
            async with self.opened(new_subscriber(), worker_setup) as subscriber:
                with outage(), pytest.raises(SubscriberFailed):
                    await asyncio.wait_for(subscriber.receive(1), self.patience)
                await subscriber.open(worker_setup)
                await self.put_one(send)
                [item] = await self.take(subscriber, 1)
                await subscriber.done(item)

        self.run(scenario())

    def test_done_and_back_raise_nothing(
        self, new_subscriber: NewSubscriber, send: Send, worker_setup: Setup, outage: Outage
    ) -> None:
        """With the transport down, saying what became of a message fails in silence and does not hang."""

        async def scenario() -> None:
            async with self.opened(new_subscriber(), worker_setup) as subscriber:
                for _ in range(3):
                    await self.put_one(send)
                one, two, three = await self.take(subscriber, 3)
                with outage():
                    await asyncio.wait_for(subscriber.done(one), self.patience)
                    await asyncio.wait_for(subscriber.back(two), self.patience)
                    await asyncio.wait_for(subscriber.back(three, 1.0), self.patience)
                    closing = time.monotonic()
                    await subscriber.close(1)
                    assert time.monotonic() - closing < 1 + self.patience / 2

        self.run(scenario())


def block(seconds: float) -> None:
    """Blocks the event loop, as user code may."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        time.sleep(left)
