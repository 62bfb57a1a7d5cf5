"""The strict SQS does what AWS documents, where moto does not: tests that stand on it stand on this."""

import threading
from typing import Any

import pytest

from tests.sqs_fake import SqsFake
from tests.unit.sqs_fake.calling import bodies, code, delete, hold, ordered, send, until

pytest.importorskip("boto3")
from botocore.exceptions import ClientError


def test_a_message_is_sent_held_and_deleted(fake: SqsFake) -> None:
    """The attributes come along, a held message is nobody else's, and a deleted one is gone."""
    url = fake.sqs.queue(visibility=30)
    attributes = {"webhook-id": {"DataType": "String", "StringValue": "x"}}
    [sent] = send(fake, url, "hello", MessageAttributes=attributes, MessageGroupId="tenant")
    [message] = fake.sqs.receive(url)
    assert (message["MessageId"], message["Body"]) == (sent, "hello")
    assert message["MessageAttributes"] == attributes
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert message["Attributes"]["MessageGroupId"] == "tenant"
    assert abs(int(message["Attributes"]["SentTimestamp"]) / 1000 - fake.now()) < 60
    assert fake.sqs.receive(url) == []
    delete(fake, url, message)
    assert fake.stored(url) == []


def test_a_hold_ends(fake: SqsFake) -> None:
    """After the visibility timeout a message comes again, counted, under another handle."""
    url = fake.sqs.queue(visibility=30)
    send(fake, url, "a")
    [first] = fake.sqs.receive(url)
    fake.advance(29)
    assert fake.sqs.receive(url) == []
    fake.advance(2)
    [second] = fake.sqs.receive(url)
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    assert second["ReceiptHandle"] != first["ReceiptHandle"]


def test_a_hold_is_extended_and_ended(fake: SqsFake) -> None:
    """A change of visibility counts from now, and zero gives the message back."""
    url = fake.sqs.queue(visibility=30)
    send(fake, url, "a")
    [message] = fake.sqs.receive(url)
    fake.advance(20)
    hold(fake, url, message, 30)
    fake.advance(20)
    assert fake.sqs.receive(url) == []
    hold(fake, url, message, 0)
    assert bodies(fake.sqs.receive(url)) == ["a"]


def test_an_old_handle_deletes_nothing(fake: SqsFake) -> None:
    """A standard queue accepts a delete with a handle of an earlier receive, and keeps the message."""
    url = fake.sqs.queue(visibility=30)
    send(fake, url, "a")
    [first] = fake.sqs.receive(url)
    fake.advance(31)
    [second] = fake.sqs.receive(url)
    delete(fake, url, first)
    assert len(fake.stored(url)) == 1
    delete(fake, url, second)
    assert fake.stored(url) == []
    delete(fake, url, second)


def test_an_old_handle_does_not_touch_the_new_hold(fake: SqsFake) -> None:
    """Who held a message earlier cannot extend or end the hold of who has it now."""
    url = fake.sqs.queue(visibility=30)
    send(fake, url, "a")
    [first] = fake.sqs.receive(url)
    fake.advance(31)
    fake.sqs.receive(url)
    for seconds in (0, 600):
        with pytest.raises(ClientError) as caught:
            hold(fake, url, first, seconds)
        assert code(caught) == "InvalidParameterValue"
    assert fake.sqs.receive(url) == []
    fake.advance(31)
    assert len(fake.sqs.receive(url)) == 1


def test_an_expired_handle_hides_nothing(fake: SqsFake) -> None:
    """On a standard queue a change of visibility after the hold ended succeeds and has no effect."""
    url = fake.sqs.queue(visibility=30)
    send(fake, url, "a")
    [message] = fake.sqs.receive(url)
    fake.advance(31)
    hold(fake, url, message, 600)
    assert len(fake.sqs.receive(url)) == 1


def test_a_deleted_or_made_up_handle(fake: SqsFake) -> None:
    """The visibility of a deleted message cannot be changed; a handle nobody gave is invalid."""
    url = fake.sqs.queue()
    send(fake, url, "a")
    [message] = fake.sqs.receive(url)
    delete(fake, url, message)
    with pytest.raises(ClientError) as caught:
        hold(fake, url, message, 30)
    assert code(caught) == "InvalidParameterValue"
    for refused in (hold, lambda *given: delete(*given[:3])):
        with pytest.raises(ClientError) as caught:
            refused(fake, url, {"ReceiptHandle": "made-up"}, 30)
        assert code(caught) == "ReceiptHandleIsInvalid"


