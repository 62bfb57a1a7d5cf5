"""endpoint_sdk.testing.WorkflowTester: runs, time, events and replay."""

import asyncio
import gc
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from endpoint_sdk import (
    ConfigurationError,
    Conflict,
    Event,
    Run,
    RunFailed,
    SyncRun,
    WaitTimeout,
    task,
    workflow,
)
from endpoint_sdk.testing import ReplayDiverged, Step, WorkflowStuck, WorkflowTester

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DECISION = Event[bool]("decision")

bodies: list[str] = []


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    bodies.clear()


class Declined(Exception):
    """What a card does."""


@task
def charge(order: str, cents: int = 1) -> str:
    bodies.append(f"charge {order}")
    return f"receipt {order}"


@task
async def ship(order: str) -> str:
    bodies.append(f"ship {order}")
    await asyncio.sleep(30)
    return f"parcel {order}"


@task(at_most_once=True)
async def pay(order: str) -> str:
    bodies.append(f"pay {order}")
    return f"paid {order}"


@workflow("order")
async def order(run: Run, name: str) -> list[str]:
    both = await asyncio.gather(run.task(charge, name), run.task(ship, name))
    return [*both, await run.task(pay, name)]


@workflow("approval")
async def approval(run: Run, name: str) -> str:
    await run.task(charge, name)
    await run.sleep("cool-off", HOUR)
    try:
        decision = await run.wait_event(DECISION, timeout=14 * DAY)
    except WaitTimeout:
        return f"nobody at {run.now():%d.%m. %H:%M}"
    return f"{decision} at {run.now():%d.%m. %H:%M}"


@workflow("approval-sync")
def approval_sync(run: SyncRun, name: str) -> str:
    future = run.submit(ship, name)
    run.task(charge, name)
    run.sleep("cool-off", HOUR)
    return f"{future.result()} {run.wait_event(DECISION, timeout=DAY, default=None)}"


@pytest.mark.parametrize("replay", ["each-step", "never"])
def test_a_run_is_executed_with_every_body_once(replay: Any) -> None:
    """However often the handler begins anew, what is recorded does not run again; waits and bodies cost no time."""
    t = WorkflowTester(replay=replay)

    assert t.run(order, "o1") == ["receipt o1", "parcel o1", "paid o1"]
    assert sorted(bodies) == ["charge o1", "pay o1", "ship o1"]
    assert t.now == START + timedelta(seconds=30)


@pytest.mark.parametrize("replay", ["each-step", "never"])
def test_time_passes_by_itself_until_a_run_has_its_result(replay: Any) -> None:
    """`run` skips sleeps and timeouts; what the workflow sees of the time is exact."""
    t = WorkflowTester(replay=replay)

    assert t.run(approval, "ana") == "nobody at 15.01. 01:00"
    assert t.run(approval_sync, "ana") == "parcel ana None"
    assert t.now == START + 14 * DAY + HOUR + HOUR + DAY


async def test_it_works_inside_a_running_loop() -> None:
    """An `async def` test may use it: the run has a loop of its own."""
    assert WorkflowTester().run(approval_sync, "ana") == "parcel ana None"


def test_a_started_run_rests_until_the_test_moves_it() -> None:
    """Time stands still unless it is advanced; history and waits tell where the run is."""
    run = WorkflowTester().start(approval, "ana")

    assert (run.status, run.error) == ("sleeping", None)
    assert run.waiting_for == {"cool-off"}
    assert run.history == [Step("task", "charge", 1, "completed"), Step("sleep", "cool-off", 1, "waiting")]

    run.advance(timedelta(minutes=59))
    assert run.status == "sleeping"

    run.advance(timedelta(minutes=1))
    assert run.status == "awaiting_event"
    assert run.waiting_for == {"decision"}

    run.advance(DAY)
    run.send(DECISION, True)
    assert (run.status, run.waiting_for) == ("completed", frozenset())
    assert run.result() == "True at 02.01. 01:00"
    assert [step.status for step in run.history] == ["completed"] * 3


def test_an_event_may_come_before_anybody_waits_for_it() -> None:
    """It is kept for the wait; a timeout that was over before the event came stands."""
    t = WorkflowTester()
    early, late = t.start(approval, "early"), t.start(approval, "late")
    early.send("decision", False)
    early.advance(HOUR)
    assert early.result() == "False at 01.01. 01:00"

    late.advance(14 * DAY)
    with pytest.raises(Conflict, match="completed"):
        late.send(DECISION, True)
    assert late.result() == "nobody at 15.01. 01:00"


def test_an_event_that_comes_while_a_body_runs_is_not_lost() -> None:
    """A park does not overlook what came during the execution that asks for it."""

    @task
    def decide() -> None:
        run.send(DECISION, True)

    @workflow("w")
    async def handler(run: Run) -> bool:
        await run.sleep("a moment", HOUR)
        await run.task(decide)
        return await run.wait_event(DECISION)

    run = WorkflowTester().start(handler)
    assert run.result() is True


