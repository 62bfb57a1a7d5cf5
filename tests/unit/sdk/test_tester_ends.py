"""WorkflowTester: cancels, timeouts, run retries, restarts, and what a failure starts."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import (
    CancelRequested,
    ChildFailed,
    Conflict,
    Retry,
    Run,
    RunCancelled,
    RunFailed,
    SyncRun,
    TaskFailed,
    task,
    workflow,
)
from endpoint_sdk.testing import WorkflowTester

HOUR = timedelta(hours=1)

bodies: list[str] = []


class Declined(Exception):
    """What a card does."""


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    bodies.clear()


@task
def reserve(item: str) -> str:
    bodies.append(f"reserve {item}")
    return item


@task(retry=Retry.fixed(max_attempts=2, delay=timedelta(minutes=1)))
async def release(item: str) -> None:
    bodies.append(f"release {item}")


@workflow("trip")
async def trip(run: Run, item: str) -> str:
    await run.task(reserve, item)
    run.undo(release, item)
    try:
        await run.wait_event("paid")
    except CancelRequested:
        await run.compensate()
        raise
    return f"{item} paid"


@workflow("trip-sync")
def trip_sync(run: SyncRun, item: str) -> str:
    run.task(reserve, item)
    run.undo(release, item)
    try:
        run.wait_event("paid")
    except CancelRequested:
        run.compensate()
        raise
    return f"{item} paid"


@pytest.mark.parametrize("replay", ["each-step", "never"])
@pytest.mark.parametrize("handler", [trip, trip_sync])
def test_a_cancelled_run_compensates(replay: Any, handler: Any) -> None:
    """The request reaches the code where it waits, and the run ends as cancelled."""
    run = WorkflowTester(replay=replay).start(handler, "seat")
    run.cancel("changed my mind")

    assert run.status == "cancelled"
    assert bodies == ["reserve seat", "release seat"]
    assert [step.kind for step in run.history] == ["task", "cancel", "task"]
    with pytest.raises(RunCancelled, match="changed my mind"):
        run.result()
    run.cancel("again")
    assert isinstance(run.error, RunCancelled)

    paid = WorkflowTester(replay=replay).start(handler, "seat")
    paid.send("paid", None)
    with pytest.raises(Conflict, match="completed already"):
        paid.cancel()


def test_a_compensation_may_retry_and_is_ended_when_it_takes_too_long() -> None:
    """It waits on the clock like everything else, up to the grace of a cancel."""
    t = WorkflowTester()
    released = t.stub(release, [Declined("down"), None])
    run = t.start(trip, "seat")
    run.cancel()
    assert run.status == "awaiting_retry"
    with pytest.raises(RunCancelled):
        run.result()
    assert released.count == 2

    t.stub(release.with_options(retry=Retry.never()), Declined("down"))

    @workflow("stubborn")
    async def stubborn(run: Run) -> None:
        try:
            await run.wait_event("e")
        except CancelRequested:
            await run.sleep("long", 24 * HOUR)

    other = t.start(stubborn)
    other.cancel()
    assert other.status == "sleeping"
    other.advance(timedelta(minutes=5))
    assert other.status == "cancelled"


def test_a_cancel_from_within_a_body_is_heard_at_the_next_call() -> None:
    """Every answer tells of it: no claim has to end for that."""

    @task
    def stop() -> None:
        run.cancel("enough")

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.wait_event("go")
        await run.task(stop)
        await run.task(reserve, "never")

    run = WorkflowTester().start(handler)
    run.send("go", None)

    assert run.status == "cancelled"
    assert bodies == []


def test_a_run_that_takes_too_long_is_cancelled() -> None:
    """`timeout=` counts from the start of the run, with the reason a client would see."""

    @workflow("slow", timeout=HOUR)
    async def slow(run: Run) -> None:
        await run.wait_event("never")

    t = WorkflowTester()
    began = t.now
    with pytest.raises(RunCancelled, match="timed_out"):
        t.run(slow)
    assert t.now - began == HOUR


def test_a_cancel_goes_on_to_children() -> None:
    """Gracefully; the parent that waits for a child which was cancelled hears it as ChildFailed."""

    @workflow("parent")
    async def parent(run: Run) -> str:
        child = await run.start_child(trip, "seat")
        try:
            return await child.result()
        except ChildFailed as failure:
            return failure.error_type

    t = WorkflowTester()
    run = t.start(parent)
    run.cancel()
    assert run.status == "cancelled"
    assert bodies == ["reserve seat", "release seat"]


@pytest.mark.parametrize("replay", ["each-step", "never"])
def test_a_failed_run_begins_its_next_attempt(replay: Any) -> None:
    """What succeeded is not done again; the failure is, after the delay."""

    @workflow("again", retry=Retry.fixed(max_attempts=2, delay=HOUR))
    async def again(run: Run) -> str:
        item = await run.task(reserve, "seat")
        paid = await run.task(flaky)
        return f"{item} {paid} at attempt {run.info.attempt}"

    @task(retry=Retry.never())
    def flaky() -> str:
        raise AssertionError("stubbed")

    t = WorkflowTester(replay=replay)
    t.stub(flaky, [Declined("no"), "paid"])
    run = t.start(again)
    assert run.status == "awaiting_retry"
    assert run.waiting_for == {"again"}
    assert run.result() == "seat paid at attempt 2"
    assert bodies == ["reserve seat"]

    t.stub(flaky, Declined("no"))
    with pytest.raises(RunFailed) as caught:
        t.run(again)
    assert isinstance(caught.value.__cause__, TaskFailed)


@pytest.mark.parametrize("replay", ["each-step", "never"])
@pytest.mark.parametrize("outcomes", [[Declined("no"), Declined("no")], [Declined("no"), "paid"]])
def test_an_attempt_makes_a_caught_failure_again_before_what_succeeded_after_it(replay: Any, outcomes: Any) -> None:
    """Its record is gone and the later ones are not: they wait for their calls, if the code still comes to them."""

    @task(retry=Retry.never())
    def pay() -> str:
        raise AssertionError("stubbed")

    @workflow("fallback", retry=Retry.fixed(max_attempts=2, delay=HOUR))
    async def fallback(run: Run) -> str:
        try:
            how = await run.task(pay)
        except TaskFailed:
            how = await run.task(reserve, "invoice")
        await run.sleep("a while", HOUR)
        if run.info.attempt == 1:
            raise Declined("once")
        return how

    t = WorkflowTester(replay=replay)
    paid = t.stub(pay, outcomes)

    assert t.run(fallback) == ("paid" if "paid" in outcomes else "invoice")
    assert paid.count == 2
    assert bodies == ["reserve invoice"]


def test_a_run_begins_anew() -> None:
    """With another input and an empty history; events that came in between are kept."""

    @workflow("countdown")
    async def countdown(run: Run, left: int) -> str:
        await run.task(reserve, f"{left}")
        if left:
            run.restart(left - 1)
        return str(await run.wait_event("go"))

    run = WorkflowTester().start(countdown, 2)
    assert run.waiting_for == {"go"}
    run.send("go", "went")
    assert run.result() == "went"
    assert bodies == ["reserve 2", "reserve 1", "reserve 0"]
    assert len(run.history) == 2


def test_a_failure_starts_what_on_failure_names() -> None:
    """With what failed and why; it is a run of its own."""

    @task
    def alert(text: str) -> None:
        raise AssertionError("stubbed")

    @workflow("tell")
    async def tell(run: Run, failed: dict[str, Any]) -> None:
        await run.task(alert, f"{failed['workflow']} of {failed['input']}: {failed['error']['type']}")
        raise Declined("this one too")

    @workflow("fails", on_failure=tell)
    async def fails(run: Run, name: str) -> None:
        await asyncio.sleep(0)
        raise Declined("no")

    t = WorkflowTester()
    alerted = t.stub(alert, None)
    assert t.start(fails, "ana").status == "failed"
    assert alerted.count == 1
    assert alerted.called_with("fails of ana: Declined")  # noqa: PGH005 - a method of ours, no mock's
