"""Backoffs: bounded, growing, jittered, and never in overflow."""

from hypothesis import given
from hypothesis import strategies as st

from dispatcher import backoff

counts = st.integers(1, 10**9)
bases = st.integers(1, 300_000)
ceilings = st.integers(1, 10**9)
chances = st.floats(0, 1, exclude_max=True)


@given(counts, bases, ceilings, chances)
def test_failures_stay_within_their_bounds(failures: int, base_ms: int, max_ms: int, chance: float) -> None:
    """A delay is a whole number from 0 to the maximum, whatever the count."""
    delay = backoff.after_failures(failures, base_ms, max_ms, chance)
    assert isinstance(delay, int)
    assert 0 <= delay <= max_ms


@given(counts, bases, ceilings, chances)
def test_failures_never_hammer(failures: int, base_ms: int, max_ms: int, chance: float) -> None:
    """The jitter leaves a tenth of the ceiling at least, and the ceiling doubles with each failure."""
    ceiling = min(max_ms, base_ms * 2 ** min(failures - 1, 40))
    delay = backoff.after_failures(failures, base_ms, max_ms, chance)
    assert int(ceiling * 0.1) <= delay <= ceiling


@given(counts, bases, ceilings, chances)
def test_more_failures_never_wait_less(failures: int, base_ms: int, max_ms: int, chance: float) -> None:
    """With equal luck, one failure more waits as long or longer."""
    before = backoff.after_failures(failures, base_ms, max_ms, chance)
    assert backoff.after_failures(failures + 1, base_ms, max_ms, chance) >= before


@given(bases, ceilings, chances)
def test_first_kill_is_redelivered_at_once(base_ms: int, max_ms: int, chance: float) -> None:
    """Nothing is waited for after one kill."""
    assert backoff.after_kills(1, base_ms, max_ms, chance) == 0


@given(st.integers(2, 10**9), bases, ceilings, chances)
def test_kills_double_up_to_the_maximum(kills: int, base_ms: int, max_ms: int, chance: float) -> None:
    """Later kills wait base, 2 × base … the maximum, each within ten percent."""
    ceiling = min(max_ms, base_ms * 2 ** min(kills - 2, 40))
    assert int(ceiling * 0.9) <= backoff.after_kills(kills, base_ms, max_ms, chance) <= ceiling * 1.1


def test_kills_as_the_protocol_writes_them() -> None:
    """0, 5 s, 10 s … 300 s at the middle of the jitter."""
    waits = [backoff.after_kills(kills, 5_000, 300_000, 0.5) for kills in range(1, 10)]
    assert waits == [0, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000]


def test_a_count_of_none_counts_as_one() -> None:
    """A count below one, which nobody should pass, waits like the first."""
    assert backoff.after_failures(0, 5_000, 300_000, 0.5) == backoff.after_failures(1, 5_000, 300_000, 0.5)
    assert backoff.after_kills(0, 5_000, 300_000, 0.5) == 0


@given(counts, bases, chances)
def test_copies_double_up_to_an_hour(copies: int, first_ms: int, chance: float) -> None:
    """A copy counts as lost after its route's time, the next after twice that … an hour, each within ten percent."""
    ceiling = min(backoff.HOUR_MS, first_ms * 2 ** min(copies - 1, 40))
    assert int(ceiling * 0.9) <= backoff.after_copies(copies, first_ms, chance) <= ceiling * 1.1


@given(st.sampled_from([0.0, 0.999]))
def test_six_copies_in_two_hours(chance: float) -> None:
    """Of a message SQS loses each time, or never says that it took, at most six copies are made within two hours."""
    for first_wait_ms in (5_000, 300_000):
        at, copies = first_wait_ms * (0.9 + 0.2 * chance), 1
        while at < 7_200_000:
            copies += 1
            at += backoff.after_copies(copies, 300_000, chance)
        assert copies <= 6
