"""endpoint_sdk.testing.task_env: a task's body called as the function it is."""

from datetime import timedelta

import pytest

from endpoint_sdk import ConfigurationError, task, task_context
from endpoint_sdk.testing import task_env


@task
def transcode(name: str, height: int) -> str:
    context = task_context()
    if context.cancelled:
        return "stopped"
    return f"{name}@{height} attempt {context.attempt} {context.remaining()}"


@task
async def upload(name: str) -> str:
    return f"{name} {task_context().idempotency_key}"


async def test_a_body_sees_what_the_test_sets() -> None:
    """Attempt, time left, cancellation; the block yields what the body sees."""
    with task_env() as context:
        assert transcode("a", 480) == "a@480 attempt 1 None"
        assert await upload("a") == f"a {context.idempotency_key}"
    with task_env(attempt=2, remaining=timedelta(seconds=5)):
        assert transcode("a", 480) == "a@480 attempt 2 0:00:05"
    with task_env(cancelled=True):
        assert transcode("a", 480) == "stopped"


def test_it_ends_with_its_block() -> None:
    """Outside of a task there is no context; an attempt is at least the first."""
    with task_env():
        pass
    with pytest.raises(ConfigurationError):
        transcode("a", 480)
    with pytest.raises(ValueError, match="from 1"), task_env(attempt=0):
        pass
