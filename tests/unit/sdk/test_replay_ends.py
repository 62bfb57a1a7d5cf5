"""How an execution ends: suspension, loss, hostile handlers, and nothing left running."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import Retry, Run, SyncRun, task, task_context, workflow
from endpoint_sdk.replay import Completed, Engine, Lost, Parked, Suspended
from endpoint_sdk.wire import clock
from tests.unit.sdk.replay_lab import Lab, MemoryPort, execute, grant, plain


@task
async def _echo(value: Any) -> Any:
    return value


async def test_leaving_starts_no_task_and_suspends_at_once() -> None:
    """A run that is leaving when it reaches a task is suspended there, without a delay."""
    port = MemoryPort()
    port.is_leaving = True

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.task(_echo, 1)

    ended, records = await execute(handler, port=port)

    assert ended == Suspended()
    assert records == []


async def test_leaving_waits_for_the_running_sibling_and_its_record() -> None:
    """Asked to leave, a run first records what is under way, and then starts nothing more."""

    @task
    async def slow(name: str) -> str:
        await lab.body(name)
        return name

    @workflow("w")
    async def handler(run: Run) -> None:
        async def two(name: str) -> None:
            await run.task(slow, name)
            await run.task(slow, f"{name}2")

        await asyncio.gather(two("a"), two("b"))

    lab = Lab(handler)
    await lab.start()
    lab._engine.leave()  # type: ignore[union-attr]
    await lab.finish(0)
    await lab.store(1)
    assert not lab.done
    await lab.finish(0)
    await lab.store(1)

    assert await lab.ended() == Suspended()
    assert len(lab.started) == len(lab.records) == 2


async def test_leaving_while_all_branches_wait_for_retries_parks_for_them() -> None:
    """When nothing but retries is waited for, the run is parked until the first of them."""

    @task(retry=Retry.fixed(delay=timedelta(hours=1)))
    async def flaky(hours: int) -> None:
        raise ValueError(hours)

    @workflow("w")
    async def handler(run: Run) -> None:
        later = flaky.with_options(retry=Retry.fixed(delay=timedelta(hours=2)))
        await asyncio.gather(run.task(later, 2), run.task(flaky, 1))

    lab = Lab(handler)
    await lab.start()
    await lab.store(2)
    lab._engine.leave()  # type: ignore[union-attr]

    assert await lab.ended() == Parked()
    assert [(wait.kind, wait.deadline) for wait in lab.parks[-1]] == [
        ("retry", record.next_attempt_at) for record in lab.records
    ]


async def test_a_retry_beyond_the_hosts_time_is_left_to_a_fresh_invocation() -> None:
    """A retry due after the host's time is up parks the run at once instead of waiting here."""
    port = MemoryPort()
    port.left = timedelta(seconds=60)

    @task(retry=Retry.fixed(delay=timedelta(seconds=90)))
    async def flaky() -> None:
        raise ValueError

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.task(flaky)

    ended, records = await execute(handler, port=port)

    assert ended == Parked()
    assert [wait.deadline for wait in port.parks[0]] == [records[0].next_attempt_at]
    assert [(record.attempt, record.next_attempt_at is None) for record in records] == [(1, False)]


@pytest.mark.parametrize("insist", [False, True])
async def test_c61_no_except_swallows_suspension(insist: bool) -> None:
    """C61: a handler that catches everything, once or for ever, does not complete a suspended run."""
    port = MemoryPort()
    port.is_leaving = True
    swallowed = 0
    branches: list[asyncio.Task[Any] | None] = []

    @workflow("w")
    async def handler(run: Run) -> str:
        nonlocal swallowed
        branches.append(asyncio.current_task())
        while insist or not swallowed:
            try:
                await run.task(_echo, 1)
            except BaseException:
                swallowed += 1
        return "completed"

    ended, records = await execute(handler, port=port)

    assert ended == Suspended()
    assert swallowed > 0
    assert records == []
    insist = False
    for branch in branches:
        assert branch is not None
        branch.cancel()
        await asyncio.wait([branch])


async def test_c61_gather_with_return_exceptions_cannot_complete_a_suspended_run() -> None:
    """C61: suspension is not an exception that gather could hand to the workflow."""
    port = MemoryPort()
    port.is_leaving = True

    @workflow("w")
    async def handler(run: Run) -> int:
        return len(await asyncio.gather(run.task(_echo, 1), run.task(_echo, 2), return_exceptions=True))

    ended, _ = await execute(handler, port=port)

    assert ended == Suspended()


