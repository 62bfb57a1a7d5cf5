"""What an endpoint answers; every answer names this SDK, its clock and one result of a fixed list."""

import json
import time
from typing import Any, Final, NamedTuple

from endpoint_sdk._version import __version__
from endpoint_sdk.wire import messages

SDK: Final = f"python/{__version__}"

_STATUS: Final[dict[messages.ResultHeader, int]] = {
    "settled": 200,
    "discovered": 200,
    "invalid": 400,
    "unauthorized": 401,
    "unknown-workflow": 404,
    "retry": 500,
    "busy": 503,
}


class HttpAnswer(NamedTuple):
    """An answer for the host to send: status, headers with lower-case names, body."""

    status: int
    headers: dict[str, str]
    body: bytes


def answer(
    result: messages.ResultHeader, body: bytes, *, status: int | None = None, retry_after: int | None = None
) -> HttpAnswer:
    """The answer for *result*; *body* is JSON."""
    headers = {
        "content-type": "application/json",
        messages.HEADER_SDK: SDK,
        messages.HEADER_CLOCK: str(time.time_ns() // 1_000_000),
        messages.HEADER_RESULT: result,
    }
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    return HttpAnswer(_STATUS[result] if status is None else status, headers, body)


def error(
    result: messages.ResultHeader,
    code: str,
    message: str,
    *,
    status: int | None = None,
    retry_after: int | None = None,
    details: dict[str, Any] | None = None,
) -> HttpAnswer:
    """The answer for *result* whose body is an error object."""
    body: dict[str, Any] = {"code": code, "message": message}
    if details is not None:
        body["details"] = details
    return answer(result, encode({"error": body}), status=status, retry_after=retry_after)


def alive() -> HttpAnswer:
    """The answer to a health check: the function runs, which is all it says."""
    return HttpAnswer(200, {"content-type": "text/plain", messages.HEADER_SDK: SDK}, b"ok")


def too_large(limit: int) -> HttpAnswer:
    """The answer to a body that is larger than *limit* bytes, which was not read."""
    return error("invalid", "body_too_large", f"the body is larger than {limit} bytes", status=413)


def encode(value: object) -> bytes:
    """*value* as ASCII JSON, which no gateway can mangle."""
    return json.dumps(value, separators=(",", ":")).encode()
