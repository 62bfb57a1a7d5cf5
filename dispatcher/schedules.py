"""When a schedule is due: by a cron expression on the clocks of a time zone, or every so often.

Pure computation over milliseconds since the epoch. On the night the clocks go forward, an occurrence within the hour
that does not exist comes at its end; on the night they go back, one within the hour that comes twice comes once, the
first time. Expressions whose minute or hour begins with `*` mean elapsed time instead: every quarter of an hour is
every quarter of an hour, also that night. (infra/docs/schedules.md)
"""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from cronsim.cronsim import is_imaginary

ON_TIME_MS: Final = 60_000
"""An occurrence looked at so late at most is on time: it starts whatever is made up for."""

COUNTED: Final = 200
"""Of the occurrences a cron expression missed, so many at most are counted: each takes some twenty microseconds."""

_LONGEST_FOLD_MS: Final = 3 * 3_600_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class BrokenRuleError(ValueError):
    """No occurrence can be computed; the sentence says why, and quotes what is at fault."""


class Cron(msgspec.Struct, frozen=True):
    """The minutes *expression* matches (five fields, or a nickname such as `@daily`) on the clocks of *timezone*."""

    expression: str
    timezone: str = "UTC"

    def after(self, moment: int) -> Iterator[int]:
        """The occurrences later than *moment*, the earliest first. Raises BrokenRuleError."""
        zone, last = _zone(self.timezone), moment
        for found in self._walk(_local(moment, zone), reverse=False):
            # In the hour that comes twice cronsim begins at its first time.
            if found > last:
                last = found
                yield found

    def until(self, moment: int) -> Iterator[int]:
        """The occurrences not later than *moment*, the latest first. Raises BrokenRuleError."""
        zone, last = _zone(self.timezone), moment + 1
        begin = _local(moment // 1_000 * 1_000 + 1_000, zone)
        if begin.fold:  # or what came in the first of two equal hours would be left out
            begin = _local(moment // 1_000 * 1_000 + _LONGEST_FOLD_MS, zone)
        for found in self._walk(begin, reverse=True):
            if found < last:
                last = found
                yield found

    def count(self, first: int, last: int) -> int:
        """How many occurrences lie from *first*, an occurrence, to *last*; `COUNTED` stands for more, too."""
        later = takewhile(lambda at: at <= last, self.after(first))
        return 1 + sum(1 for _ in islice(later, COUNTED - 1))

    def _walk(self, begin: datetime, *, reverse: bool) -> Iterator[int]:
        try:
            walk = _Walk(_five_fields(self.expression), begin, reverse)
            for found in walk:
                yield (found - _EPOCH) // _MILLISECOND
        except CronSimError as error:
            raise BrokenRuleError(f"{self.expression!r} is no cron expression: {_lower(str(error))}.") from None
        except OverflowError:
            return  # beyond the calendar


class _Walk(CronSim):
    """Mends what cronsim does in odd zones: it went back over a day left out for ever, and lost half hours.

    Hours are walked in steps of an hour; where clocks change by half of one, the first or last half was passed over.
    """

    def advance_hour(self) -> bool:
        return super().advance_hour() and self._at(0)

    def reverse_hour(self) -> bool:
        return super().reverse_hour() and self._at(59)

    def _at(self, minute: int) -> bool:
        edge = self.dt.replace(minute=minute)
        if self.dt.minute != minute and (self.dt.tzinfo in {None, UTC} or not is_imaginary(edge)):
            self.dt = edge
        return True

    def reverse_day(self) -> bool:
        moved = super().reverse_day()
        self._before_a_gap()
        return moved

    def reverse_month(self) -> None:
        super().reverse_month()
        self._before_a_gap()

    def _before_a_gap(self) -> None:
        if self.dt.tzinfo not in {None, UTC} and is_imaginary(self.dt):
            self.dt = self.dt.replace(fold=1).astimezone(UTC).astimezone(self.dt.tzinfo)


class Interval(msgspec.Struct, frozen=True):
    """Every *every_ms*, counted from 1970-01-01 00:00 UTC: the same moments wherever and whenever it is looked at."""

    every_ms: int

    def after(self, moment: int) -> Iterator[int]:
        """The occurrences later than *moment*, the earliest first."""
        at = self._floor(moment) + self.every_ms
        while True:
            yield at
            at += self.every_ms

    def until(self, moment: int) -> Iterator[int]:
        """The occurrences not later than *moment*, the latest first."""
        at = self._floor(moment)
        while at > 0:
            yield at
            at -= self.every_ms

    def count(self, first: int, last: int) -> int:
        """How many occurrences lie from *first*, an occurrence, to *last*."""
        return (last - first) // self.every_ms + 1

    def _floor(self, moment: int) -> int:
        return moment - moment % self.every_ms


Rule = Cron | Interval


def rule(cron: str | None, timezone: str, every_ms: int | None) -> Rule:
    """The rule of a schedule, which has *cron* or *every_ms*."""
    if cron is not None:
        return Cron(cron, timezone)
    assert every_ms is not None, "the table has a check for it"
    return Interval(every_ms)


class Due(NamedTuple):
    """Which occurrences start now, the earliest first; how many never will; and when the next one is, if any."""

    start: list[int]
    skipped: int
    next_at: int | None


def due(rule: Rule, next_at: int, now: int, catch_up: int) -> Due:
    """What is due at *now* of a rule whose occurrences before *next_at* are done with.

    The latest starts if it is on time. Of those that were missed, the latest *catch_up* start as well. It takes
    bounded time, however many were missed. Raises BrokenRuleError.
    """
    latest = list(islice(takewhile(lambda at: at >= next_at, rule.until(now)), catch_up + 1))
    kept = latest if latest and now - latest[0] <= ON_TIME_MS else latest[:catch_up]
    skipped = len(latest) - len(kept)
    if len(latest) > catch_up:  # there may be more
        skipped = max(rule.count(next_at, now) - len(kept), skipped)
    return Due(kept[::-1], skipped, next_after(rule, now))


def next_after(rule: Rule, moment: int) -> int | None:
    """The first occurrence later than *moment*, None if there is none. Raises BrokenRuleError."""
    return next(rule.after(moment), None)


def jitter(namespace: str, name: str, at: int, most: int) -> int:
    """By how many ms, 0 to *most*, the occurrence *at* starts late: the same whoever computes it."""
    digest = hashlib.sha256(f"{namespace}\0{name}\0{at}".encode()).digest()
    return int.from_bytes(digest[:8]) % (most + 1)


def cron_fault(expression: str) -> str | None:
    """What is wrong with a cron expression, as a sentence; None if it is one and comes round."""
    try:
        found = next_after(Cron(expression), 0)
    except BrokenRuleError as error:
        return str(error)
    return None if found is not None else f"{expression!r} never comes round."


def timezone_fault(name: str) -> str | None:
    """Why the clocks of time zone *name* cannot be told here, as a sentence; None if they can."""
    try:
        _zone(name)
    except BrokenRuleError as error:
        return str(error)
    return None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, malformed, or a folder of zones
        raise BrokenRuleError(f"There is no time zone {name!r} on this machine.") from None


def _local(moment: int, zone: ZoneInfo) -> datetime:
    try:
        return (_EPOCH + moment * _MILLISECOND).astimezone(zone)
    except OverflowError:
        raise BrokenRuleError("The time is beyond the calendar.") from None


def _five_fields(expression: str) -> str:
    fields = _NICKNAMES.get(expression.strip().lower(), expression).split()
    if len(fields) != 5:
        raise BrokenRuleError(
            f"{expression!r} has {len(fields)} fields, where a cron expression has five: "
            "minute, hour, day of the month, month, day of the week."
        )
    return " ".join(fields)


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
