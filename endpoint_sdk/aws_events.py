"""Which Lambda events are HTTP requests, and how each kind wants its answer.

Function URLs and HTTP APIs send payload 2.0, REST APIs (and HTTP APIs on request) payload 1.0, load balancers their
own relative of 1.0, and a direct invoke the signed message alone, {"pointsman": {"headers", "body"}}. Header names
come in any case, header maps may be null, bodies may be base64.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Struct

from endpoint_sdk.answers import HttpAnswer
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.wire import signature
from endpoint_sdk.wire.messages import Signed

_OUR_ID: Final = re.compile(r"(?:run_[0-9A-Z]{26}_[0-9]+|req_[0-9A-Z]{26})")
_OUR_TYPES: Final = ("run.ready", "endpoint.discover")
_HEALTH_CHECKER: Final = "ELB-HealthChecker/"


class _Typed(Struct):
    type: str = ""


_typed: Final = msgspec.json.Decoder(_Typed)


class HttpEvent(Struct, frozen=True):
    """An HTTP request as it arrived: *body* is the bytes the client sent."""

    method: str
    headers: list[tuple[str, str]]
    body: bytes
    multi_value: bool = False
    load_balancer: bool = False

    @property
    def health_check(self) -> bool:
        """Whether a load balancer asks if the function is there; it cannot sign that, and runs nothing."""
        agent = next((value for name, value in self.headers if name == "user-agent"), "")
        return self.load_balancer and self.method in ("GET", "HEAD") and agent.startswith(_HEALTH_CHECKER)

    @property
    def ours(self) -> bool:
        """Whether a dispatcher sent this: it is signed as a webhook, and its id or its body's type is one of ours."""
        found = {name: value for name, value in self.headers if name.startswith("webhook-")}
        if signature.HEADER_SIGNATURE not in found:
            return False
        return bool(_OUR_ID.fullmatch(found.get(signature.HEADER_ID, ""))) or _type(self.body) in _OUR_TYPES


def http_event(event: object) -> HttpEvent | None:
    """The HTTP request in *event*, None if it is something else.

    Raises ConfigurationError if something has parsed the body already: only the bytes as sent can be verified.
    """
    if not isinstance(event, Mapping):
        return None
    if isinstance(event.get("pointsman"), Mapping):
        return _direct(event["pointsman"])
    context = event.get("requestContext")
    if not isinstance(context, Mapping):
        return None
    http = context.get("http")
    if event.get("version") == "2.0" and isinstance(http, Mapping):
        return HttpEvent(str(http.get("method", "")), _headers(event), _body(event))
    if isinstance(event.get("httpMethod"), str):
        load_balancer = "elb" in context
        multi_value = load_balancer and isinstance(event.get("multiValueHeaders"), Mapping)
        return HttpEvent(event["httpMethod"], _headers(event), _body(event), multi_value, load_balancer)
    return None


def http_answer(event: HttpEvent, answer: HttpAnswer) -> dict[str, Any]:
    """*answer* as the source of *event* expects it."""
    headers: dict[str, Any] = (
        {"multiValueHeaders": {name: [value] for name, value in answer.headers.items()}}
        if event.multi_value
        else {"headers": dict(answer.headers)}
    )
    found: dict[str, Any] = {"statusCode": answer.status, **headers, "body": answer.body.decode("ascii")}
    if event.load_balancer:
        found["statusDescription"] = f"{answer.status} {HTTPStatus(answer.status).phrase}"
    return {**found, "isBase64Encoded": False}


def source(event: object) -> str:
    """What kind of event *event* is, for a message to whoever connected it."""
    records = event.get("Records") if isinstance(event, Mapping) else None
    if isinstance(records, list) and records and isinstance(records[0], Mapping):
        return f"records of {records[0].get('eventSource') or records[0].get('EventSource') or 'an unknown source'}"
    return "no HTTP request" if isinstance(event, Mapping) else f"a {type(event).__name__}"


def _direct(message: Mapping[str, Any]) -> HttpEvent | None:
    """A direct invoke, None if what calls itself one has another shape."""
    try:
        signed = msgspec.convert(message, Signed)
    except msgspec.ValidationError:
        return None
    return HttpEvent("POST", _headers({"headers": signed.headers}), _body({"body": signed.body}))


def _headers(event: Mapping[str, Any]) -> list[tuple[str, str]]:
    multiple = event.get("multiValueHeaders")
    if isinstance(multiple, Mapping) and multiple:
        pairs = [(name, value) for name, values in multiple.items() if isinstance(values, list) for value in values]
    else:
        single = event.get("headers")
        pairs = list(single.items()) if isinstance(single, Mapping) else []
    return [(name.lower(), value) for name, value in pairs if isinstance(name, str) and isinstance(value, str)]


def _body(event: Mapping[str, Any]) -> bytes:
    body = event.get("body")
    if body is None:
        return b""
    if not isinstance(body, str):
        raise ConfigurationError(
            f"the event's body is a {type(body).__name__}, not text: something parsed it before this handler, "
            "and a signature can only be verified over the bytes as sent"
        )
    if event.get("isBase64Encoded") is True:
        try:
            return base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            # Not what any gateway sends; what is left cannot verify, and is refused like all that cannot.
            return b""
    return body.encode("utf-8", "surrogatepass")


def _type(body: bytes) -> str:
    try:
        return _typed.decode(body).type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