async def test_suspending_tells_a_finally() -> None:
    """`run.suspending` is true in a finally that runs at a suspension, and false in one that runs at an end."""
    port = MemoryPort()
    told: list[bool] = []

    @workflow("w")
    async def handler(run: Run) -> None:
        try:
            await run.task(_echo, 1)
        finally:
            told.append(run.suspending)

    await execute(handler)
    port.is_leaving = True
    await execute(handler, port=port)

    assert told == [False, True]


async def test_loss_cancels_the_body_and_the_handler() -> None:
    """A lost claim cancels an async body, records nothing and ends Lost."""

    @task
    async def slow() -> None:
        await lab.body("slow")

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.task(slow)

    lab = Lab(handler)
    await lab.start()
    assert lab._engine is not None
    ran = lab._engine.body_running
    lab._engine.lose()

    assert await lab.ended() == Lost()
    assert (ran, lab._engine.body_running) == (True, False)
    assert lab.on_the_way == 0


async def test_loss_awaits_a_thread_and_tells_it() -> None:
    """A def body cannot be cancelled: it sees `cancelled`, is awaited, and its result is not recorded."""
    entered, told = threading.Event(), threading.Event()
    port = MemoryPort()

    @task
    def blocking() -> str:
        entered.set()
        context = task_context()
        while not context.cancelled:
            threading.Event().wait(0.001)
        told.set()
        return "late"

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.task(blocking)

    engine = Engine(handler, grant(), port)
    running = asyncio.create_task(engine.run())
    await asyncio.to_thread(entered.wait, 5)
    engine.lose()

    assert await running == Lost()
    assert told.is_set()
    assert port.records == []


async def test_a_write_that_is_never_answered_ends_lost() -> None:
    """When the port gives up on a record the engine stops quietly, whatever it raises."""

    class GivenUp(BaseException):
        pass

    port = MemoryPort()

    async def give_up(_: object) -> None:
        raise GivenUp

    port.on_write = give_up

    @workflow("w")
    async def handler(run: Run) -> str:
        try:
            await run.task(_echo, 1)
        except BaseException:
            return "swallowed"
        return "done"

    ended, _ = await execute(handler, port=port)

    assert ended == Lost()


async def test_a_returned_handler_leaves_no_body_behind() -> None:
    """A task started on the side is cancelled and awaited before the run completes."""
    unwound = False

    @task
    async def aside() -> None:
        nonlocal unwound
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            unwound = True

    @workflow("w")
    async def handler(run: Run) -> str:
        side = asyncio.ensure_future(run.task(aside))
        await run.task(_echo, 1)
        assert not side.done()
        return "done"

    ended, records = await execute(handler)

    assert plain(ended) == "done"
    assert unwound
    assert [record.name for record in records] == ["_echo"]


async def test_a_def_handler_is_unwound_at_its_blocking_call() -> None:
    """In a def workflow suspension unwinds the blocking call; what the handler does with it is ignored."""
    port = MemoryPort()
    port.is_leaving = True
    swallowed = threading.Event()

    @workflow("w")
    def handler(run: SyncRun) -> str:
        try:
            run.task(_echo, 1)
        except BaseException:
            swallowed.set()
            run.task(_echo, 2)
        return "completed"

    ended, records = await execute(handler, port=port)

    assert ended == Suspended()
    assert swallowed.is_set()
    assert records == []


async def test_cancelling_run_is_a_loss() -> None:
    """A host that cancels the execution leaves nothing running."""

    @task
    async def slow() -> None:
        await lab.body("slow")

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.task(slow)

    lab = Lab(handler)
    await lab.start()
    assert lab._running is not None
    lab._running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lab._running

    assert lab.bodies == []


def test_a_host_that_ends_its_loop_ends_the_execution() -> None:
    """When a host cancels all tasks of its loop, a running body is not taken for a failed attempt."""
    port = MemoryPort()

    entered = asyncio.Event()

    @task
    async def slow() -> None:
        entered.set()
        await asyncio.get_running_loop().create_future()

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.task(slow)

    async def host() -> None:
        running = asyncio.ensure_future(Engine(handler, grant(), port).run())
        await entered.wait()
        assert not running.done()

    asyncio.run(host())

    assert port.records == []


async def test_records_are_stamped_by_the_dispatchers_clock() -> None:
    """Times in records go on from the grant's server time, whatever the host's clock says."""

    @workflow("w")
    async def handler(run: Run) -> bool:
        before = run.now()
        await run.task(_echo, 1)
        return run.now() > before

    ended, records = await execute(handler)

    assert isinstance(ended, Completed)
    assert plain(ended) is True
    finished = clock.from_wire(records[0].finished_at or "")
    assert 0 <= finished - clock.from_wire("2026-12-01T10:00:01.000Z") < 5_000
