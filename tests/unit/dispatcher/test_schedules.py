"""When a schedule is due, by the tables of the nights when clocks change and by properties that hold on all of them."""

import time
import zoneinfo
from datetime import datetime
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import schedules
from dispatcher.schedules import ON_TIME_MS, BrokenRuleError, Cron, Due, Interval

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # midnight did not exist
    "America/Havana",  # midnight comes twice
    "Australia/Lord_Howe",  # half an hour
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "Pacific/Apia",  # a day was left out
]


def at(text: str, zone: str = "UTC") -> int:
    """The moment of a wall clock in *zone*, the first of two equal ones."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))).timestamp() * 1_000)


def shown(moments: list[int], zone: str) -> list[str]:
    """The wall clock in *zone* with its offset."""
    return [datetime.fromtimestamp(moment / 1_000, ZoneInfo(zone)).strftime("%d %H:%M%z")[:-2] for moment in moments]


NIGHTS = [
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00+02", "30 02:30+02"]),
    ("0,30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00+02", "29 03:30+02", "30 02:00+02"]),
    ("0 * * * *", "Europe/Berlin", "2026-03-29T00:30", ["29 01:00+01", "29 03:00+02", "29 04:00+02"]),
    ("*/30 * * * *", "Europe/Berlin", "2026-03-29T01:10", ["29 01:30+01", "29 03:00+02", "29 03:30+02"]),
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["25 02:30+02", "26 02:30+01"]),
    ("0 3 * * *", "Europe/Berlin", "2026-10-24T12:00", ["25 03:00+01", "26 03:00+01"]),
    ("0 * * * *", "Europe/Berlin", "2026-10-25T01:30", ["25 02:00+02", "25 02:00+01", "25 03:00+01"]),
    ("30 2 * * *", "America/New_York", "2026-03-07T12:00", ["08 03:00-04", "09 02:30-04"]),
    ("30 1 * * *", "America/New_York", "2026-10-31T12:00", ["01 01:30-04", "02 01:30-05"]),
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["04 02:30+11", "05 02:15+11"]),
    ("0 0 * * *", "America/Havana", "2026-03-07T12:00", ["08 01:00-04", "09 00:00-04"]),
    ("30 0 * * *", "America/Havana", "2026-10-31T12:00", ["01 00:30-04", "02 00:30-05"]),
    ("0 12 29 2 *", "Europe/Berlin", "2026-01-01T00:00", ["29 12:00+01"]),
    ("0 9 L * *", "Asia/Kathmandu", "2026-02-01T00:00", ["28 09:00+05", "31 09:00+05"]),
    ("@daily", "Europe/Berlin", "2026-03-28T12:00", ["29 00:00+01", "30 00:00+02"]),
]


@pytest.mark.parametrize(("expression", "zone", "begin", "expected"), NIGHTS)
def test_nights_the_clocks_change(expression: str, zone: str, begin: str, expected: list[str]) -> None:
    """What the gap of spring swallows comes at its end, what autumn repeats comes once; hourly means every hour."""
    found = list(islice(Cron(expression, zone).after(at(begin, zone)), len(expected)))
    assert shown(found, zone) == expected


def test_begun_within_the_second_of_two_equal_hours() -> None:
    """A look within the repeated hour finds nothing that was done with in the first of the two, and misses nothing."""
    rule = Cron("45 2 * * *", "Europe/Berlin")
    first = at("2026-10-25T02:45+02:00")
    within = at("2026-10-25T02:10+01:00")
    assert next(rule.after(within)) == at("2026-10-26T02:45+01:00")
    assert list(islice(rule.until(within), 2)) == [first, at("2026-10-24T02:45+02:00")]


@pytest.mark.parametrize("expression", ["* 1 30 12 *", "*/30 * * * 5L", "* 5 * 12 5L"])
def test_back_over_a_day_that_was_left_out(expression: str) -> None:
    """Samoa had no 30 December 2011: going back over it ends, and nothing occurs on that day."""
    rule = Cron(expression, "Pacific/Apia")
    found = list(islice(rule.until(at("2012-01-02T00:00", "Pacific/Apia")), 200))
    dates = {datetime.fromtimestamp(moment / 1_000, ZoneInfo("Pacific/Apia")).date().isoformat() for moment in found}
    assert found
    assert "2011-12-30" not in dates


def test_back_over_an_evening_that_was_left_out() -> None:
    """In Greenland the clocks go forward at eleven in the evening: what occurs in that hour does not occur that day."""
    rule = Cron("*/30 23 * * *", "America/Nuuk")
    end = at("2026-03-29T12:00", "America/Nuuk")
    back = list(islice(rule.until(end), 4))
    assert shown(back, "America/Nuuk") == ["27 23:30-02", "27 23:00-02", "26 23:30-02", "26 23:00-02"]
    assert back[::-1] == list(takewhile(lambda found: found <= end, rule.after(back[-1] - 1)))


def test_half_an_hour_is_not_lost() -> None:
    """Where clocks change by half an hour, the first half hour of a later day is not passed over, back or forth."""
    rule = Cron("*/15 0 * * 0", "Australia/Lord_Howe")
    begin, end = at("2007-10-28T01:00", rule.timezone), at("2007-11-04T12:00", rule.timezone)
    found = list(takewhile(lambda moment: moment <= end, rule.after(begin)))
    assert shown(found, rule.timezone) == ["04 00:00+11", "04 00:15+11", "04 00:30+11", "04 00:45+11"]
    assert list(takewhile(lambda moment: moment > begin, rule.until(end))) == found[::-1]


FIELDS = st.tuples(
    st.sampled_from(["*", "0", "30", "*/15", "5,35", "10-12"]),
    st.sampled_from(["*", "0", "1", "2", "*/6", "1-3", "2,3,23"]),
    st.sampled_from(["*", "1", "29", "31", "L", "LW"]),
    st.sampled_from(["*", "3", "10", "2-4"]),
    st.sampled_from(["*", "MON", "0", "6#1", "5L"]),
).map(" ".join)
MOMENTS = st.integers(at("2005-01-01"), at("2035-01-01"))
# The days around every night of these years on which some clock of ours changed.
CHANGES = st.builds(
    lambda day, hours, ms: at(day) + hours * HOUR + ms,
    st.sampled_from(
        ["2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01", "2026-04-04", "2026-10-03", "2011-12-30", "2018-11-04"]
    ),
    st.integers(-30, 40),
    st.sampled_from([0, 1, 999, 15 * MINUTE, 59 * MINUTE]),
)
RULES = st.one_of(
    st.builds(Cron, FIELDS, st.sampled_from(ZONES)),
    st.builds(Interval, st.integers(1_000, 3 * DAY)),
)


@settings(deadline=None)
@given(RULES, MOMENTS | CHANGES)
def test_occurrences_go_up(rule: schedules.Rule, moment: int) -> None:
    """Each occurrence is later than the moment asked for and than the one before."""
    found = [moment, *islice(rule.after(moment), 5)]
    assert found == sorted(set(found))


@settings(deadline=None)
@given(RULES, MOMENTS | CHANGES)
def test_a_later_look_finds_the_same(rule: schedules.Rule, moment: int) -> None:
    """Whether the occurrences are read in one go or each by a new look makes no difference."""
    once = list(islice(rule.after(moment), 6))
    looks, last = [], moment
    for _ in once:
        last = next(rule.after(last))
        looks.append(last)
    assert looks == once


@settings(deadline=None)
@given(RULES, MOMENTS | CHANGES)
def test_backwards_is_forwards(rule: schedules.Rule, moment: int) -> None:
    """What is read back from an occurrence are those occurrences that lead to it."""
    forward = list(islice(rule.after(moment), 6))
    if forward:
        back = list(takewhile(lambda found: found > moment, rule.until(forward[-1])))
        assert back[::-1] == forward


@settings(deadline=None)
@given(st.text(max_size=20) | st.text("0123456789*/-,#LW? ", max_size=20))
def test_any_expression_is_judged(expression: str) -> None:
    """An expression is fine or at fault, and then the sentence says so: nothing else is raised."""
    fault = schedules.cron_fault(expression)
    assert fault is None or fault.endswith(".")


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * *", "has 4 fields"),
        ("0 12 * * ? 2026", "has 6 fields"),
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("", "has 0 fields"),
    ],
)
def test_faults_of_expressions(expression: str, words: str) -> None:
    """What is wrong with an expression is said in words, and the expression quoted."""
    fault = schedules.cron_fault(expression)
    assert fault is not None
    assert words in fault
    assert repr(expression) in fault


@pytest.mark.parametrize("name", ["", "Europe/Pariss", "America", "../zone", "/etc/passwd", "a\0b", "é"])
def test_time_zones_nobody_knows(name: str) -> None:
    """A name that is no zone is a fault, whatever a path of that name holds."""
    assert schedules.timezone_fault(name) == f"There is no time zone {name!r} on this machine."
    with pytest.raises(BrokenRuleError):
        next(Cron("* * * * *", name).after(0))


@pytest.mark.parametrize("name", ZONES)
def test_time_zones_are_known(name: str) -> None:
    """The zones of the tables are there, from the system or from tzdata."""
    assert schedules.timezone_fault(name) is None


def test_a_machine_without_time_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no time zone database, the one installed with the server is used."""
    zoneinfo.reset_tzpath(to=[])
    monkeypatch.setattr(schedules, "ZoneInfo", ZoneInfo.no_cache)
    try:
        found = next(Cron("30 5 * * *", "Asia/Kathmandu").after(0))
    finally:
        zoneinfo.reset_tzpath()
    assert found == at("1970-01-02T05:30", "Asia/Kathmandu")


