"""A graceful cancel beside `def` workflows, children, suspensions, refusals and changed code."""

import asyncio

import msgspec
import pytest

from endpoint_sdk import CancelRequested, Retry, Run, SyncRun, TaskFailed, task, workflow
from endpoint_sdk.errors import RecordRefused
from endpoint_sdk.port import Cancelled, Completed, Parked
from endpoint_sdk.replay import Engine
from endpoint_sdk.wire import messages
from tests.unit.sdk.cancel_lab import HOUR, TRACE, kinds, patient, saga, step, under_cancel
from tests.unit.sdk.replay_lab import IDLE_SECONDS, Lab, MemoryPort, answered, execute, grant, plain


@pytest.fixture(autouse=True)
def _fresh_trace() -> None:
    TRACE.clear()


async def test_a_refused_place_is_raised_all_the_same() -> None:
    """A run that can record nothing more still learns that it is to end."""
    port = MemoryPort()

    async def refuse(_: messages.RecordIn) -> None:
        raise RecordRefused("history_limit", "full")

    port.on_write = refuse
    assert (await under_cancel(saga, port=port))[0] == Cancelled()


async def test_c61_an_except_around_a_wait_sees_no_suspension() -> None:
    """C61: a park is not heard by `except BaseException`, and what the handler returns then does not count."""

    @workflow("greedy")
    async def greedy(run: Run) -> str:
        try:
            await run.sleep("s", HOUR)
        except BaseException:
            return "swallowed"
        return "slept"

    ended, records = await execute(greedy)
    assert (ended, records) == (Parked(), [])


async def test_c61_in_a_def_workflow() -> None:
    """C61: the same at a blocking call."""

    @workflow("greedy-sync")
    def greedy(run: SyncRun) -> str:
        try:
            run.sleep("s", HOUR)
        except BaseException:
            return "swallowed"
        return "slept"

    ended, records = await execute(greedy)
    assert (ended, records) == (Parked(), [])


async def test_a_def_workflow_is_told_at_the_blocking_call() -> None:
    """Submitted tasks that have not begun stay so; the call the thread blocks in raises, again on replay."""

    @workflow("sync-saga")
    def blocking(run: SyncRun) -> str:
        paid = run.task(step, "pay")
        first, second = run.submit(step, "ship"), run.submit(step, "mail")
        try:
            second.result()
        except CancelRequested:
            return f"{paid}, undone {run.task(step, 'refund')}"
        return first.result()

    _, paid = await execute(blocking)
    TRACE.clear()
    ended, new = await under_cancel(blocking, paid[:1])
    assert plain(ended) == "pay, undone refund"
    assert TRACE == ["refund"]
    assert [record.ordinal for record in new if record.kind == "cancel"] == [0]
    again, none = await under_cancel(blocking, [*paid[:1], *new])
    assert (plain(again), none) == ("pay, undone refund", [])


async def test_a_cancel_heard_while_the_claim_is_refreshed_keeps_the_body_from_starting() -> None:
    """The last thing before a body is the fence; what its answer tells is obeyed."""
    port = MemoryPort()

    async def refreshed() -> None:
        engine.cancel("late")

    port.on_fence = refreshed
    engine = Engine(patient, grant(), port, idle_seconds=IDLE_SECONDS)
    async with asyncio.timeout(5):
        ended = await engine.run()
    assert isinstance(ended, Cancelled)
    assert TRACE == []


@workflow("kid")
async def kid(run: Run) -> str:
    return "never asked"


@workflow("parent")
async def parent(run: Run) -> list[str]:
    child = await run.start_child(kid)
    both = await asyncio.gather(child.result(), child.result(), run.sleep("s", HOUR), return_exceptions=True)
    return [type(each).__name__ for each in both]


async def test_one_branch_of_two_that_wait_for_one_child_is_told() -> None:
    """The end of a child may be asked for twice; on replay too only the first gets the cancel."""
    port = MemoryPort()
    await execute(parent, port=port)
    started = list(port.records)
    port.records.append(answered("sleep", "s"))
    _, told = await under_cancel(parent, port.records)
    assert kinds(told) == [("cancel", "kid")]
    assert told[0].value == msgspec.Raw(b'{"kind":"child","phase":"ended"}')
    ended = answered("child", "kid", "done")
    ended = msgspec.structs.replace(ended, args_hash=started[0].args_hash)
    for _ in range(2):
        again, new = await under_cancel(parent, [*port.records, *told, ended])
        assert (plain(again), new) == (["CancelRequested", "str", "NoneType"], [])


