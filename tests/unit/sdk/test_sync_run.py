"""`def` workflows: blocking calls over the same replay."""

import itertools
import threading
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import Event, Retry, SyncRun, TaskFailed, WaitTimeout, task, workflow
from endpoint_sdk.replay import Diverged, Parked
from tests.unit.sdk.replay_lab import MemoryPort, answered, execute, plain

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


@workflow("waiting")
def _waiting(run: SyncRun, hours: int) -> list[Any]:
    beside = run.submit(_number, "w")
    run.sleep("s", timedelta(hours=hours))
    run.sleep_until("u", run.now() - timedelta(hours=9))
    seen: list[Any] = [beside.result()[0], run.wait_event("e")]
    seen.append(run.wait_event(Event[int]("n"), timeout=timedelta(hours=1), default="none"))
    with pytest.raises(WaitTimeout):
        run.wait_event("e", timeout=timedelta(hours=1))
    return [*seen, run.now().isoformat()]


async def test_a_def_workflow_parks_at_each_wait_and_goes_on_behind_it() -> None:
    """Whatever it waits for is recorded in turn; submitted work is kept, and the thread unwinds at every park."""
    outcomes = [
        answered("sleep", "s"),
        answered("event", "e", "seen"),
        answered("event", "n", error="WaitTimeout"),
        answered("event", "e", ordinal=1, error="WaitTimeout"),
    ]
    records: list[Any] = []
    waited: list[tuple[str, str]] = []
    for outcome in outcomes:
        port = MemoryPort()
        ended, new = await execute(_waiting, records, 1, port)
        assert ended == Parked()
        waited += [(wait.kind, wait.name) for wait in port.parks[0]]
        records += [*new, outcome]
    ended, _ = await execute(_waiting, records, 1)

    assert plain(ended) == ["w", "seen", "none", "2026-12-01T12:00:00+00:00"]
    assert waited == [("sleep", "s"), ("event", "e"), ("event", "n"), ("event", "e")]


async def test_a_thread_that_computes_is_not_parked() -> None:
    """A submitted retry far away parks the run only once the thread waits for something."""
    port = MemoryPort()
    computed = threading.Event()

    @task(retry=Retry.fixed(delay=timedelta(hours=1)))
    def flaky() -> None:
        raise ValueError

    @workflow("w")
    def handler(run: SyncRun) -> None:
        future = run.submit(flaky)
        while not port.records:
            threading.Event().wait(0.001)
        threading.Event().wait(0.05)
        assert port.parks == []
        computed.set()
        future.result()

    ended, _ = await execute(handler, port=port)

    assert ended == Parked()
    assert computed.is_set()
