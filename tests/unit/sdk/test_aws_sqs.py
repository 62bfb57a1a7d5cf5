"""endpoint_sdk.aws_sqs: which messages are ours, how a batch is worked off, and what is reported."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, get_args

import pytest

from endpoint_sdk import aws_sqs, redelivery
from endpoint_sdk.aws_sqs import Batch, Outcome, Record
from endpoint_sdk.wire import signature
from tests.acceptance.lambda_runtime import events

RUN = "run_01JQ0000000000000000000000"
HEADERS = {"webhook-id": f"{RUN}_4", "webhook-timestamp": "1", "webhook-signature": "v1,x"}
FIFO = events.ARN + ".fifo"


def message(message_id: str = "m1", **changes: Any) -> dict[str, Any]:
    return {**events.sqs_record(message_id, HEADERS, b'{"type": "run.ready"}'), **changes}


def without(name: str) -> dict[str, Any]:
    found = message()
    del found["messageAttributes"][name]
    return found


FOREIGN: list[Any] = [
    None,
    "text",
    {},
    message(eventSource="aws:s3"),
    message(messageId=None),
    message(receiptHandle=5),
    message(body={"type": "run.ready"}),
    message(eventSourceARN=None),
    message(messageAttributes=None),
    message(messageAttributes=dict.fromkeys(HEADERS, "x")),
    message(messageAttributes={name: {"stringValue": None, "binaryValue": "eA=="} for name in HEADERS}),
    *(without(name) for name in HEADERS),
    events.sqs_record("m1", {**HEADERS, "webhook-id": "msg_1"}, b'{"type": "invoice.paid"}'),
    events.sqs_record("m1", {**HEADERS, "webhook-id": "msg_1"}, b"["),
    events.SQS["Records"][0],
]


@pytest.mark.parametrize("record", FOREIGN)
def test_foreign_messages_are_not_ours(record: Any) -> None:
    """Another sender's webhooks, other sources and broken shapes are left alone, and none raises."""
    assert aws_sqs.batch({"Records": [record]}) is None
    mixed = aws_sqs.batch({"Records": [record, message("ours")]})

    assert mixed is not None
    assert [each.message_id for each in mixed.ours] == ["ours"]
    assert mixed.theirs[0] is record


@pytest.mark.parametrize(
    "event", [None, [], "x", {}, {"Records": None}, {"Records": []}, {"Records": {"0": message()}}]
)
def test_what_is_no_batch_is_none(event: Any) -> None:
    """Events come in every shape."""
    assert aws_sqs.batch(event) is None


def test_a_message_of_ours_is_read_whole() -> None:
    """Headers, the bytes of the body, and the attributes that judge its age and its backoff."""
    record = events.sqs_record(
        "m1",
        HEADERS,
        '{"é": 1}'.encode(),
        arn=FIFO,
        SentTimestamp="1700000000123",
        ApproximateReceiveCount="3",
        MessageGroupId="g",
    )
    batch = aws_sqs.batch({"Records": [record]})

    assert batch is not None
    assert batch.ours == [Record("m1", FIFO, "handle of m1", HEADERS, '{"é": 1}'.encode(), 1_700_000_000.123, 3, "g")]
    assert batch.fifo
    assert batch.arn == FIFO


@pytest.mark.parametrize("attributes", [None, {}, {"SentTimestamp": "soon", "ApproximateReceiveCount": "-1"}])
def test_missing_attributes_are_judged_now(attributes: Any) -> None:
    """A source that does not say when the message was sent makes nothing valid that would not be now."""
    batch = aws_sqs.batch({"Records": [message(attributes=attributes)]})

    assert batch is not None
    assert batch.ours[0].sent_at == pytest.approx(time.time(), abs=60)
    assert batch.ours[0].receives == 1


def test_the_sender_of_another_revision_is_ours_too() -> None:
    """A damaged body still carries our id: it is reported, not handed to the user."""
    assert aws_sqs.batch({"Records": [events.sqs_record("m1", HEADERS, b"damaged")]}) is not None


