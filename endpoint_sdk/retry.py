"""When a failed task is tried again: a pure policy, clock and randomness passed in."""

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from endpoint_sdk.errors import (
    LONGEST_DELAY,
    ConfigurationError,
    NonRetryableError,
    RetryAfterError,
)

_BASE: Final = timedelta(seconds=1)
_MAX_DELAY: Final = timedelta(minutes=5)
_MOST_ATTEMPTS: Final = 2**31 - 1

Errors = type[Exception] | tuple[type[Exception], ...]


class Retry(msgspec.Struct, frozen=True):
    """Made by `Retry.never`, `Retry.fixed` and `Retry.exponential`; `max_attempts` counts the first attempt."""

    max_attempts: int
    base: timedelta
    factor: float
    max_delay: timedelta
    jitter: bool
    max_elapsed: timedelta | None
    retry_on: tuple[type[Exception], ...]
    give_up_on: tuple[type[Exception], ...]

    @staticmethod
    def never() -> "Retry":
        """One attempt."""
        return _checked(max_attempts=1)

    @staticmethod
    def fixed(*, max_attempts: int = 3, delay: timedelta, **filters: Any) -> "Retry":
        """The same *delay* before each further attempt; *filters* as for `exponential`."""
        return _checked(max_attempts=max_attempts, base=delay, factor=1.0, max_delay=delay, jitter=False, **filters)

    @staticmethod
    def exponential(
        *,
        max_attempts: int = 3,
        base: timedelta = _BASE,
        factor: float = 2.0,
        max_delay: timedelta = _MAX_DELAY,
        jitter: bool = True,
        max_elapsed: timedelta | None = None,
        retry_on: Errors = Exception,
        give_up_on: Errors = (),
    ) -> "Retry":
        """Delays *base*, *base* × *factor*, … up to *max_delay*; *jitter* makes each half to the whole of it.

        No attempt starts later than *max_elapsed* after the first. An error is retried when it is one of *retry_on*
        and none of *give_up_on*. Raises ConfigurationError for what makes no sense.
        """
        return _checked(
            max_attempts=max_attempts,
            base=base,
            factor=factor,
            max_delay=max_delay,
            jitter=jitter,
            max_elapsed=max_elapsed,
            retry_on=retry_on,
            give_up_on=give_up_on,
        )

    def backoff(self, attempt: int, random: Callable[[], float]) -> timedelta:
        """The delay after failed *attempt* (from 1): whole milliseconds, 0 to ten years; *random* is in [0, 1)."""
        longest = min(self.max_delay, LONGEST_DELAY) / timedelta(milliseconds=1)
        try:
            delay = self.base / timedelta(milliseconds=1) * self.factor ** (attempt - 1)
        except OverflowError:
            delay = longest
        delay = min(delay, longest)
        if self.jitter:
            delay *= 0.5 + random() / 2
        return timedelta(milliseconds=math.ceil(delay))

    def delay(
        self, attempt: int, error: BaseException, *, elapsed: timedelta, now: datetime, random: Callable[[], float]
    ) -> timedelta | None:
        """The wait before attempt *attempt* + 1, or None when *error* is final; *elapsed* since the first attempt."""
        if attempt >= self.max_attempts or not self._retries(error):
            return None
        wait = error.delay(now) if isinstance(error, RetryAfterError) else self.backoff(attempt, random)
        if self.max_elapsed is not None and elapsed + wait > self.max_elapsed:
            return None
        return wait

    def _retries(self, error: BaseException) -> bool:
        if isinstance(error, RetryAfterError):
            return True
        if isinstance(error, (NonRetryableError, ConfigurationError, *self.give_up_on)):
            return False
        # SystemExit and its like are failures of the attempt; no filter can name them, the widest one covers them.
        return isinstance(error, self.retry_on) or (not isinstance(error, Exception) and Exception in self.retry_on)


def _checked(
    *,
    max_attempts: int = 3,
    base: timedelta = _BASE,
    factor: float = 2.0,
    max_delay: timedelta = _MAX_DELAY,
    jitter: bool = True,
    max_elapsed: timedelta | None = None,
    retry_on: Errors = Exception,
    give_up_on: Errors = (),
) -> Retry:
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or not 1 <= max_attempts <= _MOST_ATTEMPTS:
        raise ConfigurationError(f"a retry's max_attempts is a whole number from 1: {max_attempts!r}")
    for name, value in (("delay", base), ("max_delay", max_delay), ("max_elapsed", max_elapsed or timedelta(0))):
        if not isinstance(value, timedelta) or value < timedelta(0):
            raise ConfigurationError(f"a retry's {name} is a timedelta, not negative: {value!r}")
    if not (math.isfinite(factor) and factor >= 1):
        raise ConfigurationError(f"a retry's factor is a finite number from 1: {factor!r}")
    return Retry(
        max_attempts, base, float(factor), max_delay, jitter, max_elapsed, _types(retry_on), _types(give_up_on)
    )


def _types(errors: Errors) -> tuple[type[Exception], ...]:
    listed = errors if isinstance(errors, tuple) else (errors,)
    for error in listed:
        if not (isinstance(error, type) and issubclass(error, Exception)):
            raise ConfigurationError(f"a retry's filters are exception classes: {error!r}")
    return listed
