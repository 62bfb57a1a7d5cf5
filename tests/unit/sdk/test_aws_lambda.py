"""endpoint_sdk.aws_events and endpoint_sdk.aws_lambda, without a runtime: recognition, time, and what is left over."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import MagicMock

import pytest

from endpoint_sdk import aws_events
from endpoint_sdk.answers import HttpAnswer
from endpoint_sdk.aws_lambda import time_left
from endpoint_sdk.endpoint import Endpoint
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.run import Run
from endpoint_sdk.wire import signature
from endpoint_sdk.workflow import workflow

V2: dict[str, Any] = {"version": "2.0", "requestContext": {"http": {"method": "POST"}}, "headers": {}, "body": "x"}
V1: dict[str, Any] = {"httpMethod": "POST", "resource": "/", "requestContext": {"stage": "prod"}, "body": "x"}


@workflow("order")
async def order(run: Run, value: str) -> str:
    return value


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint([order], secret=signature.new_secret())
    yield made
    made.lambda_handler.close()


FOREIGN: list[object] = [
    None,
    1,
    "x",
    [],
    {},
    {"requestContext": None},
    {"requestContext": {}},
    {"requestContext": {"http": 1}},
    {"version": "2.0", "requestContext": {"http": "x"}},
    {"httpMethod": "GET"},
    {"httpMethod": 5, "requestContext": {}},
    {"Records": [{"eventSource": "aws:sqs"}]},
    {"pointsman": None},
    {"pointsman": {}},
    {"pointsman": {"headers": {"a": 1}, "body": "x"}},
    {"pointsman": {"headers": {}, "body": {}}},
]


@pytest.mark.parametrize("event", FOREIGN)
def test_what_is_no_http_request_is_recognised_as_such(event: object) -> None:
    """Foreign events come in every shape, and none raises."""
    assert aws_events.http_event(event) is None
    assert aws_events.source(event)


def test_a_direct_invoke_is_the_signed_message_alone() -> None:
    """Header names in any case, and the body's text as it was signed."""
    event = aws_events.http_event({"pointsman": {"headers": {"Webhook-Id": "a"}, "body": "é"}})

    assert event == aws_events.HttpEvent("POST", [("webhook-id", "a")], "é".encode())


ALB: dict[str, Any] = {"httpMethod": "GET", "requestContext": {"elb": {}}, "body": ""}
CHECKER = {"user-agent": "ELB-HealthChecker/2.0"}


@pytest.mark.parametrize(
    ("event", "healthy"),
    [
        ({**ALB, "headers": CHECKER}, True),
        ({**ALB, "multiValueHeaders": {name: [value] for name, value in CHECKER.items()}}, True),
        ({**ALB, "headers": CHECKER, "httpMethod": "POST"}, False),
        ({**ALB, "headers": {"user-agent": "curl"}}, False),
        ({**ALB, "headers": {}}, False),
        ({**V1, "httpMethod": "GET", "headers": CHECKER}, False),
    ],
)
def test_only_a_load_balancers_health_check_needs_no_signature(
    endpoint: Endpoint, event: dict[str, Any], healthy: bool
) -> None:
    """Anything else unsigned is a 401, whatever it calls itself."""
    answer = endpoint.lambda_handler(event, Context(1_000))

    assert answer["statusCode"] == (200 if healthy else 401)


def test_header_names_are_lower_case_and_values_text() -> None:
    """REST APIs keep the client's casing; null and odd values are dropped."""
    event = aws_events.http_event({**V1, "headers": {"Webhook-Id": "a", "X": None, "Y": 5}, "multiValueHeaders": None})

    assert event is not None
    assert event.headers == [("webhook-id", "a")]


def test_multi_value_headers_win_and_keep_duplicates() -> None:
    """A header sent twice arrives twice, so that verification can refuse it."""
    event = aws_events.http_event(
        {**V1, "headers": {"A": "2"}, "multiValueHeaders": {"A": ["1", "2"], "B": None, "C": []}}
    )

    assert event is not None
    assert event.headers == [("a", "1"), ("a", "2")]


