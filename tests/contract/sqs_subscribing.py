"""What the tests of the SQS subscriber share: a strict queue, messages in it, and subscribers of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from endpoint_sdk.subscribers.base import Claim, Message, Setup
from endpoint_sdk.subscribers.sqs_queue import SqsSubscriber
from endpoint_sdk.wire import signature
from endpoint_sdk.wire.messages import ExecutorInfo, WantedWorkflow
from tests.sqs_fake import SqsFake

DEADLINE = 30.0
SECRET = signature.parse_secret(signature.new_secret())
SETUP = Setup("default", [WantedWorkflow("order", ["1.0.0"])], ExecutorInfo("worker"), 30_000)


async def until(holds: Callable[[], object]) -> None:
    """Returns as soon as *holds* says yes; fails after 30 s."""
    ends = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < ends, "it did not come true"
        await asyncio.sleep(0.01)


def send(fake: SqsFake, url: str, number: int = 0, *, group: str | None = None, at: float | None = None) -> str:
    """Sends a signed message; its webhook-id."""
    message_id, body = f"run_{number}_0", b'{"type":"run.ready"}'
    headers = signature.sign([SECRET], message_id, int(fake.now() if at is None else at), body)
    fifo = {} if group is None else {"MessageGroupId": group, "MessageDeduplicationId": message_id}
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in headers.items()}
    fake.sqs.client.send_message(QueueUrl=url, MessageBody=body.decode(), MessageAttributes=attributes, **fifo)
    return message_id


def subscriber(url: str, *, hold: int = 30, wait: int = 1, **options: Any) -> SqsSubscriber:
    return SqsSubscriber(url, visibility_timeout=timedelta(seconds=hold), wait=timedelta(seconds=wait), **options)


@asynccontextmanager
async def opened(url: str, *, hold: int = 30, wait: int = 1, **options: Any) -> AsyncIterator[SqsSubscriber]:
    made = subscriber(url, hold=hold, wait=wait, **options)
    await made.open(SETUP)
    try:
        yield made
    finally:
        await made.close(DEADLINE)


def ids(items: Sequence[Message | Claim]) -> list[str]:
    return [item.headers["webhook-id"] for item in items if isinstance(item, Message)]


def calls(fake: SqsFake, action: str) -> list[dict[str, Any]]:
    return [request for name, request in list(fake.calls) if name == action]


def beats(fake: SqsFake) -> int:
    """How many times any message was extended, going back not counted."""
    return sum(
        entry["VisibilityTimeout"] > 0
        for request in calls(fake, "ChangeMessageVisibilityBatch")
        for entry in request["Entries"]
    )
