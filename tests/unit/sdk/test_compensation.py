"""What a workflow registers to be undone, restarts and attempts of runs, as the engine carries them out."""

import asyncio
import logging
from datetime import timedelta
from typing import Any, NoReturn

import msgspec
import pytest

from endpoint_sdk import (
    CancelRequested,
    ConfigurationError,
    NonRetryableError,
    PayloadError,
    Retry,
    RetryAfterError,
    Run,
    SyncRun,
    TaskFailed,
    task,
    task_context,
    workflow,
)
from endpoint_sdk.history import History
from endpoint_sdk.port import Cancelled, Failed, Restarted, Retried
from endpoint_sdk.replay import Engine
from endpoint_sdk.wire import messages
from tests.unit.sdk.cancel_lab import kinds, under_cancel
from tests.unit.sdk.replay_lab import IDLE_SECONDS, MemoryPort, answered, execute, grant, plain, stored

HOUR = timedelta(hours=1)
_done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    _done.clear()


@task
async def book(what: str) -> str:
    _done.append(f"book {what}")
    return what


@task(retry=Retry.never())
async def cancel_booking(what: str) -> None:
    _done.append(f"cancel {what}")
    if what.startswith("bad"):
        raise ValueError(what)


def _ask_for_a_visa() -> NoReturn:
    raise ValueError("no visa")


# --- undo and compensate ---------------------------------------------------------------------------------------------
@workflow("trip")
async def trip(run: Run, places: list[str]) -> str:
    try:
        for place in places:
            run.undo(cancel_booking, place)
            await run.task(book, place)
        _ask_for_a_visa()
    except ValueError:
        await run.compensate()
        await run.compensate()
        return "stayed"


@pytest.mark.parametrize("kept", range(6))
async def test_undone_in_reverse_order_each_once(kept: int) -> None:
    """Whatever an earlier claim recorded, every registered call is made once, the latest first."""
    ended, records = await execute(trip, value=["a", "b", "c"])
    assert plain(ended) == "stayed"
    assert _done == ["book a", "book b", "book c", "cancel c", "cancel b", "cancel a"]
    _done.clear()
    again, new = await execute(trip, records[:kept], ["a", "b", "c"])
    assert plain(again) == "stayed"
    assert kinds([*records[:kept], *new]) == kinds(records)
    assert len(_done) == 6 - kept


async def test_one_failed_undo_does_not_keep_the_rest_from_running() -> None:
    """All are called, and the first failure is what compensate raises."""
    ended, _ = await execute(trip, value=["a", "bad 1", "bad 2"])
    assert isinstance(ended, Failed)
    assert ended.error.type == "TaskFailed"
    assert "bad 2" in ended.error.message
    assert _done[3:] == ["cancel bad 2", "cancel bad 1", "cancel a"]


@workflow("trip-sync")
def trip_sync(run: SyncRun, places: list[str]) -> str:
    for place in places:
        run.undo(cancel_booking, place)
        run.task(book, place)
    try:
        run.sleep("before departure", HOUR)
    except CancelRequested:
        run.compensate()
        raise
    return "gone"


async def test_a_cancelled_def_workflow_compensates() -> None:
    """The same over blocking calls: compensated, and ended cancelled by what it raises."""
    _, booked = await execute(trip_sync, value=["a", "b"])
    asked = msgspec.structs.replace(grant(booked, ["a", "b"]), stop="cancel")
    port = MemoryPort()
    assert await Engine(trip_sync, asked, port, idle_seconds=IDLE_SECONDS).run() == Cancelled()
    assert _done == ["book a", "book b", "cancel b", "cancel a"]
    assert kinds(port.records) == [("cancel", "before departure"), *[("task", "cancel_booking")] * 2]