def test_intervals_keep_to_the_clock() -> None:
    """An interval is counted from 1970, and does not drift with the looks at it."""
    rule = Interval(HOUR)
    assert next(rule.after(at("2026-05-01T10:20"))) == at("2026-05-01T11:00")
    assert list(islice(rule.after(HOUR), 2)) == [2 * HOUR, 3 * HOUR]
    assert list(rule.until(2 * HOUR + 5)) == [2 * HOUR, HOUR]
    assert rule.count(HOUR, 3 * HOUR - 1) == 2


@pytest.mark.parametrize(
    ("late", "catch_up", "expected"),
    [
        (0, 1, Due([3 * DAY], 0, 4 * DAY)),
        (ON_TIME_MS, 0, Due([3 * DAY], 0, 4 * DAY)),
        (ON_TIME_MS + 1, 0, Due([], 1, 4 * DAY)),
        (ON_TIME_MS + 1, 1, Due([3 * DAY], 0, 4 * DAY)),
        (2 * DAY, 0, Due([5 * DAY], 2, 6 * DAY)),
        (2 * DAY, 1, Due([4 * DAY, 5 * DAY], 1, 6 * DAY)),
        (2 * DAY + HOUR, 1, Due([5 * DAY], 2, 6 * DAY)),
        (2 * DAY + HOUR, 2, Due([4 * DAY, 5 * DAY], 1, 6 * DAY)),
        (2 * DAY + HOUR, 100, Due([3 * DAY, 4 * DAY, 5 * DAY], 0, 6 * DAY)),
    ],
)
@pytest.mark.parametrize("rule", [Cron("0 0 * * *"), Interval(DAY)])
def test_what_is_due(rule: schedules.Rule, late: int, catch_up: int, expected: Due) -> None:
    """What is on time starts; of what was missed the latest few start too, in order, and the rest is counted."""
    assert schedules.due(rule, 3 * DAY, 3 * DAY + late, catch_up) == expected


