"""What goes wrong in the strict SQS happens as often as it was asked for."""

import pytest

from tests.brokers import sqs_client
from tests.sqs_fake import SqsFake
from tests.unit.sqs_fake.calling import bodies, code, send

pytest.importorskip("boto3")
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError


def test_refusals(fake: SqsFake) -> None:
    """A call that shall fail is not performed, as often as asked for."""
    url = fake.sqs.queue()
    fake.faults.fail("SendMessage", "AccessDenied", 403, times=2)
    for _ in range(2):
        with pytest.raises(ClientError) as caught:
            send(fake, url, "a")
        assert code(caught) == "AccessDenied"
    assert fake.stored(url) == []
    send(fake, url, "a")


def test_failed_entries(fake: SqsFake) -> None:
    """Entries that shall fail are in Failed[] and not stored."""
    url = fake.sqs.queue()
    fake.faults.fail_entries("SendMessageBatch", times=2)
    entries = [{"Id": str(n), "MessageBody": "x"} for n in range(3)]
    answer = fake.sqs.client.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in answer["Failed"]] == ["0", "1"]
    assert len(fake.stored(url)) == 1


def test_lost_replies(fake: SqsFake) -> None:
    """The call is performed, and its caller sees a closed connection."""
    url = fake.sqs.queue()
    fake.faults.lose_reply("SendMessage")
    with pytest.raises(ConnectionClosedError):
        send(fake, url, "a")
    assert len(fake.stored(url)) == 1


def test_hanging_replies(fake: SqsFake) -> None:
    """The call is performed, and its caller hears nothing."""
    url = fake.sqs.queue()
    fake.faults.hang("SendMessage")
    client = sqs_client(fake.endpoint_url, read_timeout=0.2)
    with pytest.raises(ReadTimeoutError):
        client.send_message(QueueUrl=url, MessageBody="a")
    client.close()
    fake.release()
    assert len(fake.stored(url)) == 1


def test_lost_doubled_and_reordered_messages(fake: SqsFake) -> None:
    """What a standard queue may do happens when asked for."""
    url = fake.sqs.queue()
    fake.faults.lose(1)
    send(fake, url, "lost", "a")
    fake.faults.duplicate(1)
    send(fake, url, "b", "c")
    assert bodies(fake.sqs.receive(url)) == ["a", "b", "b", "c"]
    fake.advance(31)
    fake.faults.reorder = True
    assert bodies(fake.sqs.receive(url)) == ["c", "b", "b", "a"]


def test_down_and_up() -> None:
    """While the fake is down nobody listens; afterwards the messages are still there."""
    with SqsFake() as fake:
        url = fake.sqs.queue()
        send(fake, url, "a")
        fake.down()
        with pytest.raises((EndpointConnectionError, ConnectionClosedError)):
            fake.sqs.receive(url)
        with pytest.raises(EndpointConnectionError):
            fake.sqs.receive(url)
        fake.up()
        assert bodies(fake.sqs.receive(url)) == ["a"]
