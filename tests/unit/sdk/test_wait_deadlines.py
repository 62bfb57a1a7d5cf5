"""When a wait is over by itself, across claims: what was set first stands."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from endpoint_sdk import Retry, Run, task, workflow
from endpoint_sdk.replay import Completed, Parked, RecordRefused
from endpoint_sdk.wire import messages
from tests.unit.sdk.replay_lab import GRANTED, LATER, MemoryPort, execute, plain

HOUR = timedelta(hours=1)


@task
async def _echo(value: Any) -> Any:
    return value


async def test_c64_an_armed_deadline_stands_whatever_the_code_says_now() -> None:
    """C64: a run woken by something else sleeps on until the moment of its first park, not for another duration."""

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.sleep("s", 9 * HOUR)

    armed = messages.WaitFor("sleep", "s", 0, "", LATER)
    port = MemoryPort()
    ended, _ = await execute(handler, port=port, waits=[armed])

    assert ended == Parked()
    assert port.parks == [[armed]]


async def test_an_armed_sleep_that_is_over_ends_here() -> None:
    """A deadline that passed while other work went on ends the sleep at the next claim, with a record."""

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.sleep("s", 9 * HOUR)

    ended, records = await execute(handler, waits=[messages.WaitFor("sleep", "s", 0, "", GRANTED)])

    assert isinstance(ended, Completed)
    assert [(record.kind, record.name, record.state) for record in records] == [("sleep", "s", "completed")]


async def test_a_long_wait_beside_other_work_is_written_down_and_its_deadline_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A claim that ends beside a running body leaves the deadline of the sleep, and asks for nothing else."""
    monkeypatch.setattr("endpoint_sdk.waiter._NOTED_AFTER", 0)
    port = MemoryPort()
    noted = asyncio.Event()

    async def note(_: messages.RecordIn) -> None:
        noted.set()

    port.on_write = note

    @task
    async def busy() -> None:
        await noted.wait()

    @workflow("w")
    async def handler(run: Run, hours: int) -> None:
        await asyncio.gather(run.sleep("s", hours * HOUR), run.task(busy))

    await execute(handler, value=1, port=port)
    armed, done = port.records

    assert (armed.kind, armed.phase, armed.state, armed.finished_at) == ("sleep", "started", "started", None)
    assert done.name == busy.name
    port = MemoryPort()
    ended, _ = await execute(handler, [armed, done], value=9, port=port)
    assert ended == Parked()
    assert [wait.deadline for wait in port.parks[0]] == [armed.next_attempt_at]


async def test_a_noted_wait_the_code_no_longer_makes_is_no_divergence() -> None:
    """What was only armed decided nothing yet: code that waits no more goes on to something new."""

    @workflow("w")
    async def handler(run: Run) -> Any:
        return await run.task(_echo, 1)

    armed = messages.RecordIn("sleep", "s", "", 0, "started", "started", 1, started_at=GRANTED, next_attempt_at=LATER)
    endless = messages.RecordIn("event", "e", "", 0, "started", "started", 1, started_at=GRANTED)
    ended, records = await execute(handler, [armed, endless], waits=[messages.WaitFor("sleep", "t", 0, "", LATER)])

    assert plain(ended) == 1
    assert len(records) == 1


async def test_a_retry_woken_early_is_tried_at_once() -> None:
    """The deadline of a parked retry overrules its record; that of an earlier attempt does not."""

    @task(retry=Retry.fixed(delay=HOUR))
    async def flaky() -> None:
        raise ValueError

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.task(flaky)

    port = MemoryPort()
    await execute(handler, port=port)
    [record], [[wait]] = port.records, port.parks
    woken = msgspec.structs.replace(wait, deadline=record.finished_at)
    stale = MemoryPort()
    ended, _ = await execute(handler, [record], port=stale, waits=[woken])
    assert (ended, stale.records) == (Parked(), [])

    past = msgspec.structs.replace(record, finished_at="2026-12-01T10:00:00.500Z")
    again, new = await execute(handler, [past], waits=[msgspec.structs.replace(wait, deadline=GRANTED)])
    assert again == Parked()
    assert [each.attempt for each in new] == [2]


async def test_a_deadline_that_cannot_be_noted_is_only_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run waits on when the dispatcher has no room for the record of a deadline."""
    monkeypatch.setattr("endpoint_sdk.waiter._NOTED_AFTER", 0)

    async def refuse(_: messages.RecordIn) -> None:
        raise RecordRefused("history_limit", "full")

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.sleep("s", HOUR)

    port = MemoryPort()
    port.on_write = refuse
    ended, records = await execute(handler, port=port)

    assert (ended, records) == (Parked(), [])
    assert "the deadline of sleep s could not be recorded: history_limit" in caplog.text


@pytest.mark.parametrize("asks", ["sleep", "event"])
async def test_the_longest_duration_there_is_parks(asks: str) -> None:
    """timedelta.max, which has no negative, is waited for up to the last moment the wire can name."""

    @workflow("w")
    async def handler(run: Run) -> None:
        if asks == "sleep":
            await run.sleep("s", timedelta.max)
        else:
            await run.wait_event("e", timeout=timedelta.max)

    port = MemoryPort()
    ended, _ = await execute(handler, port=port)

    assert ended == Parked()
    assert [wait.deadline for wait in port.parks[0]] == ["9999-12-31T23:59:59.999Z"]
