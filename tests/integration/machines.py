"""Runs a state machine over stores of its own, on each database."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from dispatcher.store import Store

OpenStore = Callable[[], Store]
MakeMachine = Callable[[OpenStore], RuleBasedStateMachine]


def run_on_sqlite(machine: MakeMachine, template: Path, folder: Path, *, examples: int, steps: int) -> None:
    """Runs *machine* that often, each time on a copy of *template* in *folder*."""
    numbers = itertools.count()

    def copied() -> Store:
        path = folder / f"machine-{next(numbers)}.db"
        shutil.copy(template, path)
        return Store.open(f"sqlite:///{path}")

    _run(machine, copied, examples, steps)


def run_on_postgresql(machine: MakeMachine, url: str, *, examples: int, steps: int) -> None:
    """Runs *machine* that often, each time on the database at *url*."""
    _run(machine, lambda: Store.open(url), examples, steps)


def _run(machine: MakeMachine, open_store: OpenStore, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        lambda: machine(open_store),  # type: ignore[arg-type]  # typed as a class; any factory of machines will do
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