@pytest.mark.parametrize("rule", [Cron("* * * * *", "Europe/Berlin"), Interval(MINUTE)])
def test_c66_twelve_thousand_missed_occurrences_poisoned_a_schedule(rule: schedules.Rule) -> None:
    """C66: after twelve thousand missed occurrences a few start and the next is in the future, in bounded time."""
    first, began = at("2026-10-01"), time.process_time()
    found = schedules.due(rule, first, first + 12_000 * MINUTE + 90_000, 3)
    assert found.start == [first + number * MINUTE for number in (11_998, 11_999, 12_000, 12_001)]
    assert found.next_at == first + 12_002 * MINUTE
    assert found.skipped == (11_998 if isinstance(rule, Interval) else schedules.COUNTED - 4)
    longer = schedules.due(rule, first - 10 * 366 * DAY, first + 90_000, 3)
    assert len(longer.start) == 4
    assert time.process_time() - began < 5, "ten years of minutes are five million"


def test_a_zone_whose_rules_changed() -> None:
    """A next occurrence that new time zone data no longer knows starts nothing: the next it knows comes."""
    assert schedules.due(Cron("0 5 * * *"), 4 * HOUR, 4 * HOUR + MINUTE, 1) == Due([], 0, 5 * HOUR)


@settings(deadline=None)
@given(st.integers(0, 2**53), st.integers(0, DAY))
def test_jitter_is_the_same_for_everyone(moment: int, most: int) -> None:
    """An occurrence is late by up to the jitter, by the same time wherever it is computed."""
    found = schedules.jitter("default", "nightly", moment, most)
    assert 0 <= found <= most
    assert schedules.jitter("default", "nightly", moment, most) == found


def test_jitter_spreads() -> None:
    """Schedules of the same hour do not all start at once, nor does one start late by the same time each day."""
    names = {schedules.jitter("default", f"s{number}", DAY, HOUR) for number in range(50)}
    days = {schedules.jitter("default", "s", number * DAY, HOUR) for number in range(50)}
    assert min(len(names), len(days)) > 45


def test_the_end_of_the_calendar() -> None:
    """Beyond what a date can say nothing occurs, and nothing breaks."""
    last = at("9999-12-31T12:00")
    assert schedules.next_after(Cron("0 0 1 1 *"), last) is None
    with pytest.raises(BrokenRuleError):
        schedules.next_after(Cron("0 0 1 1 *"), 2**60)