async def test_a_cancel_while_compensating_keeps_no_undo_from_running() -> None:
    """The undo at which it is raised is called again; CancelRequested comes at the end, on replay too."""
    _, records = await execute(trip, value=["a", "b"])
    asked = msgspec.structs.replace(grant(records[:3], ["a", "b"]), stop="cancel")
    port = MemoryPort()
    _done.clear()
    assert await Engine(trip, asked, port, idle_seconds=IDLE_SECONDS).run() == Cancelled()
    assert _done == ["cancel a"]
    everything = [*records[:3], *port.records]
    asked = msgspec.structs.replace(grant(everything, ["a", "b"]), stop="cancel")
    port = MemoryPort()
    assert await Engine(trip, asked, port, idle_seconds=IDLE_SECONDS).run() == Cancelled()
    assert (port.records, _done) == ([], ["cancel a"])


async def test_arguments_are_those_of_the_registration() -> None:
    """What becomes of a value afterwards is not undone with it, and a wrong call fails where it is registered."""

    @task
    async def undo(basket: list[str]) -> None:
        _done.extend(basket)

    @workflow("basket")
    async def buy(run: Run) -> None:
        basket = ["a"]
        run.undo(undo, basket)
        basket.append("b")
        with pytest.raises(TypeError):
            run.undo(undo)  # type: ignore[call-arg]
        with pytest.raises(ConfigurationError):
            run.undo(undo, [object()])  # type: ignore[list-item]
        await run.compensate()

    await execute(buy)
    assert _done == ["a"]


# --- restart ---------------------------------------------------------------------------------------------------------
@workflow("loop")
async def loop(run: Run, round_: int) -> str:
    await run.task(book, f"round {round_}")
    run.restart(round_ + 1)


@workflow("loop-sync")
def loop_sync(run: SyncRun, round_: int) -> str:
    try:
        run.restart(round_ + 1)
    except BaseException:
        return "swallowed"


async def test_restart_ends_the_execution_with_the_next_input() -> None:
    """In an async def and a def workflow; nothing the handler does afterwards is heard."""
    ended, records = await execute(loop, value=1)
    assert ended == Restarted(msgspec.Raw(b"2"))
    assert len(records) == 1
    assert (await execute(loop_sync, value=6))[0] == Restarted(msgspec.Raw(b"7"))


async def test_restart_waits_for_no_branch_and_leaves_none_running() -> None:
    """Siblings under way are cancelled before the run begins anew."""
    unwound: list[str] = []

    @task
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            unwound.append("body")

    @workflow("busy")
    async def busy(run: Run) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(run.task(endless))
            await run.task(book, "x")
            run.restart()

    ended, _ = await execute(busy)
    assert (ended, unwound) == (Restarted(msgspec.Raw(b"null")), ["body"])


async def test_an_input_that_does_not_fit_is_refused_where_restart_is_called() -> None:
    """PayloadError, in the handler."""

    @workflow("strict")
    async def strict(run: Run, count: int) -> str:
        with pytest.raises(PayloadError):
            run.restart(object())
        return "went on"

    assert plain((await execute(strict, value=1))[0]) == "went on"


async def test_a_generation_has_its_own_chance_and_keys() -> None:
    """uuid, random and idempotency keys differ between generations, and are alike on every replay of one."""

    @task
    async def key() -> str:
        return task_context().idempotency_key

    @workflow("keys")
    async def keys(run: Run) -> list[Any]:
        return [run.uuid(), run.random.random(), await run.task(key), run.info.generation]

    async def of(generation: int) -> Any:
        granted = grant()
        run = msgspec.structs.replace(granted.run, generation=generation)
        engine = Engine(keys, msgspec.structs.replace(granted, run=run), MemoryPort())
        return plain(await engine.run())

    first, second = await of(0), await of(1)
    assert first == plain((await execute(keys))[0])
    assert second == await of(1)
    assert all(before != after for before, after in zip(first, second, strict=True))
    assert second[2].startswith("run_1.1-")


# --- attempts of a run -----------------------------------------------------------------------------------------------
_THRICE = Retry.fixed(max_attempts=3, delay=timedelta(seconds=5), give_up_on=LookupError)


