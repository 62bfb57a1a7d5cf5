"""Retry policies are pure: any delay is whole milliseconds, filters and limits decide, nothing else does."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint_sdk import ConfigurationError, NonRetryableError, Retry, RetryAfterError
from endpoint_sdk.errors import LONGEST_DELAY

NOW = datetime(2026, 12, 1, tzinfo=UTC)
ZERO = timedelta(0)
delays = st.timedeltas(min_value=ZERO, max_value=timedelta.max)


def _delay(policy: Retry, attempt: int, error: BaseException, elapsed: timedelta = ZERO) -> timedelta | None:
    return policy.delay(attempt, error, elapsed=elapsed, now=NOW, random=lambda: 0.5)


@given(
    base=delays,
    most=delays,
    factor=st.floats(1, 1e308),
    attempt=st.integers(1, 2**31 - 1),
    roll=st.floats(0, 1, exclude_max=True),
)
def test_c67_any_backoff_is_whole_milliseconds(
    base: timedelta, most: timedelta, factor: float, attempt: int, roll: float
) -> None:
    """C67: whatever the policy, a delay is a whole, non-negative number of milliseconds and at most its maximum."""
    policy = Retry.exponential(max_attempts=2**31 - 1, base=base, factor=factor, max_delay=most)

    delay = policy.backoff(attempt, lambda: roll)

    assert ZERO <= delay <= min(most, LONGEST_DELAY) + timedelta(milliseconds=1)
    assert delay % timedelta(milliseconds=1) == ZERO


@given(attempt=st.integers(1, 40), roll=st.floats(0, 1, exclude_max=True))
def test_jitter_stays_between_half_and_whole(attempt: int, roll: float) -> None:
    """A jittered delay is at least half of the plain one and never more."""
    plain = Retry.exponential(jitter=False).backoff(attempt, lambda: roll)
    jittered = Retry.exponential().backoff(attempt, lambda: roll)

    assert plain / 2 <= jittered <= plain


@given(
    after=st.one_of(
        st.floats(), delays, st.timedeltas(), st.datetimes(), st.datetimes(timezones=st.just(UTC)), st.integers()
    )
)
def test_any_retry_after_is_a_delay(after: float | timedelta | datetime) -> None:
    """NaN, infinity, the past and the far future all become a wait from zero to ten years."""
    error = RetryAfterError(after, "later")

    assert ZERO <= error.delay(NOW) <= LONGEST_DELAY


def test_the_default_is_three_attempts_from_one_second() -> None:
    """Exponential: 1 s, 2 s, and no fourth attempt."""
    policy = Retry.exponential(jitter=False)

    assert [_delay(policy, attempt, ValueError()) for attempt in (1, 2, 3)] == [
        timedelta(seconds=1),
        timedelta(seconds=2),
        None,
    ]


def test_never_is_one_attempt_even_for_retry_after() -> None:
    """`Retry.never` leaves no second attempt, whatever is raised."""
    assert _delay(Retry.never(), 1, RetryAfterError(1)) is None


def test_retry_after_decides_the_wait_and_not_the_number() -> None:
    """RetryAfterError sets the delay of a policy that has attempts left."""
    policy = Retry.fixed(max_attempts=2, delay=timedelta(seconds=5))

    assert _delay(policy, 1, RetryAfterError(timedelta(seconds=30))) == timedelta(seconds=30)
    assert _delay(policy, 2, RetryAfterError(timedelta(seconds=30))) is None


def test_filters_choose_what_is_retried() -> None:
    """An error is retried if it is one of retry_on and none of give_up_on; NonRetryableError never is."""
    policy = Retry.fixed(delay=ZERO, retry_on=OSError, give_up_on=(FileNotFoundError, PermissionError))

    assert _delay(policy, 1, TimeoutError()) == ZERO
    assert _delay(policy, 1, FileNotFoundError()) is None
    assert _delay(policy, 1, ValueError()) is None
    assert _delay(policy, 1, SystemExit()) is None
    assert _delay(Retry.exponential(), 1, NonRetryableError("no")) is None
    assert _delay(Retry.exponential(), 1, SystemExit()) is not None


def test_max_elapsed_ends_retries() -> None:
    """No attempt starts later than max_elapsed after the first."""
    policy = Retry.exponential(max_attempts=9, jitter=False, max_elapsed=timedelta(seconds=10))

    assert _delay(policy, 1, ValueError(), timedelta(seconds=9)) == timedelta(seconds=1)
    assert _delay(policy, 1, ValueError(), timedelta(seconds=9.5)) is None


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": True},
        {"base": timedelta(seconds=-1)},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": float("inf")},
        {"max_elapsed": timedelta(seconds=-1)},
        {"retry_on": "ValueError"},
        {"give_up_on": (BaseException,)},
    ],
)
def test_a_policy_without_sense_is_refused(options: dict[str, object]) -> None:
    """Nonsense is a configuration error where the policy is made."""
    with pytest.raises(ConfigurationError):
        Retry.exponential(**options)  # type: ignore[arg-type]
