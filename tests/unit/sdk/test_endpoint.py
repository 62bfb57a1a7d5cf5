"""endpoint_sdk.endpoint: what is answered to whom, whatever arrives."""

import asyncio
import json
import time
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from endpoint_sdk import monotonic
from endpoint_sdk._version import __version__
from endpoint_sdk.answers import HttpAnswer
from endpoint_sdk.endpoint import Endpoint
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.wire import limits, messages, signature
from tests.unit.sdk.dispatcher_double import DispatcherDouble, unreachable
from tests.unit.sdk.pushes import SECRET, bodies, deliver, endpoint, order, pushed, signed


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    bodies.clear()


def code_of(answer: HttpAnswer) -> str:
    return str(json.loads(answer.body)["error"]["code"])


async def test_a_delivery_runs_to_its_settled_end() -> None:
    """200 settled, once the run is completed at the dispatcher."""
    dispatcher = DispatcherDouble()
    answer = await deliver(endpoint(dispatcher), pushed(dispatcher))

    assert (answer.status, answer.headers["pointsman-result"]) == (200, "settled")
    assert dispatcher.result == b'"in"'
    assert bodies == ["in"]


async def test_every_answer_names_sdk_clock_and_result() -> None:
    """The three headers are on refusals as on successes."""
    before = time.time_ns() // 1_000_000
    answer = await endpoint().handle("POST", {}, b"")

    assert answer.headers["pointsman-sdk"] == f"python/{__version__}"
    assert before <= int(answer.headers["pointsman-clock"]) <= time.time_ns() // 1_000_000
    assert answer.headers["pointsman-result"] == "unauthorized"


async def test_a_captured_request_sent_again_executes_nothing() -> None:
    """C07: a replay within the tolerance is settled by the refused claim, after the run finished too."""
    dispatcher = DispatcherDouble()
    body = pushed(dispatcher)
    headers = signed(body)
    one = endpoint(dispatcher)
    first = await one.handle("POST", headers, body)
    again = await one.handle("POST", headers, body)
    one.executor.stop_refreshing()

    assert first.headers["pointsman-result"] == again.headers["pointsman-result"] == "settled"
    assert bodies == ["in"]


async def test_an_old_captured_request_is_unauthorized() -> None:
    """C07: after the tolerance not even the claim is tried."""
    dispatcher = DispatcherDouble()
    answer = await deliver(endpoint(dispatcher), pushed(dispatcher), age=600)

    assert (answer.status, code_of(answer)) == (401, "unauthorized")
    assert dispatcher.requests == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "QUERY"])
async def test_a_signed_request_with_an_empty_body_verifies(method: str) -> None:
    """C08: any method, no body: the signature is checked over exactly what arrived, and what is asked is invalid."""
    answer = await endpoint().handle(method, signed(b""), b"")

    assert (answer.status, answer.headers["pointsman-result"]) == (400, "invalid")


async def test_the_received_bytes_are_verified() -> None:
    """C01: the same JSON with other white space is another message."""
    dispatcher = DispatcherDouble()
    body = pushed(dispatcher)
    answer = await endpoint(dispatcher).handle("POST", signed(body), json.dumps(json.loads(body)).encode())

    assert answer.status == 401
    assert bodies == []


async def test_a_parsed_body_is_a_set_up_error() -> None:
    """C01: an adapter that lost the bytes hears so, instead of refusing every delivery."""
    with pytest.raises(ConfigurationError, match="bytes"):
        await endpoint().handle("POST", {}, {"type": "run.ready"})  # type: ignore[arg-type]


async def test_an_unknown_workflow_or_version_is_refused_before_the_claim() -> None:
    """The run stays queued for an executor that knows it."""
    dispatcher = DispatcherDouble()
    for changes in ({"workflow": "refund"}, {"version": "3"}):
        answer = await deliver(endpoint(dispatcher), pushed(dispatcher, **changes))
        assert (answer.status, answer.headers["pointsman-result"]) == (404, "unknown-workflow")
    assert dispatcher.requests == []


