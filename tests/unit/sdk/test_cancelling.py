"""A graceful cancel as the workflow's code sees it: once, at one call, and at the same one on every replay."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from endpoint_sdk import CancelRequested, OutcomeUnknown, Retry, Run, task, workflow
from endpoint_sdk.port import Cancelled, Failed, Lost, Parked
from endpoint_sdk.wire import messages
from tests.unit.sdk.cancel_lab import HOUR, TRACE, flaky, kinds, patient, saga, step, under_cancel
from tests.unit.sdk.replay_lab import Lab, MemoryPort, answered, execute, plain, stored


@pytest.fixture(autouse=True)
def _fresh_trace() -> None:
    TRACE.clear()


class _Port(MemoryPort):
    """Notes which parks say that the workflow was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[bool] = []

    async def park(self, waits: Sequence[messages.WaitFor], *, told: bool = False) -> Sequence[messages.Record] | None:
        self.told.append(told)
        return await super().park(waits, told=told)


async def test_trap_the_grant_does_not_carry_stop() -> None:
    """A claim granted under a cancel starts no forward task: the first call gets CancelRequested instead."""
    ended, records = await under_cancel(saga)

    assert ended == Cancelled()
    assert TRACE == []
    assert kinds(records) == [("cancel", "step")]


async def test_trap_a_replay_raises_cancel_requested_at_the_first_call() -> None:
    """What is recorded is handed out first, so that what was done can be undone."""
    _, paid = await execute(saga)
    TRACE.clear()
    ended, records = await under_cancel(saga, paid[:1])

    assert ended == Cancelled()
    assert TRACE == ["told: fraud", "refund"]
    assert kinds(records) == [("cancel", "step"), ("task", "step")]


@pytest.mark.parametrize("kept", [1, 2, 3])
async def test_a_replay_raises_it_at_exactly_the_same_place(kept: int) -> None:
    """A crash at any point after the cancel: the same call gets it again, and nothing else is started."""
    _, paid = await execute(saga)
    _, told = await under_cancel(saga, paid[:1])
    known = [*paid[:1], *told]
    TRACE.clear()
    ended, new = await under_cancel(saga, known[:kept])

    assert ended == Cancelled()
    assert ["told: fraud"] + ["refund"] * (kept < 3) == TRACE
    assert len(new) == 3 - kept


async def test_a_waiting_run_is_told_at_its_wait() -> None:
    """The earliest pending wait is such a call; a handler that goes on and completes is heard."""
    _, paid = await execute(patient)
    ended, records = await under_cancel(patient, paid)

    assert plain(ended) == "gave up"
    assert kinds(records) == [("cancel", "decision")]
    assert records[0].value == msgspec.Raw(b'{"kind":"event","phase":"ended"}')
    again, new = await under_cancel(patient, [*paid, *records])
    assert (plain(again), new) == ("gave up", [])


async def test_trap_complete_becomes_cancelled_while_a_cancel_stands() -> None:
    """A workflow that has no call left completes, whatever was asked for."""
    _, paid = await execute(saga, [])
    done = [*paid, answered("sleep", "cool-off")]
    ended, new = await under_cancel(saga, done)

    assert plain(ended) == "shipped"
    assert new == []


async def test_an_error_under_a_cancel_fails_the_run() -> None:
    """Neither cancelled nor tried again: what the handler raises instead is its failure."""

    @workflow("broken", retry=Retry.fixed(max_attempts=3, delay=HOUR))
    async def broken(run: Run) -> None:
        try:
            await run.task(step, "a")
        except CancelRequested:
            raise ValueError("no") from None

    ended, _ = await under_cancel(broken)
    assert isinstance(ended, Failed)
    assert ended.error.type == "ValueError"


async def test_a_cancel_nobody_asked_for_is_a_failure() -> None:
    """A workflow that raises CancelRequested by itself fails: the dispatcher would not take its end as a cancel."""

    @workflow("impatient")
    async def impatient(run: Run) -> None:
        raise CancelRequested("by myself")

    ended, _ = await execute(impatient)
    assert isinstance(ended, Failed)


@pytest.mark.parametrize("how", ["gather", "group", "exceptions"])
async def test_it_is_raised_in_one_branch_only(how: str) -> None:
    """Under gather and TaskGroup one call gets it; no sibling that has not begun starts a body for it."""

    @workflow("wide")
    async def wide(run: Run) -> list[str]:
        if how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(run.task(step, "a"))
                group.create_task(run.task(step, "b"))
            return []
        both = await asyncio.gather(run.task(step, "a"), run.task(step, "b"), return_exceptions=how == "exceptions")
        return [str(each) for each in both]

    ended, records = await under_cancel(wide)
    assert kinds(records)[0] == ("cancel", "step")
    if how == "exceptions":
        # The workflow waits for nothing but its sibling, which then has to come to an end.
        assert plain(ended) == ["the run is to be cancelled: fraud", "b"]
        assert plain((await under_cancel(wide, records))[0]) == plain(ended)
    else:
        assert ended == Cancelled()
        assert TRACE == []


async def test_trap_the_place_of_cancel_requested_is_not_recorded_gather() -> None:
    """A sibling that ends after the cancel was raised changes nothing on replay: the recorded place decides."""

    @task
    async def slow(name: str) -> str:
        await lab.body(name)
        return name

    @workflow("race")
    async def race(run: Run) -> str:
        work = asyncio.ensure_future(run.task(slow, "work"))
        try:
            await run.wait_event("go")
        except CancelRequested:
            seen = "done" if work.done() else "not done"
            return seen + " " + await work
        return "went"

    lab = Lab(race)
    await lab.start()
    lab.cancel("stop it")
    await lab.rest()
    assert [record.kind for record in lab.sent] == ["cancel"]
    await lab.store(1)
    await lab.finish(0)
    await lab.store(1)

    assert plain(await lab.ended()) == "not done work"
    assert kinds(lab.records) == [
        ("cancel", "go"),
        ("task", "test_trap_the_place_of_cancel_requested_is_not_recorded_gather.<locals>.slow"),
    ]
    again, new = await under_cancel(race, lab.records)
    assert (plain(again), new) == ("not done work", [])


