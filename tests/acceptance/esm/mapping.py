"""A small event source mapping: polls an SQS queue, invokes the function in a real sandbox, obeys its answer.

As the service does, it deletes what the answer does not name as failed, keeps the whole batch when the answer names
something it should not, when the function raised, timed out or died, and leaves all else to the visibility timeout.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct

from tests.acceptance.lambda_runtime.runtime_api import Invocation, LambdaRuntime
from tests.brokers import Sqs


class Polled(Struct):
    """One batch: the ids of its messages in order, those deleted, and the settled invocation."""

    received: list[str]
    deleted: list[str]
    invocation: Invocation

    @property
    def failed(self) -> list[str]:
        """The messages that stay in the queue."""
        return [each for each in self.received if each not in self.deleted]


class Nothing(AssertionError):
    """The messages asked for did not arrive in time."""


class EventSourceMapping:
    """Between *queue_url* and the sandboxes *start* makes; a sandbox that died is replaced at the next batch.

    *report* is FunctionResponseTypes: [ReportBatchItemFailures]; *age* how many seconds longer ago than they were the
    messages are said to have been sent; *freezing* stops the sandbox between batches.
    """

    def __init__(
        self,
        sqs: Sqs,
        queue_url: str,
        start: Callable[[], LambdaRuntime],
        *,
        report: bool = True,
        age: float = 0,
        freezing: bool = False,
    ) -> None:
        self._sqs = sqs
        self._url = queue_url
        self._arn = sqs.arn(queue_url)
        self._start = start
        self._report = report
        self._age = age
        self._freezing = freezing
        self._runtime: LambdaRuntime | None = None

    def poll(self, limit: int = 10, *, at_least: int = 1, within: float = 20) -> Polled:
        """The outcome of the next batch, of *at_least* messages: SQS may hand over fewer than it has.

        Raises Nothing when they do not arrive *within* seconds.
        """
        messages: list[dict[str, Any]] = []
        deadline = time.monotonic() + within
        while len(messages) < at_least:
            if time.monotonic() >= deadline:
                raise Nothing(f"{len(messages)} of {at_least} messages arrived within {within} s")
            messages += self._sqs.receive(self._url, limit - len(messages), wait=1)
        invocation = self._invoke({"Records": [self._record(each) for each in messages]})
        received = [each["MessageId"] for each in messages]
        failed = failed_of(invocation, received) if self._report else _all_or_none(invocation, received)
        for each in messages:
            if each["MessageId"] not in failed:
                self._delete(each)
        return Polled(received, [each for each in received if each not in failed], invocation)

    def _delete(self, message: dict[str, Any]) -> None:
        # Another sandbox may have settled and deleted a second copy meanwhile; the service does not mind either.
        with suppress(self._sqs.client.exceptions.ReceiptHandleIsInvalid):
            self._sqs.client.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])

    def _invoke(self, event: dict[str, Any]) -> Invocation:
        runtime = self._runtime
        if runtime is None or runtime.process.poll() is not None:
            runtime = self._runtime = self._start()
        elif self._freezing:
            runtime.thaw()
        invocation = runtime.invoke(event)
        if self._freezing and runtime.process.poll() is None:
            runtime.freeze()
        return invocation

    def _record(self, message: dict[str, Any]) -> dict[str, Any]:
        attributes = dict(message["Attributes"])
        attributes["SentTimestamp"] = str(int(attributes["SentTimestamp"]) - int(self._age * 1000))
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": attributes,
            "messageAttributes": {
                name: {
                    "stringValue": value.get("StringValue"),
                    "stringListValues": [],
                    "binaryListValues": [],
                    "dataType": value["DataType"],
                }
                for name, value in message.get("MessageAttributes", {}).items()
            },
            "md5OfBody": message["MD5OfBody"],
            "eventSource": "aws:sqs",
            "eventSourceARN": self._arn,
            "awsRegion": self._sqs.region,
        }


def failed_of(invocation: Invocation, received: list[str]) -> list[str]:
    """The messages that *invocation* leaves in the queue, with ReportBatchItemFailures."""
    if invocation.kind != "response":
        return received
    answer = invocation.payload
    if not answer:
        return []
    if not isinstance(answer, dict):
        return received
    entries = answer.get("batchItemFailures") or []
    try:
        named = [each["itemIdentifier"] for each in entries]
    except (TypeError, KeyError):
        return received
    return named if all(each in received for each in named) else received


def _all_or_none(invocation: Invocation, received: list[str]) -> list[str]:
    return [] if invocation.kind == "response" else received