async def test_an_accepted_older_version_is_served() -> None:
    """`accepts` lets the new code continue old runs."""
    dispatcher = DispatcherDouble(version="1")

    assert (await deliver(endpoint(dispatcher), pushed(dispatcher))).status == 200


async def test_another_audience_is_refused_before_the_claim() -> None:
    """A message for another endpoint that shares the secret runs nothing here."""
    dispatcher = DispatcherDouble()
    answer = await deliver(endpoint(dispatcher, name="returns"), pushed(dispatcher))

    assert (answer.status, answer.headers["pointsman-result"]) == (400, "invalid")
    assert code_of(answer) == "wrong_audience"
    assert dispatcher.requests == []


async def test_the_audience_may_be_one_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """POINTSMAN_ENDPOINT is a set; without one every audience is taken."""
    monkeypatch.setenv("POINTSMAN_ENDPOINT", "returns orders")
    dispatcher = DispatcherDouble()

    assert (await deliver(endpoint(dispatcher), pushed(dispatcher))).status == 200


@pytest.mark.parametrize(
    "changes",
    [
        {"token": ""},
        {"token": "pmc_x\r\nx-admin: 1"},
        {"token": "pmc_\u00fc"},
        {"url": "ftp://d"},
        {"url": "http://"},
        {"url": "http://d/\r\n"},
        {"url": "http://[::1"},
    ],
)
async def test_a_delivery_that_cannot_be_claimed_is_invalid(changes: dict[str, str]) -> None:
    """I13: what no request could be made of is refused, before anything is sent."""
    dispatcher = DispatcherDouble()
    answer = await deliver(endpoint(dispatcher), pushed(dispatcher, **changes))

    assert (answer.status, answer.headers["pointsman-result"]) == (400, "invalid")
    assert dispatcher.requests == []


async def test_a_fault_of_the_sdk_means_retry(caplog: pytest.LogCaptureFixture) -> None:
    """What nobody foresaw is logged, answered 500 retry, and leaves no claim refreshed."""
    dispatcher = DispatcherDouble()

    def fault(proceed: object) -> Any:
        raise KeyError("bug")

    dispatcher.faults["claim"].append(fault)
    answer = await deliver(endpoint(dispatcher), pushed(dispatcher))

    assert (answer.status, answer.headers["pointsman-result"]) == (500, "retry")
    assert "fault of the SDK" in caplog.text


@pytest.mark.parametrize("workflows", [[], None, [len], order])
def test_what_is_no_list_of_workflows_is_refused(workflows: Any) -> None:
    """An endpoint that serves nothing, or something else, does not start."""
    with pytest.raises(ConfigurationError):
        Endpoint(workflows, secret=SECRET)


async def test_a_full_endpoint_is_busy() -> None:
    """503 with Retry-After, and nothing is claimed."""
    one = endpoint(max_concurrent_runs=1)
    gate = asyncio.Event()
    one.executor._running[object()] = asyncio.create_task(gate.wait())  # type: ignore[index, arg-type]
    answer = await deliver(one, pushed(DispatcherDouble()))
    gate.set()

    assert (answer.status, answer.headers["pointsman-result"], answer.headers["retry-after"]) == (503, "busy", "1")


async def test_a_draining_endpoint_is_busy() -> None:
    """After a drain began nothing more is taken."""
    one = endpoint()
    one.executor.drain()

    assert (await deliver(one, pushed(DispatcherDouble()))).status == 503


async def test_no_time_left_is_not_no_limit() -> None:
    """C21: a remaining time of zero is zero: nothing is claimed."""
    dispatcher = DispatcherDouble()
    body = pushed(dispatcher)
    answer = await endpoint(dispatcher).handle("POST", signed(body), body, lambda: timedelta(0))

    assert answer.headers["pointsman-result"] == "busy"
    assert dispatcher.requests == []


async def test_an_unreachable_dispatcher_means_retry() -> None:
    """500 retry: the delivery is worth sending again."""
    dispatcher = DispatcherDouble()
    dispatcher.faults["claim"].append(unreachable)
    left = [timedelta(seconds=9)]
    dispatcher.before["claim"] = lambda: left.append(timedelta(0))
    body = pushed(dispatcher)
    answer = await endpoint(dispatcher).handle("POST", signed(body), body, lambda: left[-1])

    assert (answer.status, answer.headers["pointsman-result"]) == (500, "retry")