# --- working off -----------------------------------------------------------------------------------------------------
class Deliveries:
    """Answers each record as told and notes who was started and how many were under way at a time."""

    def __init__(self, **outcomes: Outcome) -> None:
        self.outcomes = outcomes
        self.started: list[str] = []
        self.under_way = self.most = 0

    async def __call__(self, record: Record) -> Outcome:
        self.started.append(record.message_id)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(5):
            await asyncio.sleep(0)
        self.under_way -= 1
        if record.message_id == "raises":
            raise ValueError("a fault of the SDK")
        if record.message_id == "cancelled":
            raise asyncio.CancelledError
        return self.outcomes.get(record.message_id, "settled")


def batch_of(*names: str, arn: str = events.ARN) -> Batch:
    """Messages of the groups named by their first letters."""
    return Batch([Record(name, arn, f"h {name}", HEADERS, b"", 1.0, 1, name[0]) for name in names], [])


async def worked(
    batch: Batch, deliveries: Deliveries, remaining: Callable[[], timedelta | None] | None = None, at_once: int = 100
) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    await aws_sqs.work_off(batch, deliveries, outcomes, at_once=at_once, remaining=remaining)
    return outcomes


async def test_a_standard_queues_messages_run_side_by_side() -> None:
    """All at once, up to the endpoint's limit, and each has its own outcome."""
    deliveries = Deliveries(a2="retry")
    outcomes = await worked(batch_of("a1", "a2", "a3", "b1", "raises"), deliveries, at_once=3)

    assert outcomes == {"a1": "settled", "a2": "retry", "a3": "settled", "b1": "settled", "raises": "retry"}
    assert deliveries.most == 3


async def test_a_cancelled_record_leaves_the_others_alone() -> None:
    """Its own outcome stays open, which is a failure; theirs are what they are."""
    batch = batch_of("cancelled", "a1", "a2")
    outcomes = await worked(batch, Deliveries(), at_once=2)

    assert outcomes == {"a1": "settled", "a2": "settled"}
    assert [each.record.message_id for each in aws_sqs.failures(batch, outcomes)] == ["cancelled"]


async def test_a_fifo_queues_groups_keep_their_order() -> None:
    """One after the other within a group; behind a failure nothing of its group is started, and all of it fails."""
    deliveries = Deliveries(a2="unauthorized")
    outcomes = await worked(batch_of("a1", "b1", "a2", "a3", "b2", "a4", arn=FIFO), deliveries)

    assert outcomes == {
        "a1": "settled",
        "a2": "unauthorized",
        "a3": "unauthorized",
        "a4": "unauthorized",
        "b1": "settled",
        "b2": "settled",
    }
    assert "a3" not in deliveries.started
    assert [name for name in deliveries.started if name[0] == "a"] == ["a1", "a2"]
    assert deliveries.most == 2


@pytest.mark.parametrize("arn", [events.ARN, FIFO])
async def test_nothing_is_started_when_time_is_short(arn: str) -> None:
    """Of 100 s five are the margin: a run started with less than another five would only be claimed and handed off."""
    left = iter([timedelta(seconds=100), timedelta(seconds=50), timedelta(seconds=9), timedelta(seconds=3)])
    deliveries = Deliveries()
    outcomes = await worked(batch_of("a1", "a2", "a3", arn=arn), deliveries, lambda: next(left), at_once=1)

    assert deliveries.started == ["a1"]
    assert outcomes == {"a1": "settled", "a2": "busy", "a3": "busy"}


async def test_a_host_without_a_limit_starts_everything() -> None:
    """No context, no margin."""
    assert set((await worked(batch_of("a1", "a2"), Deliveries(), lambda: None)).values()) == {"settled"}


