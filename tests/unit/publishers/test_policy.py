"""One test for each row of the push policy."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint_sdk.transport import errors
from endpoint_sdk.transport.http1 import Answer
from publishers import policy
from publishers.base import Outcome

NOW = 1_800_000_000.0
FIVE_MINUTES = 300_000


def sdk(result: str, status: int, *, retry_after: str | None = None, code: str | None = None) -> Answer:
    """An answer of our SDK."""
    headers = {"pointsman-sdk": "python/0.1.0", "pointsman-result": result}
    if retry_after is not None:
        headers["retry-after"] = retry_after
    body = b"" if code is None else json.dumps({"error": {"code": code, "message": "m"}}).encode()
    return Answer(status, headers, body)


def other(status: int, **headers: str) -> Answer:
    """An answer that no SDK of ours gave."""
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, b"<html>")


SDK_ROWS = [
    (sdk("settled", 200), Outcome("published", "settled", status=200, detail="status 200")),
    (
        sdk("busy", 503, retry_after="7", code="busy"),
        Outcome("deferred", "busy", delay_ms=7_000, status=503, detail="status 503, busy"),
    ),
    (sdk("busy", 503), Outcome("deferred", "busy", status=503, detail="status 503")),
    (sdk("retry", 500), Outcome("failed", "retry", delay_ms=5_000, status=500, detail="status 500")),
    (sdk("unknown-workflow", 404), Outcome("declined", "unknown-workflow", status=404, detail="status 404")),
    (
        sdk("unauthorized", 401, code="unauthorized"),
        Outcome("failed", "unauthorized", False, FIVE_MINUTES, 401, "status 401, unauthorized"),
    ),
    (
        sdk("invalid", 400, code="wrong_audience"),
        Outcome("failed", "invalid", True, FIVE_MINUTES, 400, "status 400, wrong_audience"),
    ),
]


@pytest.mark.parametrize(("answer", "expected"), SDK_ROWS, ids=[row.row for _, row in SDK_ROWS])
def test_an_answer_of_ours_is_judged_by_its_result(answer: Answer, expected: Outcome) -> None:
    """Each result has its row."""
    assert policy.judge(answer, NOW) == expected


@pytest.mark.parametrize("status", [200, 302, 401, 404, 429, 500, 502, 504])
def test_the_result_beats_the_status(status: int) -> None:
    """An answer of ours means the same whatever a gateway made of its status."""
    assert policy.judge(sdk("settled", status), NOW).kind == "published"
    assert policy.judge(sdk("unknown-workflow", status), NOW).kind == "declined"
    assert policy.judge(sdk("retry", status), NOW).delay_ms == 5_000


@pytest.mark.parametrize("result", ["discovered", "done", "", "settled, settled", "SETTLED"])
def test_a_result_that_answers_no_delivery_is_none(result: str) -> None:
    """Results we do not know, or not for a delivery, leave the status to speak."""
    assert policy.judge(sdk(result, 200), NOW).row == "no-header"


OTHER_ROWS = [
    (200, Outcome("failed", "no-header", True, FIVE_MINUTES)),
    (204, Outcome("failed", "no-header", True, FIVE_MINUTES)),
    (301, Outcome("failed", "no-header", True, FIVE_MINUTES)),
    (307, Outcome("failed", "no-header", True, FIVE_MINUTES)),
    (400, Outcome("failed", "client-error", True, FIVE_MINUTES)),
    (401, Outcome("failed", "auth", False, FIVE_MINUTES)),
    (403, Outcome("failed", "auth", False, FIVE_MINUTES)),
    (404, Outcome("failed", "client-error", True, FIVE_MINUTES)),
    (408, Outcome("deferred", "throttled")),
    (409, Outcome("failed", "client-error", True, FIVE_MINUTES)),
    (410, Outcome("failed", "client-error", True, FIVE_MINUTES)),
    (413, Outcome("failed", "client-error", True, FIVE_MINUTES)),
    (425, Outcome("deferred", "throttled")),
    (429, Outcome("deferred", "throttled")),
    (500, Outcome("failed", "server-error", True)),
    (502, Outcome("failed", "server-error", True)),
    (503, Outcome("failed", "server-error", True)),
    (504, Outcome("published", "gateway-timeout")),
    (599, Outcome("failed", "server-error", True)),
    (700, Outcome("failed", "server-error", True)),
]


@pytest.mark.parametrize(("status", "expected"), OTHER_ROWS)
def test_without_our_header_the_status_speaks(status: int, expected: Outcome) -> None:
    """Each class of status has its row; no delay means the relay's own backoff."""
    found = policy.judge(other(status), NOW)
    assert (found.kind, found.row, found.counted, found.delay_ms) == (
        expected.kind,
        expected.row,
        expected.counted,
        expected.delay_ms,
    )
    assert (found.status, found.detail) == (status, f"status {status}")