async def test_discovery_lists_what_is_served() -> None:
    """Workflows with versions and accepts, the build, the longest request, the secret's last four characters."""
    body = msgspec.json.encode(messages.Discover("orders", "http://d"))
    one = endpoint(max_duration=timedelta(seconds=29))
    answer = await one.handle("POST", signed(body, message_id="req_1"), body)
    discovered = msgspec.json.decode(answer.body, type=messages.Discovered)

    assert (answer.status, answer.headers["pointsman-result"]) == (200, "discovered")
    assert discovered.workflows == [messages.ServedWorkflow("order", "2", ["1"])]
    assert discovered.max_duration_ms == 29_000
    assert discovered.key_hint == signature.hint(SECRET)
    assert discovered.build_id == endpoint().discovered().build_id


async def test_a_refused_signature_names_at_most_four_characters_of_the_secret() -> None:
    """The probe can say which secret this endpoint has; nobody learns more."""
    answer = await endpoint().handle("POST", signed(b"x", key=b"k" * 24), b"x")
    details = json.loads(answer.body)["error"]["details"]

    assert details == {"reason": "no_matching_signature", "keyHint": signature.hint(SECRET)}
    assert len(details["keyHint"]) <= 4


async def test_a_body_over_the_limit_is_refused_unread() -> None:
    """413 invalid, before any hashing."""
    answer = await endpoint().handle("POST", {}, b"x" * (limits.MAX_BODY + 1))

    assert (answer.status, answer.headers["pointsman-result"]) == (413, "invalid")


async def test_a_secret_from_a_function_is_fetched_once() -> None:
    """The first delivery fetches it, off the event loop; the next uses it."""
    calls: list[int] = []

    def fetch() -> str:
        calls.append(1)
        return SECRET

    dispatcher = DispatcherDouble()
    one = endpoint(dispatcher, secret=fetch)
    await deliver(one, pushed(dispatcher))
    await deliver(one, b"{}")

    assert calls == [1]
    assert bodies == ["in"]


async def test_a_secret_that_cannot_be_had_means_retry(caplog: pytest.LogCaptureFixture) -> None:
    """The sender is not told that its signature is wrong."""

    def fetch() -> str:
        raise OSError("secret store down")

    answer = await deliver(endpoint(secret=fetch), b"{}")

    assert (answer.status, answer.headers["pointsman-result"]) == (500, "retry")
    assert "secret store down" not in answer.body.decode()
    assert "cannot be had" in caplog.text


@pytest.mark.parametrize(("age", "ok"), [(299, True), (-299, True), (301, False), (-302, False)])
async def test_the_tolerance_is_five_minutes_both_ways(age: int, ok: bool) -> None:
    """C02: 299 s early or late is accepted, beyond 300 s refused."""
    answer = await endpoint().handle("POST", signed(b"{}", age=age), b"{}")

    assert answer.status == (400 if ok else 401)


async def test_a_tolerance_of_zero_means_zero() -> None:
    """C02: it is neither "off" nor "the default"."""
    answer = await endpoint(tolerance=0).handle("POST", signed(b"{}", age=2), b"{}")

    assert answer.status == 401


@pytest.mark.parametrize(
    ("longest", "host", "limit"),
    [(None, None, None), (10, None, 10), (None, 5, 5), (10, 5, 5), (3, 5, 3)],
)
def test_the_time_budget_is_the_shorter_of_host_and_configuration(
    longest: float | None, host: float | None, limit: float | None
) -> None:
    """`max_duration` bounds a request where the host does not, and beats it where it is shorter."""
    seconds = None if host is None else timedelta(seconds=host)
    one = endpoint(max_duration=None if longest is None else timedelta(seconds=longest))
    left = one._budget(lambda: seconds, monotonic.now())()

    assert (left is None) == (limit is None)
    assert left is None or limit is None or limit - 1 < left.total_seconds() <= limit
