"""endpoint_sdk.testing.lambda_event: signed fixture events, executed by the handler they are for."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import ConfigurationError, Endpoint, Run, task, workflow
from endpoint_sdk.testing import lambda_event
from endpoint_sdk.wire import signature

bodies: list[str] = []


@task
def note(text: str) -> str:
    bodies.append(text)
    return text


@workflow("order")
async def order(run: Run, name: str) -> str:
    return await run.task(note, name)


@workflow("wait")
async def wait(run: Run) -> None:
    await run.sleep("s", timedelta(days=1))


class Reversed:
    """A codec as simple as can be."""

    def encode(self, data: bytes, /) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        return data[::-1]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    bodies.clear()
    # An address nobody listens at: nothing about these runs may go there.
    made = Endpoint([order, wait], secret=signature.new_secret(), url="http://127.0.0.1:9", name="orders")
    yield made
    made.lambda_handler.close()


@pytest.mark.parametrize("source", ["function-url", "api-v1", "api-v2", "alb", "direct"])
def test_an_http_event_is_executed(endpoint: Endpoint, source: Any) -> None:
    """The handler verifies it, claims the run with its input, and answers as its source expects."""
    answer = endpoint.lambda_handler(lambda_event(source, endpoint, order, "o1"), None)

    assert answer["statusCode"] == 200
    assert json.loads(answer["body"])["outcome"] == "complete"
    assert bodies == ["o1"]


def test_an_sqs_event_is_executed(endpoint: Endpoint) -> None:
    """A batch of one message, settled."""
    assert endpoint.lambda_handler(lambda_event("sqs", endpoint, order, "o1"), None) == {"batchItemFailures": []}
    assert bodies == ["o1"]


def test_an_event_is_good_for_one_run(endpoint: Endpoint) -> None:
    """The same event again is a delivery of a run that is over."""
    event = lambda_event("direct", endpoint, order, "o1")
    endpoint.lambda_handler(event, None)
    answer = endpoint.lambda_handler(event, None)

    assert json.loads(answer["body"])["outcome"] == "claim refused: stale_delivery"
    assert bodies == ["o1"]


def test_a_run_that_waits_parks(endpoint: Endpoint) -> None:
    """Nothing brings it back: an event is one delivery."""
    answer = endpoint.lambda_handler(lambda_event("function-url", endpoint, wait, None), None)

    assert json.loads(answer["body"])["outcome"] == "park"


def test_payloads_go_through_the_endpoints_codec() -> None:
    """The input is sealed as a client would have sealed it."""
    bodies.clear()
    endpoint = Endpoint([order], secret=signature.new_secret(), codec=Reversed())

    assert endpoint.lambda_handler(lambda_event("sqs", endpoint, order, "o1"), None) == {"batchItemFailures": []}
    assert bodies == ["o1"]
    endpoint.lambda_handler.close()


def test_what_makes_no_event_is_refused(endpoint: Endpoint) -> None:
    """A source AWS does not have, a workflow that is not served here."""

    @workflow("elsewhere")
    async def elsewhere(run: Run) -> None: ...

    with pytest.raises(ConfigurationError, match="choose one of"):
        lambda_event("kinesis", endpoint, order, "o1")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="does not serve"):
        lambda_event("sqs", endpoint, elsewhere, None)
