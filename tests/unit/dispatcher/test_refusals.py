"""Brokers that refuse: how long they are left alone, and what ends it."""

import pytest

from dispatcher.refusals import Refusals
from publishers.base import Outcome

ACCEPTED = Outcome("published", "accepted")
UNREACHABLE = Outcome("failed", "broker_unreachable")
TOO_LARGE = Outcome("declined", "too_large")
ALL = [UNREACHABLE] * 3


class Clock:
    """A clock the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """It is zero."""
    return Clock()


def pause(refusals: Refusals, clock: Clock) -> float:
    """The seconds until the broker may be tried again, to a twentieth."""
    began = clock.now
    while refusals.is_paused("ep_1"):
        clock.now += 0.05
    return clock.now - began


def test_pauses_grow_to_half_a_minute(clock: Clock) -> None:
    """Each batch refused in a row doubles the longest pause, from a second to thirty; never under a tenth of it."""
    refusals = Refusals(clock)
    for batches in range(12):
        assert refusals.note("ep_1", ALL) == (batches == 0)
        longest = min(30.0, 2.0**batches)
        assert 0.1 * longest <= pause(refusals, clock) <= longest + 0.06
        assert "ep_1" in refusals


def test_what_was_under_way_lengthens_nothing(clock: Clock) -> None:
    """Four batches refused at once are one refusal."""
    refusals = Refusals(clock)
    assert [refusals.note("ep_1", ALL) for _ in range(4)] == [True, False, False, False]
    assert pause(refusals, clock) <= 1.06


@pytest.mark.parametrize(
    "outcomes", [[ACCEPTED], [UNREACHABLE, ACCEPTED], [TOO_LARGE, ACCEPTED]], ids=lambda outcomes: outcomes[0].row
)
def test_a_broker_that_took_something_is_tried_on(clock: Clock, outcomes: list[Outcome]) -> None:
    """One delivery that was taken ends the pauses, whatever became of the others."""
    refusals = Refusals(clock)
    assert not refusals.note("ep_1", outcomes)
    assert refusals.note("ep_1", ALL)
    assert refusals.note("ep_1", outcomes)
    assert "ep_1" not in refusals


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("published", "unknown"),
        TOO_LARGE,
        Outcome("failed", "broker_refused"),
        Outcome("failed", "publisher-error"),
    ],
    ids=lambda outcome: outcome.row,
)
def test_what_lies_with_a_delivery_says_nothing(clock: Clock, outcome: Outcome) -> None:
    """What may have arrived, and what was refused for itself, pauses no broker; nor is one that refuses well by it."""
    refusals = Refusals(clock)
    assert not refusals.note("ep_1", [outcome])
    assert "ep_1" not in refusals
    assert refusals.note("ep_1", [outcome, *ALL])
    pause(refusals, clock)
    assert not refusals.note("ep_1", [outcome])
    assert "ep_1" in refusals
    assert not refusals.is_paused("ep_1")


def test_brokers_refuse_for_themselves(clock: Clock) -> None:
    """One broker's refusal pauses no other."""
    refusals = Refusals(clock)
    refusals.note("ep_1", ALL)
    assert not refusals.is_paused("ep_2")
