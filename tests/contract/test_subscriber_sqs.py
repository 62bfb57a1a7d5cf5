"""The SQS subscriber beyond what every subscriber does: holds, handles, FIFO order, and ending in time."""

import asyncio
import time

import pytest

from endpoint_sdk.subscribers.base import Claim, Message
from endpoint_sdk.wire import signature
from tests.contract.sqs_subscribing import DEADLINE, SECRET, SETUP, beats, calls, ids, opened, send, subscriber, until
from tests.sqs_fake import SqsFake


@pytest.fixture
def url(sqs_fake: SqsFake) -> str:
    return sqs_fake.sqs.queue()


# --- receiving -------------------------------------------------------------------------------------------------------
async def test_age_is_judged_when_the_message_was_sent(sqs_fake: SqsFake, url: str) -> None:
    """C06: consumed 20 minutes after sending, it says when SQS took it in, at which its signature is in time."""
    sent_at = sqs_fake.now()
    send(sqs_fake, url)
    sqs_fake.advance(1200)
    async with opened(url) as one:
        [item] = await one.receive(1)
        await one.done(item)

    assert isinstance(item, Message)
    assert item.sent_at == pytest.approx(sent_at, abs=5)
    signature.verify([SECRET], item.headers, item.body, item.sent_at or 0)
    with pytest.raises(signature.SignatureError, match="too_old"):
        signature.verify([SECRET], item.headers, item.body, sqs_fake.now())


async def test_receives_are_counted(sqs_fake: SqsFake, url: str) -> None:
    """A message says how often it was handed out, so that what keeps failing can wait longer."""
    send(sqs_fake, url)
    async with opened(url) as one:
        for expected in (1, 2):
            [item] = await one.receive(1)
            assert isinstance(item, Message)
            assert item.receives == expected
            await one.back(item)


@pytest.mark.parametrize(("limit", "asked"), [(3, 3), (50, 10)])
async def test_asks_for_what_there_is_room_for(sqs_fake: SqsFake, url: str, limit: int, asked: int) -> None:
    """Never more is received than the worker has places for, nor than SQS hands out at once."""
    for number in range(12):
        send(sqs_fake, url, number)
    async with opened(url) as one:
        found = await one.receive(limit)
        for item in found:
            await one.back(item)

    assert len(found) == asked
    assert calls(sqs_fake, "ReceiveMessage")[0]["MaxNumberOfMessages"] == asked


async def test_a_message_without_headers_is_handed_over(sqs_fake: SqsFake, url: str) -> None:
    """What is in a message is the worker's to judge: somebody else's message does not stop the receiving."""
    sqs_fake.sqs.client.send_message(QueueUrl=url, MessageBody="hello")
    async with opened(url) as one:
        [item] = await one.receive(1)
        await one.done(item)

    assert isinstance(item, Message)
    assert (dict(item.headers), item.body) == ({}, b"hello")


# --- holds -----------------------------------------------------------------------------------------------------------
async def test_ten_stay_held_while_the_loop_is_blocked(sqs_fake: SqsFake, url: str) -> None:
    """C50: ten are received, one keeps the event loop for many visibility timeouts: nobody else gets any."""
    sent = [send(sqs_fake, url, number) for number in range(10)]
    async with opened(url, hold=2) as one:
        found: list[Message | Claim] = []
        while len(found) < 10:
            found += await one.receive(10 - len(found))
        ends = time.monotonic() + DEADLINE
        while beats(sqs_fake) < 60:
            assert time.monotonic() < ends
            time.sleep(0.01)  # noqa: ASYNC251 - blocking the loop is the point

        assert [message.receives for message in sqs_fake.stored(url)] == [1] * 10
        assert sqs_fake.sqs.receive(url) == []
        assert sorted(ids(found)) == sorted(sent)
        for item in found:
            await one.done(item)
    assert sqs_fake.stored(url) == []


async def test_a_hold_outlives_failing_calls(sqs_fake: SqsFake, url: str) -> None:
    """A refused call and entries that failed inside an answer of 200 are tried again before the hold ends."""
    send(sqs_fake, url)
    async with opened(url, hold=3) as one:
        [item] = await one.receive(1)
        sqs_fake.faults.fail("ChangeMessageVisibilityBatch", "ThrottlingException", 400)
        sqs_fake.faults.fail_entries("ChangeMessageVisibilityBatch", "InternalError")
        await until(lambda: beats(sqs_fake) >= 5)

        assert [message.receives for message in sqs_fake.stored(url)] == [1]
        assert sqs_fake.sqs.receive(url) == []
        held_for = one.held_for(item)
        assert held_for is not None
        assert held_for < 3
        await one.done(item)


async def test_held_for_grows_while_the_heartbeat_fails(sqs_fake: SqsFake, url: str) -> None:
    """A hold that cannot be confirmed shows its age; receiving and giving back go on as they can."""
    send(sqs_fake, url)
    async with opened(url, hold=1) as one:
        [item] = await one.receive(1)
        sqs_fake.faults.fail("ChangeMessageVisibilityBatch", "InternalError", 500, times=10_000)
        await until(lambda: (one.held_for(item) or 0) > 1.5)
        sqs_fake.faults.clear()
        await until(lambda: (one.held_for(item) or 0) < 1.5)
        await one.done(item)


async def test_a_lost_hold_is_only_a_duplicate(sqs_fake: SqsFake, url: str) -> None:
    """Somebody else has the message by now: saying it is done raises nothing and takes nothing from them."""
    send(sqs_fake, url)
    async with opened(url, hold=30) as one:
        [item] = await one.receive(1)
        sqs_fake.advance(31)
        [copy] = sqs_fake.sqs.receive(url)
        await one.done(item)

        assert [message.handle for message in sqs_fake.stored(url)] == [copy["ReceiptHandle"]]


