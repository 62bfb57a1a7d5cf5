"""Figures from what happened: percentiles, and the log the task bodies appended to."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """One start of a task body, or of a handler (`what` = "handler"); `at` is epoch milliseconds, `body` its own id."""

    run: str
    what: str
    at: float
    process: str
    body: str


def read_bodies(folder: Path) -> list[Line]:
    """Every line written so far; a line still being written is left for the next call."""
    path = folder / "bodies.jsonl"
    if not path.exists():
        return []
    return [Line(**json.loads(line)) for line in path.read_bytes().split(b"\n")[:-1]]


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of *values*, which must not be empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """p50 and p99 of milliseconds, to a hundredth; None when nothing was measured."""
    if not values:
        return None
    return {"p50": round(percentile(values, 50), 2), "p99": round(percentile(values, 99), 2)}


def run_twice(bodies: Iterable[Line], recorded: Mapping[tuple[str, str], str]) -> int:
    """How many bodies began after the one whose result was recorded; *recorded* maps (run, task) to that body's id.

    Lines stand in the order they were appended in, so no clock is asked. A body that began before the recorded one was
    never recorded itself, and its task was free to run again (infra/docs/protocol.md, I7).
    """
    passed: set[tuple[str, str]] = set()
    twice = 0
    for line in bodies:
        task = (line.run, line.what)
        twice += task in passed
        if recorded.get(task) == line.body:
            passed.add(task)
    return twice


def start_delays(bodies: Iterable[Line], submitted: Mapping[str, float]) -> list[float]:
    """Milliseconds from submitting each run to the first line of its handler."""
    first: dict[str, float] = {}
    for line in bodies:
        if line.what == "handler":
            first[line.run] = min(line.at, first.get(line.run, line.at))
    return [first[run] - at for run, at in submitted.items() if run in first]
