"""What a probe says of the endpoints it meets."""

import json
from typing import Any

import pytest

from endpoint_sdk.transport import errors
from endpoint_sdk.transport.http1 import Answer
from endpoint_sdk.wire import signature
from endpoint_sdk.wire.messages import Discovered, ServedWorkflow
from publishers import discovery
from publishers.base import Target
from publishers.discovery import ProbeResult

KEYS = (signature.parse_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),)
NOW = 1_800_000_000.0
TARGET = Target("orders", "https://orders.example/hook", "generic", KEYS)
SERVED = {"sdk": "python/0.1.0", "buildId": "b1", "workflows": [{"name": "order", "version": "1", "accepts": ["0"]}]}


class Recording:
    """A transport that gives one result and keeps what it was asked."""

    def __init__(self, result: Answer | Exception) -> None:
        self.result = result
        self.calls: list[tuple[str, str, dict[str, str], bytes, dict[str, Any]]] = []

    async def request(self, method: str, url: str, headers: dict[str, str], body: bytes, **options: Any) -> Answer:
        self.calls.append((method, url, headers, body, options))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def ours(result: str, status: int, body: Any) -> Answer:
    """An answer of our SDK."""
    return Answer(status, {"pointsman-result": result}, json.dumps(body).encode())


def refusal(result: str, status: int, code: str, **details: str) -> Answer:
    """A refusal of our SDK."""
    return ours(result, status, {"error": {"code": code, "message": "m", "details": details}})


async def probe(result: Answer | Exception, target: Target = TARGET) -> ProbeResult:
    """What a probe makes of *result*."""
    transport = Recording(result)
    return await discovery.probe(target, transport, "https://pointsman.example", "orders", now=lambda: NOW)


async def test_what_is_served_is_found() -> None:
    """A good answer lists workflows with their versions."""
    found = await probe(ours("discovered", 200, SERVED))
    assert (found.ok, found.code, found.message, found.status) == (True, None, None, 200)
    assert found.discovered == Discovered("python/0.1.0", "b1", [ServedWorkflow("order", "1", ["0"])])


async def test_a_probe_is_a_signed_discovery_within_5_seconds() -> None:
    """C44: the probe is signed like a delivery and answered, or explained, within 5 s."""
    transport = Recording(ours("discovered", 200, SERVED))
    await discovery.probe(TARGET, transport, "https://pointsman.example", "orders", now=lambda: NOW)
    [(method, url, headers, body, options)] = transport.calls
    assert (method, url, options["timeout"], options["connect_timeout"]) == ("POST", TARGET.url, 5.0, 5.0)
    assert headers["webhook-id"].startswith("req_")
    signature.verify(KEYS, headers, body, NOW)
    expected = {"type": "endpoint.discover", "audience": "orders", "url": "https://pointsman.example"}
    assert json.loads(body) == expected


FAULTS = [
    (errors.ConnectFailed("x", "dns"), "endpoint_unreachable", "does not resolve"),
    (errors.ConnectFailed("x", "refused"), "endpoint_unreachable", "nothing listens"),
    (errors.ConnectFailed("x", "timeout"), "endpoint_unreachable", "within 5 s"),
    (errors.ConnectFailed("x", "tls"), "endpoint_unreachable", "TLS"),
    (errors.ConnectFailed("x", "unreachable"), "endpoint_unreachable", "no connection"),
    (errors.AnswerTimeout("x"), "endpoint_unreachable", "did not answer"),
    (errors.ResetAfterSend("x"), "endpoint_unreachable", "did not answer"),
    (errors.BadAnswer("x"), "not_an_sdk_answer", "no endpoint of ours"),
    (Answer(200, {}, b"<h1>Welcome</h1>"), "not_an_sdk_answer", "<h1>Welcome</h1>"),
    (Answer(302, {"location": "/login"}, b""), "not_an_sdk_answer", "Is the path right"),
    (Answer(404, {}, b"nginx"), "endpoint_unreachable", "status 404 (nginx)"),
    (Answer(502, {}, b""), "endpoint_unreachable", "status 502"),
    (Answer(403, {"x-amzn-errortype": "AccessDeniedException"}, b"{}"), "endpoint_unreachable", "AWS refused"),
    (ours("discovered", 200, {"sdk": 1}), "not_an_sdk_answer", "cannot be read"),
    (refusal("unauthorized", 401, "unauthorized", reason="no_matching_signature", keyHint="x7Qd"),
     "signature_mismatch", "(ends …x7Qd) is none of those this server signs with (ends …LaSw)"),
    (refusal("unauthorized", 401, "unauthorized", keyHint="much too long"), "signature_mismatch", "secret is none"),
    (Answer(401, {"pointsman-result": "unauthorized"}, b""), "signature_mismatch", "secret is none"),
    (refusal("unauthorized", 401, "unauthorized", reason="too_old"), "clock_skew", "clock"),
    (refusal("unauthorized", 401, "unauthorized", reason="too_new"), "clock_skew", "clock"),
    (refusal("invalid", 400, "wrong_audience"), "wrong_audience", "another name than 'orders'"),
    (refusal("busy", 503, "busy"), "endpoint_busy", "takes nothing now"),
    (refusal("invalid", 400, "malformed"), "endpoint_refused", "400 malformed"),
]  # fmt: skip


@pytest.mark.parametrize(("result", "code", "words"), FAULTS, ids=range(len(FAULTS)))
async def test_each_fault_names_its_cause(result: Answer | Exception, code: str, words: str) -> None:
    """C44: what stands between us and an answer has a code, and words for it."""
    found = await probe(result)
    assert (found.ok, found.code, found.discovered) == (False, code, None)
    assert found.message is not None
    assert words in found.message
    assert found.status == (result.status if isinstance(result, Answer) else None)


@pytest.mark.parametrize("url", ["http://orders.example/", "https://u:p@orders.example/", "gopher://x"])
async def test_a_refused_url_is_not_probed(url: str) -> None:
    """Where we may not push we do not probe; the words hold no URL."""
    transport = Recording(ValueError("not an absolute http or https URL"))
    found = await discovery.probe(Target("t", url, "generic", KEYS), transport, "https://p.example", "t")
    assert (found.ok, found.code) == (False, "endpoint_url_refused")
    assert url not in str(found.message)


async def test_codes_of_endpoints_are_not_believed() -> None:
    """An error code an endpoint makes up cannot pass as one of ours, nor carry text."""
    found = await probe(refusal("invalid", 400, "signature mismatch <script>"))
    assert found.code == "endpoint_refused"
    assert "<script>" not in str(found.message)