@pytest.mark.parametrize("entries", [1, 2])
async def test_a_delete_that_failed_is_tried_again(sqs_fake: SqsFake, url: str, entries: int) -> None:
    """An entry that failed inside an answer of 200 is sent again."""
    send(sqs_fake, url)
    sqs_fake.faults.fail_entries("DeleteMessageBatch", "InternalError", times=entries)
    async with opened(url) as one:
        [item] = await one.receive(1)
        await one.done(item)

        assert sqs_fake.stored(url) == []


async def test_a_lost_reply_to_a_delete_is_harmless(sqs_fake: SqsFake, url: str) -> None:
    """The call is made again, of a message that is gone."""
    send(sqs_fake, url)
    sqs_fake.faults.lose_reply("DeleteMessageBatch")
    async with opened(url) as one:
        [item] = await one.receive(1)
        await one.done(item)

    assert sqs_fake.stored(url) == []


async def test_deletes_go_together(sqs_fake: SqsFake, url: str) -> None:
    """What is done at the same time costs a call for ten, not one for each."""
    for number in range(10):
        send(sqs_fake, url, number)
    async with opened(url) as one:
        found = await one.receive(10)
        await asyncio.gather(*(one.done(item) for item in found))

    assert sqs_fake.stored(url) == []
    assert len(calls(sqs_fake, "DeleteMessageBatch")) <= 3


async def test_back_hides_for_its_delay(sqs_fake: SqsFake, url: str) -> None:
    """C54: each message has a delay of its own, and none is asked for beyond what SQS allows."""
    for number in range(3):
        send(sqs_fake, url, number)
    async with opened(url) as one:
        found = await one.receive(3)
        for item, delay in zip(found, (0, 4.2, 10**6), strict=True):
            await one.back(item, delay)

    asked = [
        entry["VisibilityTimeout"]
        for request in calls(sqs_fake, "ChangeMessageVisibilityBatch")
        for entry in request["Entries"]
    ]
    assert asked[:2] == [0, 5]
    assert 43_000 < asked[2] < 43_200


# --- FIFO ------------------------------------------------------------------------------------------------------------
async def test_fifo_gives_one_of_a_group_at_a_time(sqs_fake: SqsFake) -> None:
    """What was sent later in a group comes when the earlier is done, also after it went back; others go on."""
    url = sqs_fake.sqs.queue(fifo=True)
    first, second = send(sqs_fake, url, 1, group="a"), send(sqs_fake, url, 2, group="a")
    other = send(sqs_fake, url, 3, group="b")
    async with opened(url) as one:
        [a1] = await one.receive(10)
        [b1] = await one.receive(10)
        assert ids([a1, b1]) == [first, other]
        assert await one.receive(10) == []
        await one.back(a1)
        [again] = await one.receive(10)
        await one.done(again)
        [a2] = await one.receive(10)
        assert ids([again, a2]) == [first, second]
        await one.done(a2)
        await one.done(b1)

    assert sqs_fake.stored(url) == []


async def test_fifo_delete_with_an_expired_handle_raises_nothing(sqs_fake: SqsFake) -> None:
    """A FIFO queue refuses handles whose hold ended; that is a duplicate like any other."""
    url = sqs_fake.sqs.queue(fifo=True)
    send(sqs_fake, url, group="a")
    async with opened(url) as one:
        [item] = await one.receive(1)
        sqs_fake.advance(31)
        await one.done(item)
        [copy] = await one.receive(1)
        await one.done(copy)

    assert sqs_fake.stored(url) == []


# --- ending ----------------------------------------------------------------------------------------------------------
async def test_what_a_cut_off_poll_brings_goes_back_at_once(sqs_fake: SqsFake, url: str) -> None:
    """A long poll cannot be cut off: the message it gets later is visible again, not hidden for the window."""
    async with opened(url, hold=3600, wait=20) as one:
        receiving = asyncio.create_task(one.receive(1))
        await until(lambda: calls(sqs_fake, "ReceiveMessage"))
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        closing = time.monotonic()
        await one.close(0.2)
        assert time.monotonic() - closing < 15

        send(sqs_fake, url)
        await until(lambda: sqs_fake.stored(url)[0].receives == 1)
        await until(lambda: not sqs_fake.stored(url)[0].held(sqs_fake.now()))


async def test_close_ends_while_the_broker_hangs(sqs_fake: SqsFake, url: str) -> None:
    """Nothing hangs longer than it may, even if SQS takes calls and answers none."""
    send(sqs_fake, url, 1)
    send(sqs_fake, url, 2)
    one = subscriber(url, hold=30)
    await one.open(SETUP)
    [item] = await one.receive(1)
    sqs_fake.faults.hang(times=100)
    receiving = asyncio.create_task(one.receive(1))
    await until(lambda: len(calls(sqs_fake, "ReceiveMessage")) == 2)
    started = time.monotonic()
    await one.done(item)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    await one.close(0.5)

    assert time.monotonic() - started < 20
    sqs_fake.release()


async def test_what_is_still_held_at_close_is_visible_again(sqs_fake: SqsFake, url: str) -> None:
    """Nothing is held any more after `close`."""
    send(sqs_fake, url)
    one = subscriber(url, hold=3600)
    await one.open(SETUP)
    await one.receive(1)
    await one.close(DEADLINE)

    assert len(sqs_fake.sqs.receive(url)) == 1