async def test_a_running_body_ends_before_the_workflow_is_told() -> None:
    """The boundary lies before a task: the one under way is recorded, and the next call gets the cancel."""

    @task
    async def slow(name: str) -> str:
        await lab.body(name)
        return name

    @workflow("steps")
    async def steps(run: Run) -> str:
        seen = await run.task(slow, "one")
        try:
            return await run.task(slow, "two")
        except CancelRequested:
            return f"{seen} only"

    lab = Lab(steps)
    await lab.start()
    lab.cancel()
    await lab.rest()
    assert lab.on_the_way == 0
    await lab.finish(0)
    await lab.store(1)
    await lab.store(1)

    assert plain(await lab.ended()) == "one only"
    assert [record.kind for record in lab.records] == ["task", "cancel"]


async def test_outcomes_the_answer_carries_come_first() -> None:
    """A wait that is answered before its cancel is on record gets its answer; the next call gets the cancel."""

    @task
    async def slow() -> None:
        await lab.body("beside")

    @workflow("two")
    async def two(run: Run) -> str:
        beside = asyncio.ensure_future(run.task(slow))
        seen = await run.wait_event("first")
        try:
            await run.wait_event("second")
        except CancelRequested:
            return f"{seen}, then told, {beside.done()}"
        return "both"

    lab = Lab(two)
    await lab.start()
    lab.cancel()
    await lab.rest()
    early = answered("event", "first", "answer")
    lab.records.append(early)
    lab.hear(stored(lab.records))
    await lab.store(1)
    await lab.store(1)

    assert plain(await lab.ended()) == "answer, then told, False"
    assert kinds(lab.records) == [("event", "first"), ("cancel", "first"), ("cancel", "second")]
    assert [record.attempt for record in lab.records[1:]] == [1, 2]
    again, new = await under_cancel(two, lab.records)
    assert (plain(again), new) == ("answer, then told, False", [])


@pytest.mark.parametrize("stored_unheard", [0, 1])
async def test_claim_loss_while_the_place_is_on_its_way(stored_unheard: int) -> None:
    """The executor stops quietly; whether the place was stored decides where the next one raises it."""
    lab = Lab(saga)
    await lab.start()
    lab.cancel()
    await lab.store(1)
    assert [record.kind for record in lab.sent] == ["cancel"]
    await lab.crash(stored_unheard=stored_unheard)

    assert await lab.ended() == Lost()
    TRACE.clear()
    ended, new = await under_cancel(saga, lab.records)
    assert (ended, TRACE) == (Cancelled(), ["told: fraud", "refund"])
    assert kinds(new) == [("cancel", "step")] * (1 - stored_unheard) + [("task", "step")]


async def test_a_compensations_retry_parks_told() -> None:
    """A park after the cancel says that the workflow was told; one before it never happens."""

    @workflow("undoing")
    async def undoing(run: Run) -> None:
        try:
            await run.sleep("s", HOUR)
        except CancelRequested:
            await run.task(flaky, "undo")

    port = _Port()
    ended, records = await under_cancel(undoing, port=port)
    assert ended == Parked()
    assert port.told == [True]
    assert [wait.kind for wait in port.parks[0]] == ["retry"]
    assert kinds(records) == [("cancel", "s"), ("task", "flaky")]


async def test_a_retry_that_waits_is_a_call_that_has_not_begun() -> None:
    """The next attempt of a forward task is not made: its caller is told instead, on every replay."""

    @workflow("retrying")
    async def retrying(run: Run) -> str:
        try:
            await run.task(flaky, "x")
        except CancelRequested:
            return "told"
        return "never"

    _, tried = await execute(retrying)
    TRACE.clear()
    ended, new = await under_cancel(retrying, tried)
    assert (plain(ended), TRACE) == ("told", [])
    assert plain((await under_cancel(retrying, [*tried, *new]))[0]) == "told"


async def test_c57_an_unknown_outcome_is_told_before_the_cancel() -> None:
    """C57, I7: an at-most-once task that an earlier claim started is a call with a record, and never runs again."""

    @task(at_most_once=True)
    async def pay() -> None:
        TRACE.append("paid twice")

    @workflow("paying")
    async def paying(run: Run) -> str:
        try:
            await run.task(pay)
        except OutcomeUnknown as unknown:
            try:
                await run.task(step, unknown.idempotency_key)
            except CancelRequested:
                return "unknown, then told"
        return "paid"

    _, records = await execute(paying)
    TRACE.clear()
    ended, new = await under_cancel(paying, records[:1])
    assert (plain(ended), TRACE) == ("unknown, then told", [])
    assert kinds(new) == [("task", records[0].name), ("cancel", "step")]
    assert plain((await under_cancel(paying, [*records[:1], *new]))[0]) == "unknown, then told"


async def test_no_at_most_once_task_starts_under_a_cancel() -> None:
    """I7: not even its start is recorded."""

    @task(at_most_once=True)
    async def pay() -> None:
        TRACE.append("paid")

    @workflow("paying")
    async def paying(run: Run) -> None:
        await run.task(pay)

    ended, new = await under_cancel(paying)
    assert (ended, TRACE) == (Cancelled(), [])
    assert [record.kind for record in new] == ["cancel"]