def test_failures_are_what_is_not_settled() -> None:
    """Every other outcome; a record whose outcome nobody knows, because the loop was torn down, is one too."""
    known: dict[str, Outcome] = {"settled": "settled", **{each: each for each in get_args(redelivery.Unsettled)}}
    found = aws_sqs.failures(batch_of(*known, "open"), known)

    assert [each.record.message_id for each in found] == [*(name for name in known if name != "settled"), "open"]
    assert found[-1].delay == 5


def test_nothing_of_a_fifo_group_comes_again_before_what_is_ahead_of_it() -> None:
    """The one ahead was received more often, so it waits longer, and the rest of its group with it."""
    records = [
        Record(name, FIFO, "h", HEADERS, b"", 1.0, receives, name[0])
        for name, receives in [("a1", 3), ("a2", 1), ("b1", 1)]
    ]
    found = aws_sqs.failures(Batch(records, []), {"a1": "retry", "a2": "retry", "b1": "retry"})

    assert [each.delay for each in found] == [20, 20, 5]


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ("settled", "settled"),
        ("discovered", "settled"),
        ("retry", "retry"),
        ("busy", "busy"),
        ("unknown-workflow", "unknown-workflow"),
        ("unauthorized", "unauthorized"),
        ("invalid", "invalid"),
        ("something new", "retry"),
    ],
)
def test_every_result_of_the_endpoint_has_an_outcome(result: str, outcome: Outcome) -> None:
    """Only what is settled is deleted."""
    assert aws_sqs.outcome(result) == outcome


# --- merging ---------------------------------------------------------------------------------------------------------
def failing(*ids: object) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": each} for each in ids]}


THEIRS = ["u1", "u2"]


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        (None, []),
        ({}, []),
        ([], []),
        ({"batchItemFailures": None}, []),
        ({"batchItemFailures": []}, []),
        ({"statusCode": 200}, []),
        (failing("u2"), ["u2"]),
        (failing("u1", "u2"), ["u1", "u2"]),
        ({"batchItemFailures": ({"itemIdentifier": "u1"},)}, ["u1"]),
        ("done", ["u1", "u2"]),
        (["u1"], ["u1", "u2"]),
        (7, ["u1", "u2"]),
        ({"batchItemFailures": "u1"}, ["u1", "u2"]),
        ({"batchItemFailures": {"itemIdentifier": "u1"}}, ["u1", "u2"]),
        ({"batchItemFailures": ["u1"]}, ["u1", "u2"]),
        ({"batchItemFailures": [{"ItemIdentifier": "u1"}]}, ["u1", "u2"]),
        (failing("u1", None), ["u1", "u2"]),
        (failing(""), ["u1", "u2"]),
        (failing("a"), ["u1", "u2"]),
        (failing(["u1"]), ["u1", "u2"]),
    ],
)
def test_the_users_answer_is_read_as_lambda_reads_it(answer: Any, failed: list[str]) -> None:
    """Nothing is success; what Lambda would fail the whole batch for fails all of theirs and none of ours."""
    assert aws_sqs.merged([], THEIRS, answer)["batchItemFailures"] == failing(*failed)["batchItemFailures"]
    assert aws_sqs.merged(["a"], THEIRS, answer)["batchItemFailures"] == failing("a", *failed)["batchItemFailures"]


def test_the_rest_of_the_users_answer_stays() -> None:
    """Whoever invokes the function by hand may read it."""
    assert aws_sqs.merged(["a"], THEIRS, {"n": 1, **failing("u1")}) == {"n": 1, **failing("a", "u1")}


def test_a_signature_of_the_records_headers_verifies() -> None:
    """What the event source hands over is what was signed, to the byte."""
    key = signature.parse_secret(events.SECRET)
    body = b'{"type":"run.ready"}'
    batch = aws_sqs.batch(events.sqs(events.signed(body, f"{RUN}_4"), body))

    assert batch is not None
    signature.verify([key], batch.ours[0].headers, batch.ours[0].body, batch.ours[0].sent_at)