def test_twelve_hours_from_the_receive(fake: SqsFake) -> None:
    """A message that waited long may still be held 12 hours in all, and asking for a second more is an error."""
    url = fake.sqs.queue(visibility=43_200)
    send(fake, url, "a")
    fake.advance(40_000)
    [message] = fake.sqs.receive(url)
    fake.advance(10_000)
    hold(fake, url, message, 33_000)
    for seconds in (33_201, 43_200, 43_201, -1):
        with pytest.raises(ClientError) as caught:
            hold(fake, url, message, seconds)
        assert code(caught) == "InvalidParameterValue"


def test_fifo_keeps_the_order_within_groups(fake: SqsFake) -> None:
    """A held message blocks its group and no other; after a hold ends the whole group comes again, in order."""
    url = fake.sqs.queue(fifo=True)
    ordered(fake, url, "a1", "a2", "b1", "a3")
    assert bodies(fake.sqs.receive(url, 1)) == ["a1"]
    assert bodies(fake.sqs.receive(url)) == ["b1"]
    assert fake.sqs.receive(url) == []
    fake.advance(31)
    again = fake.sqs.receive(url, 3)
    assert bodies(again) == ["a1", "a2", "b1"]
    delete(fake, url, again[0])
    assert fake.sqs.receive(url) == []
    delete(fake, url, again[1])
    assert bodies(fake.sqs.receive(url)) == ["a3"]


def test_fifo_given_back_comes_first(fake: SqsFake) -> None:
    """A message given back at once is the first of its group again; given back for later it blocks the group."""
    url = fake.sqs.queue(fifo=True)
    ordered(fake, url, "a1", "a2")
    [first] = fake.sqs.receive(url, 1)
    hold(fake, url, first, 0)
    [first] = fake.sqs.receive(url, 1)
    assert first["Body"] == "a1"
    hold(fake, url, first, 5)
    assert fake.sqs.receive(url) == []
    fake.advance(6)
    assert bodies(fake.sqs.receive(url)) == ["a1", "a2"]


def test_fifo_refuses_expired_handles(fake: SqsFake) -> None:
    """On a FIFO queue neither a delete nor a change of visibility works after the hold ended."""
    url = fake.sqs.queue(fifo=True)
    ordered(fake, url, "a1")
    [message] = fake.sqs.receive(url)
    fake.advance(31)
    with pytest.raises(ClientError, match="expired") as caught:
        delete(fake, url, message)
    assert code(caught) == "InvalidParameterValue"
    with pytest.raises(ClientError) as caught:
        hold(fake, url, message, 30)
    assert code(caught) == "InvalidParameterValue"
    assert len(fake.stored(url)) == 1


def test_fifo_takes_a_duplicate_once(fake: SqsFake) -> None:
    """Within five minutes a repeated deduplication id is answered as the first, later it is a message of its own."""
    url = fake.sqs.queue(fifo=True)
    given = {"QueueUrl": url, "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    first, again = (fake.sqs.client.send_message(**given) for _ in range(2))
    assert (first["MessageId"], first["SequenceNumber"]) == (again["MessageId"], again["SequenceNumber"])
    assert len(fake.stored(url)) == 1
    fake.advance(301)
    assert fake.sqs.client.send_message(**given)["MessageId"] != first["MessageId"]


def test_poison_goes_to_the_dead_letter_queue(fake: SqsFake) -> None:
    """A message received maxReceiveCount times moves, with its id, and says where it came from."""
    dead = fake.sqs.queue("dead")
    policy = f'{{"deadLetterTargetArn": "{fake.sqs.arn(dead)}", "maxReceiveCount": "2"}}'
    url = fake.sqs.queue(RedrivePolicy=policy)
    [sent] = send(fake, url, "a")
    for _ in range(2):
        assert len(fake.sqs.receive(url)) == 1
        fake.advance(31)
    assert fake.sqs.receive(url) == []
    [message] = fake.sqs.receive(dead)
    assert message["MessageId"] == sent
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == fake.sqs.arn(url)


def test_a_long_poll_wakes(fake: SqsFake) -> None:
    """A receive that waits gets a message as soon as one is sent, and one whose hold ends."""
    url = fake.sqs.queue(visibility=1_000)
    found: list[list[dict[str, Any]]] = []
    for wake in (lambda: send(fake, url, "a"), lambda: fake.advance(1_001)):
        waiting = threading.Thread(target=lambda: found.append(fake.sqs.receive(url, wait=20)))
        before = len(fake.called("ReceiveMessage"))
        waiting.start()
        until(lambda: len(fake.called("ReceiveMessage")) > before)  # noqa: B023 - called in this turn only
        wake()
        waiting.join(15)
    assert [bodies(each) for each in found] == [["a"], ["a"]]
