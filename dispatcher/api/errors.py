"""Refusals and crashes as answers: `{"error": {code, message, hint, requestId, details}}`."""

import logging
import traceback
from typing import Final

import msgspec

from dispatcher import errors
from dispatcher.api.call import Answer
from endpoint_sdk.wire.messages import ErrorAnswer, ErrorBody

INTERNAL: Final = "internal"

log = logging.getLogger(__name__)


def body(refusal: errors.Refusal, request_id: str) -> ErrorBody:
    """The error object of *refusal*."""
    return ErrorBody(refusal.code, refusal.message, refusal.hint, request_id, refusal.details)


def refused(refusal: errors.Refusal, request_id: str) -> Answer:
    """The answer to a refused request, with Retry-After, Allow and Connection where they belong."""
    headers: list[tuple[bytes, bytes]] = []
    if refusal.retry_after is not None:
        headers.append((b"retry-after", str(refusal.retry_after).encode()))
    if isinstance(refusal, errors.MethodNotAllowed) and refusal.details is not None:
        headers.append((b"allow", ", ".join(refusal.details["allow"]).encode()))
    if isinstance(refusal, errors.Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.code == "body_too_large":
        headers.append((b"connection", b"close"))  # what follows of the body is not read
    return Answer(refusal.status, msgspec.json.encode(ErrorAnswer(body(refusal, request_id))), tuple(headers))


def crashed(error: Exception, request_id: str, path: str) -> Answer:
    """The answer to a request that hit a bug; logged with its place, never with a message that may hold a payload."""
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error(
        "request crashed", extra={"request_id": request_id, "path": path, "error": type(error).__name__, "at": where}
    )
    told = ErrorBody(
        INTERNAL, "The dispatcher failed at this request.", f"Look for {request_id} in its log.", request_id
    )
    return Answer(500, msgspec.json.encode(ErrorAnswer(told)))
