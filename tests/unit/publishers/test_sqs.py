"""How deliveries are packed for SQS, and what is made of answers no server of ours gives."""

import itertools
import threading
from typing import Any

import pytest
from botocore import exceptions, parsers
from hypothesis import given
from hypothesis import strategies as st

from publishers import faults, sqs
from publishers.sqs import BATCH, MAX_BYTES, SqsPublisher, packed, weigh
from tests.contract.publisher_rigs import KEYS, due, target


class Odd:
    """A client of a healthy queue that answers a batch, or raises, as it is told."""

    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self.answer = answer

    def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        return {"Attributes": {"QueueArn": "arn:aws:sqs:eu-west-1:1:queue"}}

    def send_message_batch(self, **_: Any) -> dict[str, Any]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"Successful": [{"Id": "1"}]}, [("published", "unknown"), ("published", "accepted")]),
        ({"Successful": [], "Failed": [{"Id": "0"}]}, [("failed", "broker_refused"), ("published", "unknown")]),
        ({}, [("failed", "queue_wrong_kind")] * 2),
        (parsers.ResponseParserError("hunter22"), [("failed", "queue_wrong_kind")] * 2),
        (exceptions.ParamValidationError(report="hunter22"), [("failed", "broker_refused")] * 2),
        (exceptions.ProxyConnectionError(proxy_url="http://u:hunter22@p"), [("failed", "broker_unreachable")] * 2),
        (exceptions.SSLError(endpoint_url="https://x", error="e"), [("failed", "broker_unreachable")] * 2),
        (exceptions.PartialCredentialsError(provider="env", cred_var="x"), [("failed", "credentials_refused")] * 2),
        (exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2), [("published", "unknown")] * 2),
    ],
)
async def test_odd_answers(answer: Any, expected: list[tuple[str, str]]) -> None:
    """An entry nobody speaks of is unknown; what the client raises is an outcome, and its text is not shown."""
    made = SqsPublisher(target("https://sqs.eu-west-1.amazonaws.com/1/queue", KEYS), Odd(answer))
    outcomes = await made.publish([due(), due()])
    assert [(outcome.kind, outcome.row) for outcome in outcomes] == expected
    assert "hunter22" not in repr(outcomes)
    await made.close()


async def test_what_was_never_begun_is_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """While every thread waits for a silent broker, batches that found none were not sent, for certain."""
    monkeypatch.setattr(sqs, "THREADS", 1)
    monkeypatch.setattr(faults, "PUBLISH_SECONDS", 0.5)
    answered = threading.Event()

    class Silent(Odd):
        def send_message_batch(self, **_: Any) -> dict[str, Any]:
            answered.wait()
            return self.answer  # type: ignore[return-value]

    made = SqsPublisher(target("https://sqs.eu-west-1.amazonaws.com/1/queue", KEYS), Silent({"Successful": []}))
    outcomes = await made.publish([due() for _ in range(2 * BATCH)])
    answered.set()
    assert [(outcome.kind, outcome.row) for outcome in outcomes] == [
        *[("published", "unknown")] * BATCH,
        *[("failed", "broker_unreachable")] * BATCH,
    ]
    await made.close()


@given(st.lists(st.integers(1, MAX_BYTES + 10), max_size=40), st.integers(1_024, MAX_BYTES))
def test_packing(sizes: list[int], largest: int) -> None:
    """Every size that fits is in one batch, in order; no batch is over ten or 1 MiB, none could have taken the next."""
    batches = packed(sizes, largest)
    assert [n for batch in batches for n in batch] == [n for n, size in enumerate(sizes) if size <= largest]
    for batch in batches:
        assert 1 <= len(batch) <= BATCH
        assert sum(sizes[n] for n in batch) <= MAX_BYTES
    for batch, after in itertools.pairwise(batches):
        assert len(batch) == BATCH or sum(sizes[n] for n in batch) + sizes[after[0]] > MAX_BYTES


def test_weighing() -> None:
    """A message weighs its body and the names, types and values of its attributes."""
    message = {"MessageBody": "abc", "MessageAttributes": {"x": {"DataType": "String", "StringValue": "yz"}}}
    assert weigh(message) == 3 + 1 + 6 + 2
