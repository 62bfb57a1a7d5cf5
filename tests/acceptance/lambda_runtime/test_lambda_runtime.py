"""The endpoint on the real Lambda runtime client: events, foreign events, freezes, timeouts, faults at init."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from endpoint_sdk.wire import messages
from tests.acceptance.lambda_runtime import events
from tests.acceptance.lambda_runtime.runtime_api import Invocation, LambdaRuntime
from tests.unit.sdk.dispatcher_double import DispatcherDouble
from tests.unit.sdk.http_dispatcher import HttpDispatcher, serving

HERE = Path(__file__).parent
PYTHONS = ["AWS_Lambda_python3.11", "AWS_Lambda_python3.12"]
HTTP_EVENTS = [
    events.function_url,
    events.http_api,
    events.rest_api,
    events.rest_api_without_multi_value,
    events.load_balancer,
    events.direct,
]


class Sandbox:
    """A runtime and the dispatcher its function calls."""

    def __init__(self, stack: ExitStack, marks: Path) -> None:
        self._stack = stack
        self._marks = marks
        self.dispatcher: HttpDispatcher = stack.enter_context(serving(DispatcherDouble()))

    def start(self, handler: str = "functions.handler", **options: Any) -> LambdaRuntime:
        environment = {
            "POINTSMAN_SIGNING_SECRET": events.SECRET,
            "POINTSMAN_ENDPOINT": "orders",
            "POINTSMAN_TEST_MARKS": str(self._marks),
            # Where there is boto3, failed messages are put off: nowhere.
            "AWS_ENDPOINT_URL_SQS": "http://127.0.0.1:9",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            **options.pop("environment", {}),
        }
        runtime = LambdaRuntime(handler, HERE, environment=environment, **options)
        self._stack.callback(runtime.close)
        assert runtime.initialised.wait(10)
        return runtime

    def queued(self, workflow: str = "order") -> DispatcherDouble:
        """A fresh run at the dispatcher."""
        self.dispatcher.double = DispatcherDouble(workflow)
        return self.dispatcher.double

    def push(self, kind: Callable[[dict[str, str], bytes], dict[str, Any]] = events.function_url) -> dict[str, Any]:
        """The event of a push for the run as it is now."""
        return kind(*events.headers_of(self.dispatcher.double.delivery(url=self.dispatcher.url)))

    @property
    def marks(self) -> list[str]:
        return self._marks.read_text().split("\n")[:-1] if self._marks.exists() else []


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with ExitStack() as stack:
        yield Sandbox(stack, tmp_path / "marks")


def result_of(invocation: Invocation) -> tuple[int, str]:
    assert invocation.kind == "response", invocation.payload
    answer = invocation.payload
    headers = answer.get("headers") or {name: values[0] for name, values in answer["multiValueHeaders"].items()}
    assert answer["isBase64Encoded"] is False
    return answer["statusCode"], headers["pointsman-result"]


@pytest.mark.parametrize("execution_env", PYTHONS)
def test_every_http_event_runs_a_delivery(sandbox: Sandbox, execution_env: str) -> None:
    """C01: function URL, HTTP API, REST API with and without multi-value headers, load balancer, direct invoke: raw
    bytes verify."""
    runtime = sandbox.start(execution_env=execution_env)
    for kind in HTTP_EVENTS:
        dispatcher = sandbox.queued()
        assert result_of(runtime.invoke(sandbox.push(kind))) == (200, "settled"), kind.__name__
        assert dispatcher.result == b'"in!"'
    assert sandbox.marks == ["quick"] * len(HTTP_EVENTS)


@pytest.mark.parametrize("execution_env", PYTHONS)
@pytest.mark.parametrize("handler", ["functions.handler", "functions.over"])
def test_a_batch_of_an_sqs_event_source_runs_its_deliveries(sandbox: Sandbox, handler: str, execution_env: str) -> None:
    """What is settled is not among the failures; what does not verify is, and nothing is raised."""
    runtime = sandbox.start(handler, execution_env=execution_env)
    records = sandbox.push(events.sqs)["Records"]
    forged = {**records[0], "messageId": "m2", "body": records[0]["body"] + " "}
    invocation = runtime.invoke({"Records": [*records, forged]})

    assert (invocation.kind, invocation.payload) == ("response", {"batchItemFailures": [{"itemIdentifier": "m2"}]})
    assert sandbox.dispatcher.double.result == b'"in!"'
    assert sandbox.marks == ["quick"]


def test_a_mixed_batch_hands_the_user_its_own_messages_only(sandbox: Sandbox) -> None:
    """Everything else of the event stays as it was."""
    runtime = sandbox.start("functions.over")
    foreign = events.SQS["Records"][0]
    event = {**sandbox.push(events.sqs), "more": 1}
    event["Records"].append(foreign)
    answer = runtime.invoke(event).payload

    assert answer["theirs"] == {"Records": [foreign], "more": 1}
    assert answer["batchItemFailures"] == []
    assert sandbox.marks == ["quick"]


def test_a_load_balancer_finds_the_function_healthy(sandbox: Sandbox) -> None:
    """Its health check cannot be signed; it is answered, runs nothing, and is the user's where there is a handler."""
    answer = sandbox.start().invoke(events.HEALTH_CHECK).payload
    theirs = sandbox.start("functions.over").invoke(events.HEALTH_CHECK).payload

    assert (answer["statusCode"], answer["statusDescription"], answer["body"]) == (200, "200 OK", "ok")
    assert theirs["theirs"] == events.HEALTH_CHECK
    assert sandbox.dispatcher.double.requests == []