@pytest.mark.parametrize(
    ("changes", "body"),
    [
        ({"body": None}, b""),
        ({"body": "é"}, "é".encode()),
        ({"body": "\ud800"}, b"\xed\xa0\x80"),
        ({"body": "eA==", "isBase64Encoded": True}, b"x"),
        ({"body": "e A", "isBase64Encoded": True}, b""),
        ({"body": "eA==", "isBase64Encoded": "yes"}, b"eA=="),
    ],
)
def test_bodies_are_the_bytes_that_were_sent(changes: dict[str, Any], body: bytes) -> None:
    """Null is empty, text is UTF-8, base64 is decoded strictly; nothing raises."""
    event = aws_events.http_event({**V2, **changes})

    assert event is not None
    assert event.body == body


def test_a_parsed_body_is_a_set_up_error(endpoint: Endpoint) -> None:
    """C01: something in front decoded the JSON; the message says that only bytes can be verified."""
    with pytest.raises(ConfigurationError, match="bytes as sent"):
        endpoint.lambda_handler({**V2, "body": {"type": "run.ready"}}, None)


def test_a_parsed_body_is_not_ours_to_judge_when_decorating(endpoint: Endpoint) -> None:
    """The user's handler may well live behind something that parses."""

    def mine(event: Any, context: Any) -> Any:
        return event["body"]

    handler = endpoint.lambda_handler(mine)

    assert handler({**V2, "body": {"a": 1}}, None) == {"a": 1}


def test_ours_is_what_a_dispatcher_signs() -> None:
    """A webhook signature and either an id or a body type of ours; another sender's webhook is not ours."""
    run_id = "run_01JQ0000000000000000000000"

    def ours(headers: dict[str, str], body: bytes) -> bool:
        return aws_events.HttpEvent("POST", list(headers.items()), body).ours

    assert ours({"webhook-signature": "v1,x", "webhook-id": f"{run_id}_4"}, b"damaged")
    assert ours({"webhook-signature": "v1,x", "webhook-id": "req_01JQ0000000000000000000000"}, b"")
    assert ours({"webhook-signature": "v1,x", "webhook-id": "msg_1"}, b'{"type": "run.ready"}')
    assert not ours({"webhook-signature": "v1,x", "webhook-id": "msg_1"}, b'{"type": "invoice.paid"}')
    assert not ours({"webhook-id": f"{run_id}_4"}, b'{"type": "run.ready"}')
    assert not ours({"webhook-signature": "v1,x"}, b"[" * 100_000)


def test_answers_take_the_form_of_their_source() -> None:
    """A load balancer that sends multi-value headers wants them back."""
    answer = HttpAnswer(200, {"a": "1"}, b"{}")
    single, multi = (aws_events.HttpEvent("POST", [], b"", multi_value=multi) for multi in (False, True))

    assert aws_events.http_answer(single, answer) == {
        "statusCode": 200,
        "headers": {"a": "1"},
        "body": "{}",
        "isBase64Encoded": False,
    }
    assert aws_events.http_answer(multi, answer)["multiValueHeaders"] == {"a": ["1"]}


def test_a_load_balancer_is_told_the_status_in_words() -> None:
    """Load balancers took an answer without it for a broken one."""
    balancer = aws_events.HttpEvent("POST", [], b"", load_balancer=True)

    assert aws_events.http_answer(balancer, HttpAnswer(503, {}, b""))["statusDescription"] == "503 Service Unavailable"


class Context:
    """A Lambda context whose remaining time the test sets."""

    aws_request_id = "r"

    def __init__(self, milliseconds: int) -> None:
        self.milliseconds = milliseconds

    def get_remaining_time_in_millis(self) -> int:
        return self.milliseconds


def test_no_time_left_is_zero_and_not_unlimited() -> None:
    """C21: only a context that cannot say has no limit."""
    left = time_left(Context(0))

    assert left is not None
    assert left() == timedelta(0)
    assert time_left(None) is None


