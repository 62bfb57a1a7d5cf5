"""What an answer to a push means, as tables: one pure function from answer, or failure to get one, to Outcome.

An answer that carries `pointsman-result` is judged by it, whatever its status. Without it no code of ours ran, and the
status speaks. A request that was sent and got no answer is no failure: if an executor took it, its claim will arrive.
The relay applies an outcome only while the push is unclaimed: a claim decides before any answer.
"""

import re
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

import msgspec

from endpoint_sdk.transport import errors
from endpoint_sdk.transport.http1 import Answer
from endpoint_sdk.wire import messages
from publishers.base import Kind, Outcome

CONFIGURATION_ERROR_MS: Final = 300_000
RETRY_MS: Final = 5_000
SHORTEST_THROTTLE_MS: Final = 1_000
LONGEST_THROTTLE_MS: Final = 3_600_000

_CODE: Final = re.compile(r"[a-z0-9_]{1,64}")
_SECONDS: Final = re.compile(r"[0-9]{1,10}")
_error: Final = msgspec.json.Decoder(messages.ErrorAnswer)


class Row(NamedTuple):
    """One row of the policy; `throttle` honours Retry-After."""

    name: str
    kind: Kind
    counted: bool = False
    delay_ms: int | None = None
    throttle: bool = False


BY_RESULT: Final[dict[str, Row]] = {
    "settled": Row("settled", "published"),
    "busy": Row("busy", "deferred", throttle=True),
    "retry": Row("retry", "failed", delay_ms=RETRY_MS),
    "unknown-workflow": Row("unknown-workflow", "declined"),
    "unauthorized": Row("unauthorized", "failed", delay_ms=CONFIGURATION_ERROR_MS),
    "invalid": Row("invalid", "failed", counted=True, delay_ms=CONFIGURATION_ERROR_MS),
}

_AUTH: Final = Row("auth", "failed", delay_ms=CONFIGURATION_ERROR_MS)
_THROTTLED: Final = Row("throttled", "deferred", throttle=True)

BY_STATUS: Final[dict[int, Row]] = {
    401: _AUTH,
    403: _AUTH,
    # Full, not broken: a Lambda at its concurrency answers 429, and minutes of silence would be the wrong reply.
    408: _THROTTLED,
    425: _THROTTLED,
    429: _THROTTLED,
    504: Row("gateway-timeout", "published"),
}

BY_CLASS: Final[dict[int, Row]] = {
    2: Row("no-header", "failed", counted=True, delay_ms=CONFIGURATION_ERROR_MS),
    3: Row("no-header", "failed", counted=True, delay_ms=CONFIGURATION_ERROR_MS),
    4: Row("client-error", "failed", counted=True, delay_ms=CONFIGURATION_ERROR_MS),
    5: Row("server-error", "failed", counted=True),
}

BY_FAILURE: Final[dict[type[errors.TransportError], Row]] = {
    errors.ConnectFailed: Row("connect", "failed"),
    errors.SendFailed: Row("send", "failed"),
    # At once, under the next push number: the relay's compare-and-set makes sure nobody claimed this one meanwhile.
    errors.ResetIdle: Row("reset-idle", "deferred", delay_ms=0),
    errors.ResetAfterSend: Row("reset", "published"),
    errors.AnswerTimeout: Row("timeout", "published"),
    errors.BadAnswer: Row("bad-answer", "failed", counted=True, delay_ms=CONFIGURATION_ERROR_MS),
}

URL_REFUSED: Final = Row("url-refused", "failed", delay_ms=CONFIGURATION_ERROR_MS)


def judge(answer: Answer | errors.TransportError, now: float) -> Outcome:
    """The outcome of a push that got *answer*; *now* in seconds since the epoch, for a Retry-After that is a date."""
    if isinstance(answer, errors.TransportError):
        return not_answered(_failure(answer), str(answer))
    row = _row(answer)
    delay_ms = retry_after_ms(answer.headers.get("retry-after"), now) if row.throttle else row.delay_ms
    return Outcome(row.kind, row.name, row.counted, delay_ms, answer.status, _detail(answer))


def not_answered(row: Row, detail: str) -> Outcome:
    """The outcome of a push that *row* applies to and nobody answered."""
    return Outcome(row.kind, row.name, row.counted, row.delay_ms, detail=detail[:200])


def retry_after_ms(value: str | None, now: float) -> int | None:
    """The wait a Retry-After header asks for, in seconds or as a date, clamped to 1 s … 1 h; None without one."""
    if value is None:
        return None
    if _SECONDS.fullmatch(value):
        wait_ms = int(value) * 1000
    else:
        try:
            wait_ms = int((parsedate_to_datetime(value).timestamp() - now) * 1000)
        except (ValueError, OverflowError, OSError):
            return None
    return min(max(wait_ms, SHORTEST_THROTTLE_MS), LONGEST_THROTTLE_MS)


def result_of(answer: Answer) -> str | None:
    """The `pointsman-result` of *answer*; None when no SDK of ours gave it."""
    return answer.headers.get(messages.HEADER_RESULT)


def error_of(answer: Answer) -> messages.ErrorBody | None:
    """The error object in *answer*, if there is one with a proper code."""
    try:
        error = _error.decode(answer.body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return error if _CODE.fullmatch(error.code) else None


def _row(answer: Answer) -> Row:
    # A result that is no answer to a delivery says as little as none.
    row = BY_RESULT.get(result_of(answer) or "")
    if row is None:
        row = BY_STATUS.get(answer.status) or BY_CLASS.get(answer.status // 100) or BY_CLASS[5]
    return row


def _failure(error: errors.TransportError) -> Row:
    if isinstance(error, errors.AnswerTimeout) and not error.sent:
        return BY_FAILURE[errors.SendFailed]
    return BY_FAILURE[type(error)]


def _detail(answer: Answer) -> str:
    error = error_of(answer) if result_of(answer) else None
    return f"status {answer.status}" if error is None else f"status {answer.status}, {error.code}"
