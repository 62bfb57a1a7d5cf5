"""dispatcher.cli.demo.figures: what the demo counts is what happened."""

import json
from pathlib import Path

import pytest

from dispatcher.cli.demo.figures import Line, percentile, read_bodies, run_twice, spread, start_delays


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (50, 3.0), (99, 5.0), (100, 5.0)])
def test_percentile_is_a_measured_value(percent: float, expected: float) -> None:
    """A percentile is one of the values, whatever their order."""
    assert percentile([5.0, 1.0, 3.0, 2.0, 4.0], percent) == expected


def test_spread_of_nothing_is_none() -> None:
    """Nothing measured is no figure, not a zero."""
    assert spread([]) is None


def test_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    """A line a body is still writing is not read."""
    whole = json.dumps({"run": "r", "what": "pack", "at": 1.5, "process": "a", "body": "1"})
    (tmp_path / "bodies.jsonl").write_text(f'{whole}\n{{"run": "r", "wh')

    assert read_bodies(tmp_path) == [Line("r", "pack", 1.5, "a", "1")]


def test_a_log_not_begun_is_empty(tmp_path: Path) -> None:
    """Before the first body there is no log, and no line."""
    assert read_bodies(tmp_path) == []


def test_run_twice_counts_bodies_after_the_recorded_one() -> None:
    """A body after the recorded one counts; one before it, or of a task never recorded, was free to run."""
    bodies = [
        Line("r", "pack", 10.0, "a", "1"),
        Line("r", "pack", 21.0, "b", "2"),
        Line("r", "hold", 22.0, "a", "3"),
        Line("r", "hold", 23.0, "b", "4"),
        Line("s", "pack", 24.0, "b", "5"),
        Line("t", "pack", 25.0, "b", "6"),
        Line("t", "pack", 26.0, "b", "7"),
    ]
    recorded = {("r", "pack"): "1", ("r", "hold"): "4", ("s", "pack"): "5"}

    assert run_twice(bodies, recorded) == 1


def test_start_is_the_first_line_of_a_handler() -> None:
    """A replay's first line is later than the first one and does not count."""
    bodies = [
        Line("r", "handler", 30.0, "b", "1"),
        Line("r", "handler", 14.0, "a", "2"),
        Line("r", "pack", 12.0, "a", "3"),
    ]

    assert start_delays(bodies, {"r": 10.0, "never": 11.0}) == [4.0]
