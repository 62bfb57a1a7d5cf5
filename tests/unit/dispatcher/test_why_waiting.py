"""How long a run still waits, as people say it."""

import pytest

from dispatcher.why_waiting import span


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (-5, "0 s"),
        (999, "0 s"),
        (12_000, "12 s"),
        (60_000, "1 min"),
        (61_500, "1 min 1 s"),
        (28_797_366, "7 h 59 min"),
        (1_209_548_046, "13 d 23 h"),
        (86_460_000, "1 d"),
    ],
)
def test_a_span_is_told_in_its_two_largest_units(ms: int, words: str) -> None:
    """Whatever is smaller than the second of them is left out."""
    assert span(ms) == words