async def _ended_by(error: Exception, attempt: int = 1, retry: Retry = _THRICE) -> Any:
    @workflow("unlucky", retry=retry)
    async def unlucky(run: Run) -> None:
        raise error

    granted = grant()
    run = msgspec.structs.replace(granted.run, attempt=attempt)
    return await Engine(unlucky, msgspec.structs.replace(granted, run=run), MemoryPort()).run()


async def test_a_failed_run_begins_its_next_attempt() -> None:
    """By the workflow's policy, up to its attempts; RetryAfterError names the moment."""
    retried = await _ended_by(ValueError("no"))
    assert isinstance(retried, Retried)
    assert (retried.delay_ms, retried.error.type, retried.error.retryable) == (5_000, "ValueError", True)
    assert isinstance(await _ended_by(ValueError("no"), attempt=2), Retried)
    assert isinstance(await _ended_by(ValueError("no"), attempt=3), Failed)
    later = await _ended_by(RetryAfterError(60))
    assert later.delay_ms == 60_000


@pytest.mark.parametrize(
    "error",
    [NonRetryableError("no"), ConfigurationError("no"), PayloadError("no"), LookupError("no"), KeyError("no")],
)
async def test_what_no_further_attempt_can_mend_fails_at_once(error: Exception) -> None:
    """NonRetryableError, programs that are wrong, and what the filters give up on."""
    assert isinstance(await _ended_by(error), Failed)


async def test_a_workflow_is_not_retried_by_default() -> None:
    """Without retry= the first failure is final, and its time counts from the submission."""
    assert isinstance(await _ended_by(ValueError("no"), retry=Retry.never()), Failed)
    brief = Retry.exponential(max_elapsed=timedelta(milliseconds=500))
    assert isinstance(await _ended_by(ValueError("no"), retry=brief), Failed)


async def test_the_next_attempt_finds_what_succeeded() -> None:
    """A replay without the failures the dispatcher dropped: the failed task runs again, the others do not."""

    @task(retry=Retry.never())
    async def once_broken(fixed: bool = False) -> str:
        if len(_done) == 1:
            _done.append("broke")
            raise ValueError("first time")
        return "mended"

    @workflow("mending", retry=_THRICE)
    async def mending(run: Run) -> str:
        await run.task(book, "a")
        return await run.task(once_broken)

    ended, records = await execute(mending)
    assert isinstance(ended, Retried)
    kept = [record for record in records if record.state == "completed"]
    again, new = await execute(mending, kept)
    assert plain(again) == "mended"
    assert kinds(new) == [("task", "test_the_next_attempt_finds_what_succeeded.<locals>.once_broken")]


# --- long histories --------------------------------------------------------------------------------------------------
def test_a_long_history_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """At 2 000 records, however many claims read them; the line names the way out."""
    records = stored([answered("sleep", f"s{number}") for number in range(1_999)])
    with caplog.at_level(logging.WARNING, logger="endpoint_sdk"):
        History(records, (), "run_long").grow()
        History([*records, messages.Record(2_000, "sleep", "x", "", 0, "ended", "completed", 1)], (), "run_long")
        History(records, (), "run_short")
    assert [line.message.partition(":")[0] for line in caplog.records] == [
        "run run_long has 2000 records, which every claim of it reads, and it can hold 10000"
    ]
    assert "run.restart(input)" in caplog.text


async def test_a_cancelled_failure_is_still_a_failure() -> None:
    """A compensation that fails under a cancel fails the run, whatever retry= says."""

    @workflow("stuck", retry=_THRICE)
    async def stuck(run: Run) -> None:
        run.undo(cancel_booking, "bad")
        try:
            await run.sleep("s", HOUR)
        except CancelRequested:
            await run.compensate()

    ended, _ = await under_cancel(stuck)
    assert isinstance(ended, Failed)
    assert ended.error.type == TaskFailed.__qualname__
