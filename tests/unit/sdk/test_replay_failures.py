"""How a run fails: what bodies and handlers raise, inputs and results that do not fit."""

import asyncio

import msgspec
import pytest

from endpoint_sdk import Retry, Run, TaskFailed, task, workflow
from endpoint_sdk.addresses import args_hash
from endpoint_sdk.replay import Diverged, Failed, Lost
from endpoint_sdk.wire.messages import RecordIn
from tests.unit.sdk.family import tick
from tests.unit.sdk.replay_lab import MemoryPort, execute, plain


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
@pytest.mark.parametrize("threaded", [False, True])
async def test_a_body_that_raises_a_base_exception_fails_its_task(error: BaseException, threaded: bool) -> None:
    """SystemExit and its like fail the attempt; the loop and the process live on."""

    @task(name="leave", retry=Retry.never())
    async def in_loop() -> None:
        raise error

    @task(name="leave", retry=Retry.never())
    def in_thread() -> None:
        raise error

    @workflow("w")
    async def handler(run: Run) -> str:
        try:
            await (run.task(in_thread) if threaded else run.task(in_loop))
        except TaskFailed as failure:
            return failure.error_type
        return "no failure"

    ended, _ = await execute(handler)

    assert plain(ended) == type(error).__name__


async def test_a_handler_that_raises_fails_the_run() -> None:
    """The run's error is the exception's class, message and details; SystemExit counts too."""

    @workflow("w")
    async def handler(_: Run) -> None:
        raise SystemExit("enough")

    ended, _ = await execute(handler)

    assert isinstance(ended, Failed)
    assert (ended.error.type, ended.error.message) == ("SystemExit", "enough")


async def test_an_uncaught_task_failure_fails_the_run_with_its_cause() -> None:
    """The run's error names the task, its attempt and what it raised."""

    @task(retry=Retry.never())
    async def bad() -> None:
        raise ValueError("no\x00")

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.task(bad)

    ended, _ = await execute(handler)

    assert isinstance(ended, Failed)
    assert ended.error.type == "TaskFailed"
    assert ended.error.details["type"] == "ValueError"
    assert "no\ufffd" in ended.error.message


async def test_an_input_that_does_not_fit_fails_the_run() -> None:
    """A run whose input is not what the workflow takes fails with a code, before any task."""

    @workflow("w")
    async def handler(run: Run, count: int) -> int:
        return count

    ended, _ = await execute(handler, value="many")

    assert plain(ended) == "invalid_payload"


async def test_a_result_json_cannot_carry_fails_the_run() -> None:
    """A handler that returns NaN fails its run with the code of the refusal."""

    @workflow("w")
    async def handler(_: Run) -> float:
        return float("nan")

    ended, _ = await execute(handler)

    assert plain(ended) == "not_recordable"


@pytest.mark.parametrize("value", [b"null", b'{"id":7}'])
async def test_a_record_nobody_can_read_diverges(value: bytes) -> None:
    """Where the record of a child's start says nothing of use the run is stalled; its claim is not held for ever."""

    @workflow("w")
    async def handler(run: Run) -> str:
        return (await run.start_child(tick)).id

    started = RecordIn("child", "tick", args_hash(b"null"), 0, "started", "started", 1, msgspec.Raw(value))
    ended, _ = await execute(handler, [started])

    assert isinstance(ended, Diverged)
    assert ended.details["message"].startswith("the recorded child tick null cannot be read: ")


async def test_a_host_whose_clock_breaks_ends_the_execution() -> None:
    """What nobody thought of while the run is looked at gives it up; a run that hangs keeps its claim for ever."""

    class Broken(MemoryPort):
        def remaining(self) -> None:
            raise RuntimeError("no clock")

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.wait_event("e")

    ended, _ = await execute(handler, port=Broken())

    assert ended == Lost()
