"""Asking an endpoint, with a signed request, what it serves; and saying in words why it does not answer.

endpoint_url_refused   nothing was sent
endpoint_unreachable   nobody answered, or somebody before the endpoint did (a gateway, a policy)
not_an_sdk_answer      a web server answered that knows nothing of us
signature_mismatch     our SDK is there with another secret
clock_skew             our SDK is there, its clock too far from ours
wrong_audience         our SDK is there under another name
endpoint_busy          our SDK is there and takes nothing now
endpoint_refused       our SDK is there and refused for another reason
"""

import json
import time
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from endpoint_sdk.transport.errors import BadAnswer, ConnectFailed, TransportError
from endpoint_sdk.transport.http1 import Answer
from endpoint_sdk.wire import identity, messages, signature
from publishers import policy, post
from publishers.base import Target
from publishers.post import Transport

PROBE_SECONDS: Final = 5.0

_CONNECT: Final[dict[str, str]] = {
    "dns": "its host name does not resolve",
    "refused": "nothing listens there",
    "timeout": "no connection within 5 s",
    "tls": "the TLS handshake failed",
    "unreachable": "no connection could be made",
}
_discovered: Final = msgspec.json.Decoder(messages.Discovered)


class ProbeResult(Struct, frozen=True):
    """What a probe found: `discovered` when `ok`, else `code` and a `message` that names the cause."""

    ok: bool
    code: str | None
    message: str | None
    status: int | None
    ms: int
    discovered: messages.Discovered | None = None


async def probe(
    target: Target,
    transport: Transport,
    url_of_dispatcher: str,
    audience: str,
    *,
    now: Callable[[], float] = time.time,
) -> ProbeResult:
    """What *target* answers to a signed discovery request, within 5 s in all; never raises for what it answers."""
    body = json.dumps({"type": "endpoint.discover", "audience": audience, "url": url_of_dispatcher}).encode()
    started = time.monotonic()
    status, found = None, None
    try:
        answer = await post.signed(
            target, transport, identity.new("req"), body, now=now(), timeout=PROBE_SECONDS, resend_idle=True
        )
    except post.UrlRefused as error:
        fault: tuple[str, str] | None = ("endpoint_url_refused", f"Nothing was sent: {error}.")
    except TransportError as error:
        fault = _unanswered(error)
    else:
        status, found = answer.status, _read(answer)
        fault = _fault(answer, target) if found is None else None
    code, message = fault or (None, None)
    return ProbeResult(found is not None, code, message, status, int((time.monotonic() - started) * 1000), found)


def _read(answer: Answer) -> messages.Discovered | None:
    if policy.result_of(answer) != "discovered":
        return None
    try:
        return _discovered.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _unanswered(error: TransportError) -> tuple[str, str]:
    if isinstance(error, ConnectFailed):
        return "endpoint_unreachable", f"The endpoint cannot be reached: {_CONNECT[error.cause]} ({error})."
    if isinstance(error, BadAnswer):
        return "not_an_sdk_answer", f"What answers there is no endpoint of ours: {error}."
    return "endpoint_unreachable", f"The endpoint took the connection and did not answer: {error}."


def _fault(answer: Answer, target: Target) -> tuple[str, str]:
    result = policy.result_of(answer)
    if result is None:
        return _foreign(answer)
    error = policy.error_of(answer)
    code = error.code if error else result
    if result == "unauthorized":
        return _unauthorized(error, target)
    if code == "wrong_audience":
        return code, f"The endpoint is set up under another name than {target.name!r} (POINTSMAN_ENDPOINT)."
    if result == "busy":
        return "endpoint_busy", "The endpoint is there and takes nothing now; test it again later."
    if result == "discovered":
        return (
            "not_an_sdk_answer",
            "The endpoint's answer to discovery cannot be read: an SDK this server does not know?",
        )
    shown = code if result in policy.BY_RESULT else "with a result this server does not know"
    return "endpoint_refused", f"The endpoint answered {answer.status} {shown} to discovery."


def _unauthorized(error: messages.ErrorBody | None, target: Target) -> tuple[str, str]:
    details = (error.details if error else None) or {}
    if details.get("reason") in ("too_old", "too_new"):
        return "clock_skew", "The endpoint's clock is too far from this server's to accept a signature."
    ours = " and ".join(f"…{signature.hint(key)}" for key in target.secrets)
    hint = details.get("keyHint")
    theirs = f" (ends …{hint})" if isinstance(hint, str) and len(hint) == 4 and hint.isprintable() else ""
    return (
        "signature_mismatch",
        f"The probe reached the SDK, whose secret{theirs} is none of those this server signs with (ends {ours}).",
    )


def _foreign(answer: Answer) -> tuple[str, str]:
    said = f"status {answer.status}{_head(answer.body)}"
    if answer.status < 400:
        return "not_an_sdk_answer", f"Answered with {said}, without our header: nothing was run. Is the path right?"
    if answer.status in (401, 403) and any(name.startswith(("x-amzn-", "x-amz-")) for name in answer.headers):
        check = "check the function URL's auth type and its resource policy"
        return "endpoint_unreachable", f"AWS refused the request before it reached the endpoint ({said}): {check}."
    return "endpoint_unreachable", f"Something before the endpoint answered with {said}."


def _head(body: bytes) -> str:
    text = "".join(char for char in body[:100].decode("utf-8", "replace") if char.isprintable()).strip()
    return f" ({text})" if text else ""