@workflow("reminding")
async def _reminding(run: Run) -> str:
    answer = asyncio.create_task(run.wait_event("answer"))
    remind = asyncio.create_task(run.sleep("remind", HOUR))
    await asyncio.wait([answer, remind], return_when=asyncio.FIRST_COMPLETED)
    try:
        await run.task(step, "ship")
        return str(await run.wait_event("received"))
    except CancelRequested:
        TRACE.append("told")
        await run.task(step, "refund")
        raise


async def test_a_branch_nobody_waits_for_does_not_swallow_the_cancel() -> None:
    """What is left of a race waits earlier than the handler's own wait, and would be told with nobody to hear it."""
    before = [answered("event", "answer", "yes")]
    ended, records = await under_cancel(_reminding, before)
    assert (ended, kinds(records)) == (Cancelled(), [("cancel", "step"), ("task", "step")])
    assert TRACE == ["told", "refund"]

    TRACE.clear()
    again, more = await under_cancel(_reminding, [*before, *records])
    assert (again, more, TRACE) == (Cancelled(), [], ["told"])


async def test_the_handlers_running_task_ends_before_a_left_over_branch_could_be_told() -> None:
    """While the handler awaits a body, no branch nobody waits for is told in its place."""

    @task(name="pack")
    async def pack() -> None:
        await lab.body("pack")

    @workflow("left-over")
    async def left_over(run: Run) -> None:
        watch = asyncio.create_task(run.wait_event("never"))
        await run.task(pack)
        try:
            await run.sleep("s", HOUR)
        except CancelRequested:
            TRACE.append("told")
            watch.cancel()
            raise

    lab = Lab(left_over)
    await lab.start()
    lab.cancel("fraud")
    await lab.rest()
    assert lab.on_the_way == 0
    await lab.finish(0)
    await lab.store(1)
    await lab.store(1)

    assert await lab.ended() == Cancelled()
    assert (TRACE, kinds(lab.records)) == (["told"], [("task", "pack"), ("cancel", "s")])


async def test_where_nobody_waits_for_any_branch_the_earliest_is_told() -> None:
    """A handler that waits by other means than the run's is told in the branch that waits first."""

    @workflow("aside")
    async def aside(run: Run) -> None:
        told = asyncio.Event()

        async def watch() -> None:
            try:
                await run.wait_event("never")
            except CancelRequested:
                TRACE.append("told")
                told.set()

        branch = asyncio.create_task(watch())
        await told.wait()
        branch.cancel()

    ended, _ = await under_cancel(aside)
    assert (ended, TRACE) == (Completed(msgspec.Raw(b"null")), ["told"])


async def test_code_that_no_longer_makes_the_call_diverges() -> None:
    """The record of the place asks for its call as any other record does."""
    _, paid = await execute(patient)
    _, told = await under_cancel(patient, paid)

    @workflow("patient")
    async def changed(run: Run) -> str:
        await run.task(step, "pay")
        return str(await run.wait_event("verdict"))

    ended, _ = await under_cancel(changed, [*paid, *told])
    assert type(ended).__name__ == "Diverged"


async def test_a_failure_beside_the_cancel_is_not_lost() -> None:
    """The first record decides: a task that failed before the cancel raises TaskFailed, and only then the cancel."""

    @task(retry=Retry.never())
    async def failing() -> None:
        raise ValueError("no")

    @workflow("both")
    async def both(run: Run) -> str:
        try:
            await run.task(failing)
        except TaskFailed:
            try:
                await run.task(step, "a")
            except CancelRequested:
                return "failed, then told"
        return "neither"

    _, failed = await execute(both)
    ended, _ = await under_cancel(both, failed[:1])
    assert isinstance(ended, Completed)
    assert plain(ended) == "failed, then told"