def test_unsigned_and_tampered_events_are_401(sandbox: Sandbox) -> None:
    """I12: no signature, null headers, null body, broken base64, a changed byte: one answer, nothing claimed."""
    runtime = sandbox.start()
    push = sandbox.push()
    tampered = [
        {**push, "headers": None},
        {**push, "headers": {}},
        {**push, "body": None, "isBase64Encoded": False},
        {**push, "body": "%%%"},
        {**push, "body": "e30="},
        {**push, "isBase64Encoded": False},
        {**push, "headers": {**push["headers"], "webhook-timestamp": "1e9"}},
    ]

    assert {result_of(runtime.invoke(event)) for event in tampered} == {(401, "unauthorized")}
    assert sandbox.dispatcher.double.requests == []


def test_a_captured_event_sent_again_executes_nothing(sandbox: Sandbox) -> None:
    """C07: the second copy is settled by the refused claim."""
    runtime = sandbox.start()
    push = sandbox.push()

    assert [result_of(runtime.invoke(push)) for _ in range(2)] == [(200, "settled")] * 2
    assert sandbox.marks == ["quick"]


def test_discovery_is_answered(sandbox: Sandbox) -> None:
    """The probe of a registration works on a function URL."""
    runtime = sandbox.start()
    body = msgspec.json.encode(messages.Discover("orders", sandbox.dispatcher.url))
    invocation = runtime.invoke(events.function_url(events.signed(body, "req_1"), body))
    discovered = json.loads(invocation.payload["body"])

    assert result_of(invocation) == (200, "discovered")
    assert [each["name"] for each in discovered["workflows"]] == [
        "order",
        "endless",
        "long",
        "untidy",
        "afterwards",
        "exiting",
    ]


@pytest.mark.parametrize("event", [events.SQS, events.S3, events.SCHEDULE, {}, [], "text", None])
def test_a_foreign_event_without_a_handler_is_a_clear_error(sandbox: Sandbox, event: Any) -> None:
    """The message says what came and what to do about it."""
    invocation = sandbox.start().invoke(event)

    assert invocation.kind == "error"
    assert invocation.payload["errorType"] == "ConfigurationError"
    assert "@endpoint.lambda_handler" in invocation.payload["errorMessage"]


@pytest.mark.parametrize("execution_env", PYTHONS)
def test_what_is_not_ours_passes_through_untouched(sandbox: Sandbox, execution_env: str) -> None:
    """Events, return values and exceptions of the user's handler, and HTTP requests that are not signed for us."""
    runtime = sandbox.start("functions.over", execution_env=execution_env)
    headers, body = events.headers_of(sandbox.dispatcher.double.delivery(url=sandbox.dispatcher.url))
    unsigned = events.function_url({"content-type": "application/json"}, body)
    foreign_webhook = events.function_url({**headers, "webhook-id": "msg_1"}, b'{"type": "invoice.paid"}')
    for event in (events.SQS, events.SCHEDULE, {}, [1], "text", None, unsigned, foreign_webhook):
        assert runtime.invoke(event).payload == {"theirs": event, "request": True}
    raised = runtime.invoke("raise")
    pushed = runtime.invoke(sandbox.push())

    assert (raised.kind, raised.payload["errorType"]) == ("error", "ValueError")
    assert raised.payload["errorMessage"] == "the user's own"
    assert result_of(pushed) == (200, "settled")


def test_an_async_handler_of_the_users_is_run(sandbox: Sandbox) -> None:
    """The runtime client cannot run `async def`; ours does, and leaves no task behind."""
    runtime = sandbox.start("functions.over_async")
    replies = [runtime.invoke({"n": number}).payload for number in range(3)]
    dispatcher = sandbox.queued("afterwards")
    pushed = runtime.invoke(sandbox.push())

    assert replies == [{"theirs": {"n": number}} for number in range(3)]
    assert result_of(pushed) == (200, "settled")
    assert dispatcher.result == b'"in"'
    assert sandbox.marks == []


