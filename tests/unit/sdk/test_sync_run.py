"""`def` workflows: blocking calls over the same replay."""

import itertools
import threading
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import Retry, SyncRun, TaskFailed, task, workflow
from endpoint_sdk.replay import Diverged
from tests.unit.sdk.replay_lab import execute, plain

_fresh = itertools.count()


@task
async def _number(name: str) -> str:
    return f"{name}{next(_fresh)}"


@task
def _thread(name: str) -> str:
    return f"{name}@{threading.current_thread().name.partition('_')[0]}"


@task(retry=Retry.fixed(max_attempts=2, delay=timedelta(milliseconds=1)))
def _failing() -> None:
    raise ValueError("no")


@workflow("sync")
def _handler(run: SyncRun) -> list[Any]:
    futures = [run.submit(_number, name) for name in "aab"]
    first = run.task(_thread, "t")
    with pytest.raises(TaskFailed) as failed:
        run.task(_failing)
    seen = [future.result() for future in reversed(futures)]
    return [
        first,
        seen,
        futures[0].result(),
        str(failed.value),
        run.map(_number, "xyz", limit=2),
        run.now().isoformat(),
    ]


@pytest.mark.parametrize("kept", range(10))
async def test_a_def_workflow_replays_from_any_point(kept: int) -> None:
    """Blocking and submitted tasks resume after any number of records, and a full replay runs nothing."""
    ended, records = await execute(_handler)
    assert len(records) == 9
    full, none = await execute(_handler, records)
    resumed, new = await execute(_handler, records[:kept])

    assert plain(full) == plain(ended)
    assert none == []
    assert len(new) == 9 - kept
    assert plain(resumed)[0] == "t@pointsman-task"
    assert plain(resumed)[3] == plain(ended)[3]


async def test_a_def_workflow_diverges_like_any_other() -> None:
    """A changed call of a blocking handler is a divergence once the thread waits for it."""

    @workflow("sync")
    def changed(run: SyncRun) -> str:
        return run.task(_number, "changed")

    @workflow("sync")
    def before(run: SyncRun) -> str:
        return run.task(_number, "before")

    _, records = await execute(before)
    ended, _ = await execute(changed, records)

    assert isinstance(ended, Diverged)


async def test_a_def_workflow_fails_like_any_other() -> None:
    """What the handler raises is the run's error."""

    @workflow("sync")
    def handler(_: SyncRun, name: str) -> str:
        raise LookupError(name)

    ended, _ = await execute(handler, value="gone")

    assert plain(ended) == "LookupError"
