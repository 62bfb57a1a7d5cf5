"""Waits: they park the run for what it waits for, and their records bring it back."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from endpoint_sdk import Event, EventInvalid, PointsmanError, Retry, Run, RunFailed, WaitTimeout, task, workflow
from endpoint_sdk.replay import Parked, RecordRefused
from endpoint_sdk.testing import WorkflowTester
from endpoint_sdk.wire import clock, messages
from tests.unit.sdk.replay_lab import GRANTED, MemoryPort, answered, execute, plain

HOUR = timedelta(hours=1)


class Decision(msgspec.Struct):
    approved: bool


DECISION = Event[Decision]("decision")


@task
async def _echo(value: Any) -> Any:
    return value


def after(duration: timedelta) -> str:
    """*duration* after the claim was granted."""
    return clock.to_wire(clock.from_wire(GRANTED) + duration // timedelta(milliseconds=1))


async def test_a_sleep_parks_and_its_record_brings_the_run_back() -> None:
    """The run is parked until the sleep is over, and goes on behind it once that is recorded."""

    @workflow("w")
    async def handler(run: Run) -> str:
        await run.sleep("cool-off", HOUR)
        return run.now().isoformat()

    port = MemoryPort()
    ended, records = await execute(handler, port=port)

    assert ended == Parked()
    assert records == []
    [[wait]] = port.parks
    assert (wait.kind, wait.name, wait.ordinal, wait.args_hash) == ("sleep", "cool-off", 0, "")
    assert after(HOUR) <= (wait.deadline or "") < after(HOUR + timedelta(seconds=5))

    ended, records = await execute(handler, [answered("sleep", "cool-off")])

    assert plain(ended) == "2026-12-01T12:00:00+00:00"
    assert records == []


@pytest.mark.parametrize("duration", [timedelta(0), timedelta(seconds=-1), timedelta(milliseconds=20)])
async def test_a_short_sleep_is_sat_out_and_recorded_here(duration: timedelta) -> None:
    """Nothing is parked for a moment; the record makes the sleep a thing of the past on replay."""

    @workflow("w")
    async def handler(run: Run) -> str:
        await run.sleep("s", duration)
        return run.now().isoformat()

    port = MemoryPort()
    ended, records = await execute(handler, port=port)
    again, new = await execute(handler, records)

    assert (port.parks, new) == ([], [])
    assert plain(again) == plain(ended)
    [record] = records
    assert (record.kind, record.name, record.args_hash, record.ordinal) == ("sleep", "s", "", 0)
    assert record.value == msgspec.Raw(b"null")


async def test_sleep_until_names_the_moment() -> None:
    """The deadline is the moment itself, in whatever zone it was given."""

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.sleep_until("s", datetime(2027, 1, 1, tzinfo=UTC))

    port = MemoryPort()
    await execute(handler, port=port)

    assert port.parks[0][0].deadline == "2027-01-01T00:00:00.000Z"


async def test_sleeps_that_cannot_be_are_refused() -> None:
    """A name the dispatcher does not take, a naive datetime, a number: set-up errors, before anything is written."""

    @workflow("w")
    async def handler(run: Run, which: str) -> None:
        if which == "name":
            await run.sleep("", HOUR)
        if which == "naive":
            await run.sleep_until("s", datetime(2027, 1, 1))  # noqa: DTZ001 - the mistake
        if which == "number":
            await run.sleep("s", 5)  # type: ignore[arg-type]
        if which == "timeout":
            await run.wait_event("e", timeout=5)  # type: ignore[call-overload]

    for which in ("name", "naive", "number", "timeout"):
        ended, records = await execute(handler, value=which)
        assert plain(ended) == "configuration", which
        assert records == []


async def test_an_event_is_waited_for_by_parking_and_decoded() -> None:
    """Even a run that could wait here parks for an event, because only the dispatcher hears of it."""

    @workflow("w")
    async def handler(run: Run) -> bool:
        return (await run.wait_event(DECISION, timeout=timedelta(seconds=1))).approved

    port = MemoryPort()
    ended, _ = await execute(handler, port=port)

    assert ended == Parked()
    [[wait]] = port.parks
    assert (wait.kind, wait.name) == ("event", "decision")
    assert after(timedelta(seconds=1)) <= (wait.deadline or "")

    ended, records = await execute(handler, [answered("event", "decision", {"approved": True})])

    assert plain(ended) is True
    assert records == []


def test_a_timeout_raises_or_gives_the_default() -> None:
    """A timeout is WaitTimeout, which is a TimeoutError; with `default=` it is a value."""

    @workflow("w")
    async def handler(run: Run) -> list[Any]:
        seen: list[Any] = [await run.wait_event(DECISION, timeout=HOUR, default="none")]
        with pytest.raises(WaitTimeout):
            await run.wait_event(DECISION, timeout=HOUR)
        try:
            await run.wait_event("other", timeout=HOUR)
        except TimeoutError:
            seen.append("late")
        return seen

    assert WorkflowTester().run(handler) == ["none", "late"]


def test_an_uncaught_timeout_fails_the_run() -> None:
    """The run's error says which event did not come."""

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.wait_event("e", timeout=HOUR)

    with pytest.raises(RunFailed, match="WaitTimeout: no event 'e'"):
        WorkflowTester().run(handler)