def test_nothing_runs_after_the_handler_returned(sandbox: Sandbox) -> None:
    """The refresher is joined and left-over tasks cancelled before the answer; the next invocation meets neither."""
    runtime = sandbox.start("functions.over")
    for workflow in ("untidy", "afterwards"):
        sandbox.queued(workflow)
        assert result_of(runtime.invoke(sandbox.push())) == (200, "settled")

    assert "pointsman-refresher" not in runtime.invoke("threads").payload
    assert sandbox.marks == []


def test_exit_in_a_task_fails_the_run_and_keeps_the_sandbox(sandbox: Sandbox) -> None:
    """sys.exit in user code would leave the invocation without any answer."""
    runtime = sandbox.start()
    dispatcher = sandbox.queued("exiting")

    assert result_of(runtime.invoke(sandbox.push())) == (200, "settled")
    assert not isinstance(dispatcher.ending, messages.Complete)
    sandbox.queued()
    assert result_of(runtime.invoke(sandbox.push())) == (200, "settled")


def test_a_socket_that_died_while_frozen_costs_nothing(sandbox: Sandbox) -> None:
    """C56: the dispatcher closed the kept-alive connection meanwhile; the first call after the thaw succeeds."""
    runtime = sandbox.start()
    assert result_of(runtime.invoke(sandbox.push())) == (200, "settled")
    runtime.freeze()
    assert sandbox.dispatcher.hang_up() == 1
    dispatcher = sandbox.queued()
    invocation = runtime.start(sandbox.push())
    runtime.thaw()

    assert invocation.done.wait(10)
    assert result_of(invocation) == (200, "settled")
    assert len(dispatcher.sent("claim")) == 1


def test_a_sandbox_frozen_in_mid_step_is_fenced(sandbox: Sandbox) -> None:
    """C22: while it was stopped another executor took over; thawed, its first action is refused and it stops."""
    runtime = sandbox.start()
    dispatcher = sandbox.queued("long")
    frozen = threading.Event()

    def freeze() -> None:
        runtime.freeze()
        dispatcher.takes_over()
        dispatcher.before.clear()
        frozen.set()

    dispatcher.before["progress"] = freeze
    invocation = runtime.start(sandbox.push())
    assert frozen.wait(10)
    assert not invocation.done.is_set()
    runtime.thaw()

    assert invocation.done.wait(10)
    assert result_of(invocation) == (200, "settled")
    assert dispatcher.ending is None
    assert dispatcher.records == []
    assert sandbox.marks == ["pause"]


def test_a_run_longer_than_the_function_is_handed_off(sandbox: Sandbox) -> None:
    """At a task boundary inside the margin the run is released; invocation by invocation it completes."""
    runtime = sandbox.start(timeout=2)
    dispatcher = sandbox.queued("long")
    invocations = 0
    while not isinstance(dispatcher.ending, messages.Complete):
        assert result_of(runtime.invoke(sandbox.push())) == (200, "settled")
        invocations += 1
        if isinstance(dispatcher.ending, messages.Release):
            assert dispatcher.ending.reason == "handoff"
            dispatcher.requeue()
        assert invocations < 12

    assert invocations > 2
    assert sandbox.marks == ["pause"] * 8


def test_a_body_that_outlives_the_function_gets_no_ending(sandbox: Sandbox) -> None:
    """The timeout kills the sandbox in the middle of a body: no release was sent, recovery takes over."""
    runtime = sandbox.start(timeout=1.5)
    dispatcher = sandbox.queued("endless")
    invocation = runtime.invoke(sandbox.push())

    assert invocation.kind == "timeout"
    assert dispatcher.ending is None
    assert [record.name for record in dispatcher.records] == ["quick"]
    assert sandbox.marks == ["quick", "hang"]


def test_claims_are_refreshed_while_a_body_blocks(sandbox: Sandbox) -> None:
    """The refresher has its own thread: a body that never yields does not let the claim go stale."""
    runtime = sandbox.start(timeout=2)
    dispatcher = sandbox.queued("endless")
    dispatcher.idle_timeout_ms = 600
    runtime.invoke(sandbox.push())

    assert len(dispatcher.sent("refresh")) >= 3


@pytest.mark.parametrize("execution_env", PYTHONS)
@pytest.mark.parametrize(
    "environment",
    [{"POINTSMAN_SIGNING_SECRET": ""}, {"POINTSMAN_SIGNING_SECRET": "x"}, {"POINTSMAN_SIGNATURE_TOLERANCE": "NaN"}],
)
def test_a_wrong_set_up_is_an_init_error(sandbox: Sandbox, execution_env: str, environment: dict[str, str]) -> None:
    """A function that could verify nothing does not come up, and says why."""
    runtime = sandbox.start(environment=environment, execution_env=execution_env)
    runtime.process.wait(10)

    assert runtime.init_error["errorType"].endswith("ConfigurationError")
    assert "secret" in runtime.init_error["errorMessage"] or "POINTSMAN" in runtime.init_error["errorMessage"]