def test_events_of_one_name_are_handed_out_in_order() -> None:
    """The oldest goes to the first wait, each to one."""

    @workflow("w")
    async def handler(run: Run) -> list[Any]:
        return list(await asyncio.gather(*(run.wait_event("e", timeout=DAY) for _ in range(3)), return_exceptions=True))

    run = WorkflowTester().start(handler)
    run.send("e", 1)
    run.send("e", 2)
    with pytest.raises(RunFailed, match="WaitTimeout"):
        run.result()

    assert [step.status for step in run.history] == ["completed", "completed", "failed"]


def test_a_failed_run_raises_what_a_client_would_see_with_its_cause() -> None:
    """RunFailed names the error; the exception itself is the cause."""

    @workflow("w")
    async def handler(run: Run) -> None:
        raise Declined("no")

    run = WorkflowTester().start(handler)

    assert run.status == "failed"
    with pytest.raises(RunFailed) as caught:
        run.result()
    assert caught.value.error_type == "Declined"
    assert isinstance(caught.value.__cause__, Declined)
    assert isinstance(run.error, RunFailed)


# --- what fails the test ---------------------------------------------------------------------------------------------
def test_code_that_does_not_repeat_itself_is_found() -> None:
    """An argument that changes from one execution to the next diverges, named with what was recorded."""

    @workflow("w")
    async def handler(run: Run) -> str:
        await run.task(charge, "o", random.randrange(10**9))
        return await run.task(ship, "o")

    with pytest.raises(ReplayDiverged, match=r"recorded task charge .* was never asked for") as caught:
        WorkflowTester().run(handler)
    assert caught.value.details["changed"] == ["cents"]


def test_a_result_that_changes_is_found() -> None:
    """Only each-step compares: a result made of the outside world differs on the last replay."""
    results = iter(range(100))

    @workflow("w")
    async def handler(run: Run) -> int:
        await run.task(charge, "o")
        return next(results)

    assert WorkflowTester(replay="never").run(handler) == 0
    with pytest.raises(ReplayDiverged, match="completed with 1 and replays to completed with 2"):
        WorkflowTester().run(handler)


def test_a_task_called_directly_fails_the_test() -> None:
    """Whatever the workflow makes of it; a task that calls another one is fine."""

    @task
    async def outer() -> str:
        return charge("inner")

    @workflow("w")
    async def handler(run: Run) -> str:
        return await run.task(outer)

    @workflow("wrong")
    def wrong(run: SyncRun) -> str:
        try:
            return charge("direct")
        except Exception:
            return "swallowed"

    t = WorkflowTester()
    assert t.run(handler) == "receipt inner"
    with pytest.raises(ConfigurationError, match="'charge' was called directly inside a workflow"):
        t.run(wrong)
    assert "charge direct" not in bodies


def test_what_makes_no_sense_is_refused() -> None:
    """Time goes forward, the clock has a zone, an input is what the workflow takes."""
    with pytest.raises(ConfigurationError, match="time zone"):
        WorkflowTester(now=datetime(2026, 1, 1))  # noqa: DTZ001 - the mistake
    with pytest.raises(ConfigurationError, match="replay="):
        WorkflowTester(replay="sometimes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="forward"):
        WorkflowTester().start(approval, "a").advance(-HOUR)


def test_an_execution_that_breaks_off_fails_the_test() -> None:
    """A fault inside the engine leaves no outcome anywhere, and in production the run to recovery."""

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.task(ship, "o1")

    t = WorkflowTester()
    t._laboratory.timing = msgspec.structs.replace(t._laboratory.timing, chance=None)
    t.stub(ship, Declined("no"))
    with pytest.raises(WorkflowStuck, match="broke off"):
        t.run(handler)


def test_a_tester_that_is_gone_leaves_nothing_open() -> None:
    """Its loop is closed with it."""

    @workflow("w")
    async def handler(run: Run) -> str:
        return await run.task(ship, "o1")

    t = WorkflowTester()
    t.run(handler)
    loop = t._laboratory.loop
    del t
    gc.collect()

    assert loop.is_closed()


def test_a_long_history_is_not_replayed_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred steps are; beyond, the number of replays no longer grows with the history."""
    monkeypatch.setattr("endpoint_sdk.testing.memory_claim._EVERY_STEP", 40)
    began = 0

    @task
    async def length(number: int) -> int:
        return number

    @workflow("w")
    async def handler(run: Run) -> int:
        nonlocal began
        began += 1
        return sum([await run.task(length, number) for number in range(80)])

    assert WorkflowTester().run(handler) == sum(range(80))
    assert 40 < began < 60
