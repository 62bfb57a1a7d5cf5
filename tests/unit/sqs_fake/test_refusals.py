"""What the strict SQS does not take, and the codes it says so with."""

from typing import Any

import pytest

from tests.sqs_fake import SqsFake
from tests.unit.sqs_fake.calling import code, send

pytest.importorskip("boto3")
from botocore.exceptions import ClientError


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"MessageBody": ""}, "MissingParameter"),
        ({"MessageBody": "a\x00b"}, "InvalidMessageContents"),
        ({"MessageBody": "\ufffe"}, "InvalidMessageContents"),
        ({"MessageBody": "x" * 1025}, "InvalidParameterValue"),
        ({"DelaySeconds": 901}, "InvalidParameterValue"),
        ({"MessageGroupId": "ä"}, "InvalidParameterValue"),
        ({"MessageGroupId": "x" * 129}, "InvalidParameterValue"),
        ({"MessageDeduplicationId": "d"}, "InvalidParameterValue"),
        ({"MessageAttributes": {"AWS.x": {"DataType": "String", "StringValue": "x"}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"x": {"DataType": "Text", "StringValue": "x"}}}, "InvalidParameterValue"),
        ({"MessageAttributes": {"x": {"DataType": "String", "StringValue": ""}}}, "InvalidParameterValue"),
        (
            {"MessageAttributes": {f"x{n}": {"DataType": "String", "StringValue": "x"} for n in range(11)}},
            "InvalidParameterValue",
        ),
    ],
)
def test_what_is_not_taken(fake: SqsFake, options: dict[str, Any], expected: str) -> None:
    """A message SQS refuses is refused, and not stored."""
    url = fake.sqs.queue(MaximumMessageSize="1024")
    with pytest.raises(ClientError) as caught:
        fake.sqs.client.send_message(**{"QueueUrl": url, "MessageBody": "x", **options})
    assert code(caught) == expected
    assert fake.stored(url) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "MissingParameter"),
        ({"MessageGroupId": "g"}, "InvalidParameterValue"),
        ({"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 1}, "InvalidParameterValue"),
    ],
)
def test_what_a_fifo_queue_does_not_take(fake: SqsFake, options: dict[str, Any], expected: str) -> None:
    """A FIFO queue wants a group and a deduplication id, and no delay."""
    with pytest.raises(ClientError) as caught:
        fake.sqs.client.send_message(QueueUrl=fake.sqs.queue(fifo=True), MessageBody="x", **options)
    assert code(caught) == expected


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([{"Id": str(n), "MessageBody": "x"} for n in range(11)], "TooManyEntriesInBatchRequest"),
        ([{"Id": "a", "MessageBody": "x"}] * 2, "BatchEntryIdsNotDistinct"),
        ([{"Id": "a b", "MessageBody": "x"}], "InvalidBatchEntryId"),
        ([], "EmptyBatchRequest"),
        ([{"Id": str(n), "MessageBody": "x" * 400_000} for n in range(3)], "BatchRequestTooLong"),
    ],
)
def test_batches_that_are_not_taken(fake: SqsFake, entries: list[dict[str, str]], expected: str) -> None:
    """A batch has 1 to 10 entries with ids of their own, and 1 MiB."""
    url = fake.sqs.queue()
    with pytest.raises(ClientError) as caught:
        fake.sqs.client.send_message_batch(QueueUrl=url, Entries=entries)
    assert code(caught) == f"AWS.SimpleQueueService.{expected}"
    assert fake.stored(url) == []


def test_a_batch_fails_in_parts(fake: SqsFake) -> None:
    """An entry that is refused is in Failed[], the others are stored."""
    url = fake.sqs.queue()
    entries = [{"Id": "good", "MessageBody": "x"}, {"Id": "bad", "MessageBody": "\x00"}]
    answer = fake.sqs.client.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]
    assert [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]] == [
        ("bad", "InvalidMessageContents", True)
    ]
    assert len(fake.stored(url)) == 1


@pytest.mark.parametrize(
    "options", [{"MaxNumberOfMessages": 11}, {"WaitTimeSeconds": 21}, {"VisibilityTimeout": 43_201}]
)
def test_receives_out_of_range(fake: SqsFake, options: dict[str, int]) -> None:
    """Numbers out of their range are errors, not clamped."""
    with pytest.raises(ClientError) as caught:
        fake.sqs.client.receive_message(QueueUrl=fake.sqs.queue(), **options)
    assert code(caught) == "InvalidParameterValue"


def test_a_queue_that_is_not_there(fake: SqsFake) -> None:
    """Its error is the one boto3 knows by name."""
    with pytest.raises(fake.sqs.client.exceptions.QueueDoesNotExist):
        fake.sqs.receive(f"{fake.endpoint_url}/123456789012/none")


def test_unsigned_calls_are_refused(fake: SqsFake) -> None:
    """A call without credentials is not performed."""
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    url = fake.sqs.queue()
    client = boto3.session.Session().client(
        "sqs", region_name="eu-west-1", endpoint_url=fake.endpoint_url, config=Config(signature_version=UNSIGNED)
    )
    with pytest.raises(ClientError) as caught:
        client.send_message(QueueUrl=url, MessageBody="a")
    client.close()
    assert code(caught) == "MissingAuthenticationToken"
    assert fake.stored(url) == []


def test_too_many_in_flight(fake: SqsFake) -> None:
    """At the limit a short poll is an error and a long poll finds nothing."""
    url = fake.sqs.queue()
    send(fake, url, "a", "b")
    fake.service.most_in_flight = 1
    try:
        assert len(fake.sqs.receive(url)) == 1
        with pytest.raises(ClientError) as caught:
            fake.sqs.receive(url)
        assert code(caught) == "OverLimit"
        assert fake.sqs.receive(url, wait=1) == []
    finally:
        fake.service.most_in_flight = 120_000
