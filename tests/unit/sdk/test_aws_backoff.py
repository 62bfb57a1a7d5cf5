"""endpoint_sdk.aws_backoff against a boto3 of the test's own: what is asked of SQS, and what happens when it cannot."""

import logging
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from endpoint_sdk.aws_backoff import Backoff
from endpoint_sdk.aws_sqs import Failure, Record
from tests.acceptance.lambda_runtime.events import ARN

CHINA = "arn:aws-cn:sqs:cn-north-1:000000000000:orders.fifo"


class Refused(Exception):
    """As botocore's ClientError."""

    def __init__(self, code: str) -> None:
        super().__init__(f"An error occurred ({code})")
        self.response = {"Error": {"Code": code}}


class Boto:
    """Clients and their calls; `answer` makes the answer to a call, or raises."""

    def __init__(self) -> None:
        self.clients: list[tuple[str, str, dict[str, Any]]] = []
        self.calls: list[dict[str, Any]] = []
        self.answer: Callable[[], dict[str, Any]] = dict

    def client(self, service: str, *, region_name: str, config: dict[str, Any]) -> Any:
        self.clients.append((service, region_name, config))
        endpoint = f"https://sqs.{region_name}.example/"
        return SimpleNamespace(
            meta=SimpleNamespace(endpoint_url=endpoint), change_message_visibility_batch=self._changed
        )

    def _changed(self, **call: Any) -> dict[str, Any]:
        self.calls.append(call)
        return self.answer()


@pytest.fixture
def boto(monkeypatch: pytest.MonkeyPatch) -> Boto:
    """boto3 and botocore, as far as they are used; neither has to be installed."""
    fake = Boto()
    boto3, botocore, config = ModuleType("boto3"), ModuleType("botocore"), ModuleType("botocore.config")
    boto3.session = SimpleNamespace(Session=lambda: fake)  # type: ignore[attr-defined]
    config.Config = dict  # type: ignore[attr-defined]
    for module in (boto3, botocore, config):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return fake


def failures(*delays: int) -> list[Failure]:
    return [
        Failure(Record(f"m{number}", ARN, f"h{number}", {}, b"", 0.0, 1, ""), delay)
        for number, delay in enumerate(delays)
    ]


def left(*seconds: float) -> Callable[[], timedelta | None]:
    steps = iter(seconds)
    return lambda: timedelta(seconds=next(steps))


def warnings(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_each_message_has_its_own_delay(boto: Boto) -> None:
    """One call for up to ten, to the queue of the ARN at the endpoint boto3 knows; zero makes a message visible."""
    Backoff().put_off(CHINA, failures(0, 5, 900), None)

    assert [(service, region) for service, region, _ in boto.clients] == [("sqs", "cn-north-1")]
    assert boto.calls == [
        {
            "QueueUrl": "https://sqs.cn-north-1.example/000000000000/orders.fifo",
            "Entries": [
                {"Id": "0", "ReceiptHandle": "h0", "VisibilityTimeout": 0},
                {"Id": "1", "ReceiptHandle": "h1", "VisibilityTimeout": 5},
                {"Id": "2", "ReceiptHandle": "h2", "VisibilityTimeout": 900},
            ],
        }
    ]


def test_calls_are_short_and_never_repeated(boto: Boto) -> None:
    """The whole invocation must not end in a wait for this."""
    Backoff().put_off(ARN, failures(5), None)
    config = boto.clients[0][2]

    assert config["connect_timeout"] + config["read_timeout"] <= 1
    assert config["retries"]["total_max_attempts"] == 1


def test_large_batches_go_in_tens_over_one_client(boto: Boto) -> None:
    """Ten entries are what SQS takes."""
    backoff = Backoff()
    backoff.put_off(ARN, failures(*[5] * 23), None)
    backoff.put_off(ARN, failures(5), None)

    assert [len(call["Entries"]) for call in boto.calls] == [10, 10, 3, 1]
    assert len(boto.clients) == 1


def test_no_failure_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 costs hundreds of milliseconds: only a failure pays for it."""
    monkeypatch.setitem(sys.modules, "boto3", None)

    Backoff().put_off(ARN, [], None)


def test_without_the_time_nothing_is_called(boto: Boto, caplog: pytest.LogCaptureFixture) -> None:
    """Loading boto3 takes longer than a call; both leave the report its time."""
    backoff = Backoff()
    backoff.put_off(ARN, failures(5), left(2.7))
    assert (boto.clients, boto.calls) == ([], [])
    backoff.put_off(ARN, failures(*[5] * 20), left(3.0, 1.2))
    assert len(boto.calls) == 1
    backoff.put_off(ARN, failures(5), left(1.3))

    assert len(boto.calls) == 2
    assert len(warnings(caplog)) == 1


def test_without_boto3_it_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An SDK without the extra reports failures all the same."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    backoff = Backoff()
    for _ in range(3):
        backoff.put_off(ARN, failures(5), None)

    assert len(warnings(caplog)) == 1
    assert "boto3" in warnings(caplog)[0]


def raising(error: Exception) -> Callable[[], dict[str, Any]]:
    def answer() -> dict[str, Any]:
        raise error

    return answer


def test_without_the_permission_it_is_said_once(boto: Boto, caplog: pytest.LogCaptureFixture) -> None:
    """The message names the permission; the next batch tries again, since a role changes while a sandbox lives."""
    boto.answer = raising(Refused("AccessDenied"))
    backoff = Backoff()
    for _ in range(3):
        backoff.put_off(ARN, failures(5), None)

    assert len(boto.calls) == 3
    assert len(warnings(caplog)) == 1
    assert "AccessDenied" in warnings(caplog)[0]
    assert "sqs:ChangeMessageVisibility" in warnings(caplog)[0]


def test_entries_that_sqs_refuses_are_said_once_for_each_reason(boto: Boto, caplog: pytest.LogCaptureFixture) -> None:
    """HTTP 200 can hold failures; a handle that expired meanwhile is one."""
    backoff = Backoff()
    for code in ("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", "InternalError"):
        boto.answer = lambda code=code: {"Failed": [{"Id": "0", "Code": code}]}  # type: ignore[misc]
        backoff.put_off(ARN, failures(5), None)

    assert len(warnings(caplog)) == 2


@pytest.mark.parametrize("arn", ["", "arn:aws:sqs", "x"])
def test_an_arn_that_is_none_raises_nothing(boto: Boto, arn: str, caplog: pytest.LogCaptureFixture) -> None:
    """Best effort, whatever the event says."""
    Backoff().put_off(arn, failures(5), left(60.0))

    assert len(warnings(caplog)) == 1
