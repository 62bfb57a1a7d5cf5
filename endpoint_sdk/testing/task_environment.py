"""The surroundings a task's body sees, for a test that calls it as the function it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from endpoint_sdk.context import CURRENT_TASK, TaskContext

_RUN_ID: Final = "run_TEST0000000000000000000000"


@contextmanager
def task_env(*, attempt: int = 1, remaining: timedelta | None = None, cancelled: bool = False) -> Iterator[TaskContext]:
    """Inside the block `task_context()` is what it yields: that of attempt *attempt*, with *remaining* time left (None
    for no limit), *cancelled* or not. The body of a task is then called directly, and nothing is recorded."""
    if attempt < 1:
        raise ValueError(f"attempts count from 1: {attempt}")
    context = TaskContext(_RUN_ID, "task:test:0", attempt, f"{_RUN_ID}-test", lambda: remaining, lambda: cancelled)
    token = CURRENT_TASK.set(context)
    try:
        yield context
    finally:
        CURRENT_TASK.reset(token)