def test_a_value_that_does_not_fit_raises_and_the_next_wait_takes_the_next_event() -> None:
    """EventInvalid names the event; the workflow may ask again, and asks for another event then."""

    @workflow("w")
    async def handler(run: Run) -> bool:
        with pytest.raises(EventInvalid) as caught:
            await run.wait_event(DECISION)
        assert caught.value.event == "decision"
        return (await run.wait_event(DECISION)).approved

    run = WorkflowTester().start(handler)
    run.send("decision", {"approved": "perhaps"})
    assert run.waiting_for == {"decision"}
    run.send(DECISION, Decision(approved=False))
    assert run.result() is False


async def test_all_waits_are_armed_at_once() -> None:
    """Side by side, sleeps, events and a task's next attempt go into one park, each with its own deadline."""

    @task(retry=Retry.fixed(delay=HOUR))
    async def flaky() -> None:
        raise ValueError

    @workflow("w")
    async def handler(run: Run) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(run.sleep("s", HOUR))
            group.create_task(run.sleep("s", 2 * HOUR))
            group.create_task(run.wait_event("e"))
            group.create_task(run.task(flaky))

    port = MemoryPort()
    ended, _ = await execute(handler, port=port)

    assert ended == Parked()
    assert [(wait.kind, wait.ordinal, wait.deadline is None) for wait in port.parks[0]] == [
        ("sleep", 0, False),
        ("sleep", 1, False),
        ("event", 0, True),
        ("retry", 0, False),
    ]


def test_the_first_of_several_waits_decides_and_the_other_is_not_waited_for_again() -> None:
    """A sleep cancelled because the event came first is not among what the next park waits for."""

    @workflow("w")
    async def handler(run: Run) -> str:
        event = asyncio.ensure_future(run.wait_event("e"))
        nap = asyncio.ensure_future(run.sleep("s", HOUR))
        done, pending = await asyncio.wait([event, nap], return_when=asyncio.FIRST_COMPLETED)
        for each in pending:
            each.cancel()
        await run.sleep("then", HOUR)
        return "event" if event in done else "sleep"

    run = WorkflowTester().start(handler)
    run.send("e", None)
    assert run.waiting_for == {"then"}
    assert run.result() == "event"

    late = WorkflowTester().start(handler)
    late.advance(HOUR)
    late.send("e", None)
    assert late.waiting_for == {"then"}
    assert late.result() == "sleep"


def test_c65_addresses_never_mix_kinds() -> None:
    """C65: a sleep, an event and a task of one name each take their own record."""

    @task(name="x")
    async def body() -> str:
        return "task"

    @workflow("w")
    async def handler(run: Run) -> list[Any]:
        return list(await asyncio.gather(run.task(body), run.sleep("x", HOUR), run.wait_event("x")))

    run = WorkflowTester().start(handler)
    run.send("x", "event")
    assert run.result() == ["task", None, "event"]


async def test_a_sleep_whose_record_is_refused_raises() -> None:
    """When the dispatcher will not take the record of a sleep, the workflow hears the code."""

    async def refuse(_: messages.RecordIn) -> None:
        raise RecordRefused("history_limit", "full")

    @workflow("w")
    async def handler(run: Run) -> str:
        try:
            await run.sleep("s", timedelta(0))
        except PointsmanError as error:
            return error.code
        return "slept"

    port = MemoryPort()
    port.on_write = refuse
    ended, _ = await execute(handler, port=port)

    assert plain(ended) == "history_limit"


async def test_an_event_whose_record_names_another_failure_raises_its_code() -> None:
    """What the dispatcher says of a wait reaches the code, whatever it is."""

    @workflow("w")
    async def handler(run: Run) -> str:
        with pytest.raises(PointsmanError) as caught:
            await run.wait_event(Event[str]("e"), timeout=HOUR, default="none")
        return str(caught.value.code)

    ended, _ = await execute(handler, [answered("event", "e", error="history_limit")])

    assert plain(ended) == "history_limit"
