"""What a run tells its handler is the same on every replay, and none of it writes."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from endpoint_sdk import ConfigurationError, Run, RunInfo, TaskFailed, task, workflow
from endpoint_sdk.replay import Engine
from endpoint_sdk.wire import clock
from tests.unit.sdk.replay_lab import MemoryPort, execute, grant, plain


@task
async def _echo(value: Any) -> Any:
    return value


async def test_time_and_randomness_repeat() -> None:
    """now, uuid and random answer a replay as they answered the first run, in every branch."""

    @workflow("w")
    async def handler(run: Run) -> list[Any]:
        async def branch(name: str) -> list[Any]:
            before = run.now()
            await run.task(_echo, name)
            return [before.isoformat(), run.now().isoformat(), run.uuid().hex, run.random.random()]

        return [await asyncio.gather(*(branch(name) for name in "abc")), await branch("d")]

    ended, records = await execute(handler)
    again, _ = await execute(handler, records)
    resumed, _ = await execute(handler, records[:2])

    assert plain(again) == plain(ended)
    branches = zip(plain(resumed)[0], plain(ended)[0], strict=True)
    assert sum(now == then for now, then in branches) >= 2


async def test_now_is_the_time_of_the_outcome_seen_last() -> None:
    """Before the first outcome it is the submission; afterwards the record's, standing still in between."""

    @workflow("w")
    async def handler(run: Run) -> list[str]:
        before = run.now()
        await run.task(_echo, 1)
        return [before.isoformat(), run.now().isoformat(), run.now().isoformat()]

    ended, records = await execute(handler)
    before, after, still = plain(ended)

    assert datetime.fromisoformat(before) == datetime(2026, 12, 1, 10, tzinfo=UTC)
    assert clock.from_wire(after) == clock.from_wire(records[0].finished_at or "")
    assert after == still


async def test_info_is_the_run_as_claimed() -> None:
    """RunInfo carries what the grant says, with aware times."""

    @workflow("w")
    async def handler(run: Run) -> RunInfo:
        assert run.info.id == run.id
        return run.info

    ended, _ = await execute(handler)

    assert plain(ended) == {
        "id": "run_1",
        "workflow": "lab",
        "version": "1",
        "revision": 3,
        "attempt": 1,
        "namespace": "default",
        "idempotency_key": None,
        "parent_id": None,
        "submitted_at": "2026-12-01T10:00:00Z",
        "scheduled_for": None,
        "tags": {"team": "lab"},
        "generation": 0,
    }


async def test_the_logger_is_silent_while_replaying(caplog: pytest.LogCaptureFixture) -> None:
    """A line is written once per run, by the execution that got that far, with the run's fields."""
    caplog.set_level(logging.INFO, "endpoint_sdk.run")
    replaying: list[bool] = []

    @workflow("w")
    async def handler(run: Run) -> None:
        replaying.append(run.replaying)
        run.logger.info("before", extra={"mine": 1})
        await run.task(_echo, 1)
        run.logger.info("after")
        replaying.append(run.replaying)

    _, records = await execute(handler)
    await execute(handler, records)

    assert [record.getMessage() for record in caplog.records if record.name == "endpoint_sdk.run"] == [
        "before",
        "after",
        "after",
    ]
    assert (caplog.records[0].__dict__["run_id"], caplog.records[0].__dict__["mine"]) == ("run_1", 1)
    assert replaying == [False, False, True, False]


async def test_a_note_waits_on_the_engine_for_the_next_write() -> None:
    """set_note is cut to what the dispatcher takes and found on the engine."""

    @workflow("w")
    async def handler(run: Run) -> None:
        run.set_note("half\x00way " + "x" * 2_000)

    engine = Engine(handler, grant(), MemoryPort())
    await engine.run()

    assert engine.note is not None
    assert engine.note.startswith("half\ufffdway ")
    assert len(engine.note) == 1_000


async def test_map_bounds_what_runs_and_keeps_order() -> None:
    """At most `limit` bodies run at once, and results come in the order of the items."""
    running = most = 0

    @task
    async def square(value: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - value):
            await asyncio.sleep(0)
        running -= 1
        return value * value

    @workflow("w")
    async def handler(run: Run) -> list[int]:
        with pytest.raises(ConfigurationError):
            await run.map(square, [1], limit=0)
        return await run.map(square, range(10), limit=3)

    ended, _ = await execute(handler)

    assert plain(ended) == [value * value for value in range(10)]
    assert most == 3


async def test_map_raises_the_first_failure() -> None:
    """One failing item ends the map with its failure and cancels the rest."""

    @task
    async def pick(value: int) -> int:
        if value == 1:
            raise ConfigurationError("one")
        await asyncio.get_running_loop().create_future()
        return value

    @workflow("w")
    async def handler(run: Run) -> str:
        with pytest.raises(TaskFailed, match="one"):
            await run.map(pick, range(3))
        return "failed"

    ended, _ = await execute(handler)

    assert plain(ended) == "failed"