FAILURES = [
    (errors.ConnectFailed("m", "refused"), Outcome("failed", "connect", detail="m")),
    (errors.SendFailed("m"), Outcome("failed", "send", detail="m")),
    (errors.ResetIdle("m"), Outcome("deferred", "reset-idle", delay_ms=0, detail="m")),
    (errors.ResetAfterSend("m", sent=True), Outcome("published", "reset", detail="m")),
    (errors.AnswerTimeout("m", sent=True), Outcome("published", "timeout", detail="m")),
    (errors.AnswerTimeout("m", sent=False), Outcome("failed", "send", detail="m")),
    (errors.BadAnswer("m"), Outcome("failed", "bad-answer", True, FIVE_MINUTES, detail="m")),
]


@pytest.mark.parametrize(("error", "expected"), FAILURES, ids=[row.row for _, row in FAILURES])
def test_each_failure_has_its_row(error: errors.TransportError, expected: Outcome) -> None:
    """What was never sent is tried again uncounted; what was sent waits for its claim."""
    assert policy.judge(error, NOW) == expected


def test_every_failure_is_mapped() -> None:
    """No error of the transport is without a row."""
    assert set(policy.BY_FAILURE) == set(errors.TransportError.__subclasses__())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("١", None),
        ("0", 1_000),
        ("1", 1_000),
        ("90", 90_000),
        ("3600", 3_600_000),
        ("86400", 3_600_000),
        ("9999999999", 3_600_000),
        ("Fri, 15 Jan 2027 08:00:30 GMT", 30_000),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 1_000),
        ("Sat, 16 Jan 2027 08:00:00 GMT", 3_600_000),
        ("Fri, 32 Jan 2027 08:00:00 GMT", None),
    ],
)
def test_retry_after(value: str | None, expected: int | None) -> None:
    """Seconds or a date, clamped to 1 s … 1 h; what is neither says nothing."""
    assert policy.retry_after_ms(value, NOW) == expected


def test_a_throttle_honours_retry_after() -> None:
    """429 with Retry-After waits as long as asked, uncounted."""
    found = policy.judge(other(429, retry_after="2"), NOW)
    assert (found.kind, found.delay_ms, found.counted) == ("deferred", 2_000, False)


@given(
    st.integers(100, 999),
    st.dictionaries(st.sampled_from(["pointsman-result", "retry-after", "x"]), st.text(max_size=20)),
    st.binary(max_size=40),
)
def test_no_answer_breaks_the_policy(status: int, headers: dict[str, str], body: bytes) -> None:
    """Whatever an endpoint answers has an outcome; a wait is never negative nor over an hour."""
    found = policy.judge(Answer(status, headers, body), NOW)
    assert found.delay_ms is None or 0 <= found.delay_ms <= 3_600_000


def test_a_code_that_is_none_is_not_shown() -> None:
    """Text an endpoint passes for a code stays out of the outcome."""
    assert policy.judge(sdk("invalid", 400, code="see <b>here</b>"), NOW).detail == "status 400"
