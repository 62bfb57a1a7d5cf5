"""Calls on the fake, as its tests make them."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.sqs_fake import SqsFake


def send(fake: SqsFake, url: str, *bodies: str, **options: Any) -> list[str]:
    """Message ids of *bodies*, sent one after the other."""
    return [fake.sqs.client.send_message(QueueUrl=url, MessageBody=body, **options)["MessageId"] for body in bodies]


def ordered(fake: SqsFake, url: str, *bodies: str) -> None:
    """*bodies* are sent to a FIFO queue; a body's first letter is its group."""
    for body in bodies:
        fake.sqs.client.send_message(
            QueueUrl=url, MessageBody=body, MessageGroupId=body[0], MessageDeduplicationId=body
        )


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    """The bodies of *messages*, in order."""
    return [message["Body"] for message in messages]


def hold(fake: SqsFake, url: str, message: dict[str, Any], seconds: int) -> None:
    """The visibility of *message* is changed under the handle it was received with."""
    fake.sqs.client.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds
    )


def delete(fake: SqsFake, url: str, message: dict[str, Any]) -> None:
    """*message* is deleted under the handle it was received with."""
    fake.sqs.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def until(true: Callable[[], bool]) -> None:
    """Returns once *true* is, and fails after 20 s."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def code(caught: pytest.ExceptionInfo[Any]) -> str:
    """The error code a refusal came with."""
    told: str = caught.value.response["Error"]["Code"]
    return told