@pytest.mark.parametrize("context", [object(), MagicMock(), {"get_remaining_time_in_millis": 5}])
def test_a_context_that_does_not_say_has_no_limit(endpoint: Endpoint, context: Any) -> None:
    """Handlers are called with all kinds of things in their users' tests."""
    assert time_left(context) is None
    assert endpoint.lambda_handler(V2, context)["statusCode"] == 401


def test_the_users_context_is_its_own(endpoint: Endpoint) -> None:
    """For an event that is not ours nothing is asked of it."""
    context = MagicMock()

    @endpoint.lambda_handler
    async def mine(event: Any, given: Any) -> bool:
        return given is context

    assert mine({}, context)
    assert context.mock_calls == []


def test_time_never_grows() -> None:
    """The context counts on the wall clock; a step backwards adds nothing."""
    context = Context(5_000)
    left = time_left(context)
    assert left is not None
    context.milliseconds = 3_600_000

    assert (left() or timedelta(0)) <= timedelta(seconds=5)


def test_the_handler_is_one_object_with_a_name(endpoint: Endpoint) -> None:
    """Module-level `handler = endpoint.lambda_handler` resolves by one getattr, and wrappers find what they expect."""
    handler = endpoint.lambda_handler

    assert handler is endpoint.lambda_handler
    assert (handler.__name__, handler.__module__) == ("lambda_handler", "endpoint_sdk.aws_lambda")


def test_a_decorated_handler_keeps_its_name(endpoint: Endpoint) -> None:
    """The runtime and tracing layers see the user's function."""

    @endpoint.lambda_handler
    def mine(event: Any, context: Any) -> Any:
        """My own."""
        return event

    assert (mine.__name__, mine.__doc__) == ("mine", "My own.")


def test_an_event_without_a_context_is_no_decoration(endpoint: Endpoint) -> None:
    """A forgotten argument is said to be one."""
    with pytest.raises(ConfigurationError):
        endpoint.lambda_handler({"not": "callable"})  # type: ignore[call-overload]


def test_exceptions_pass_through_untouched(endpoint: Endpoint) -> None:
    """BaseExceptions included: whatever the user's handler raises is what the runtime sees."""
    for raised in (ValueError("x"), SystemExit(3), KeyboardInterrupt()):

        def mine(event: Any, context: Any, raised: BaseException = raised) -> Any:
            raise raised

        async def mine_async(event: Any, context: Any, raised: BaseException = raised) -> Any:
            raise raised

        for handler in (endpoint.lambda_handler(mine), endpoint.lambda_handler(mine_async)):
            with pytest.raises(type(raised)) as caught:
                handler({}, None)
            assert caught.value is raised


def test_left_over_tasks_are_cancelled_before_the_answer(endpoint: Endpoint) -> None:
    """Nothing of one invocation runs on in the next, a task that resists included."""
    seen: list[str] = []

    async def left_over() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            seen.append("unwound")

    async def mine(event: Any, context: Any) -> str:
        seen.append(str(len(asyncio.all_tasks())))
        context.append(asyncio.create_task(left_over()))
        await asyncio.sleep(0)
        return "done"

    handler = endpoint.lambda_handler(mine)
    kept: list[asyncio.Task[None]] = []
    replies: list[object] = [handler({}, kept), handler({}, kept)]

    assert replies == ["done", "done"]
    assert seen == ["1", "unwound", "1", "unwound"]
    assert all(task.cancelled() for task in kept)


def test_the_loop_is_the_same_for_every_invocation(endpoint: Endpoint) -> None:
    """One loop per process: connections kept on it can be used again."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def mine(event: Any, context: Any) -> None:
        loops.append(asyncio.get_running_loop())

    handler = endpoint.lambda_handler(mine)
    handler({}, None)
    handler({}, None)

    assert loops[0] is loops[1]


def test_an_unsigned_request_starts_no_thread(endpoint: Endpoint) -> None:
    """Only a claim needs refreshing."""
    before = threading.active_count()

    assert endpoint.lambda_handler(V2, Context(1_000))["statusCode"] == 401
    assert threading.active_count() == before
