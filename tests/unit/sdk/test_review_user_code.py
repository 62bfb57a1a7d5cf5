"""What user code may do to the SDK: odd exceptions, cancelled tasks, odd arguments; none of it hangs or loses a run."""

import asyncio
from datetime import timedelta
from typing import Any, Never

import msgspec
import pytest

from endpoint_sdk import Retry, RetryAfterError, Run, SyncRun, TaskFailed, addresses, aws_events, task, workflow
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.replay import Completed, Ended, Engine, Failed, Parked
from endpoint_sdk.workflow import Workflow
from tests.unit.sdk.dispatcher_double import DispatcherDouble
from tests.unit.sdk.handling import Handling
from tests.unit.sdk.replay_lab import MemoryPort, execute, grant, plain


class _NoDetails(Exception):
    @property
    def details(self) -> object:
        raise RuntimeError("nothing to see")


class _NoText(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class _Forgetful(RetryAfterError):
    def __init__(self) -> None:
        Exception.__init__(self, "without the parent's fields")


def _raising(error: Exception) -> list[Workflow[None, str]]:
    """*error* raised by an async handler, by a def handler, and by a task whose failure the handler returns."""

    @workflow("async")
    async def from_async(run: Run) -> str:
        raise error

    @workflow("def")
    def from_def(run: SyncRun) -> str:
        raise error

    @task(retry=Retry.never())
    async def failing() -> str:
        raise error

    @workflow("task")
    async def from_task(run: Run) -> str:
        try:
            return await run.task(failing)
        except TaskFailed as failure:
            return failure.error_type

    return [from_async, from_def, from_task]


@pytest.mark.parametrize("error", [_NoDetails(), _NoText()], ids=["details", "text"])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["async", "def", "task"])
async def test_an_exception_that_cannot_be_described_still_ends_the_run(error: Exception, place: int) -> None:
    """An exception whose details or text raise is recorded by its type; the run neither hangs nor is given up."""
    ended, _ = await execute(_raising(error)[place])

    assert plain(ended) == type(error).__name__


async def test_a_retry_after_error_without_its_fields_is_retried() -> None:
    """A subclass that never called the parent means: at once."""
    attempts: list[int] = []

    @task
    async def limited() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise _Forgetful
        return len(attempts)

    @workflow("limited")
    async def limited_flow(run: Run) -> int:
        return await run.task(limited)

    ended, _ = await execute(limited_flow)

    assert plain(ended) == 3


async def _slowly(served: Workflow[Any, Any]) -> Ended:
    port = MemoryPort()

    async def on_write(_record: object) -> None:
        await asyncio.sleep(0.02)

    port.on_write = on_write
    ended, _ = await execute(served, port=port)
    return ended


async def test_a_body_that_cancels_its_own_task_and_returns_has_returned() -> None:
    """The cancellation it leaves behind is the body's affair: its result is recorded, and the run goes on."""

    @task(retry=Retry.never())
    async def careless() -> int:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return 1

    @workflow("careless")
    async def careless_flow(run: Run) -> int:
        return await run.task(careless)

    assert plain(await _slowly(careless_flow)) == 1


async def test_a_body_whose_timer_cancels_the_task_later_does_not_hang_the_run() -> None:
    """A cancellation from nowhere ends the execution: recovery takes over, instead of a claim held for ever."""

    @task(retry=Retry.never())
    async def careless() -> int:
        current = asyncio.current_task()
        assert current is not None
        asyncio.get_running_loop().call_later(0.005, current.cancel)
        return 1

    @workflow("careless")
    async def careless_flow(run: Run) -> int:
        return await run.task(careless)

    assert type(await _slowly(careless_flow)).__name__ == "Lost"


async def test_a_note_that_is_no_unicode_text_does_not_break_the_run() -> None:
    """Half a surrogate pair, from a cut text, say."""

    @workflow("noted")
    async def noted(run: Run, value: str) -> str:
        run.set_note("half \ud83d")
        return value

    handling = Handling(noted, DispatcherDouble("noted", "1"))
    await handling.run()

    assert handling.ending == "Complete"
    assert handling.dispatcher.sent("progress")[0]["note"] == "half ?"


def test_arguments_may_have_keys_that_are_no_texts() -> None:
    """What a result may hold, an argument may hold: keys become texts, in one order in every process."""
    assert addresses.canonical({"a": {10: "x", 2: {"b", "a"}}}, "task 't'") == b'{"a":{"10":"x","2":["a","b"]}}'


def test_an_argument_that_cannot_be_sorted_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"argument 'bag'.*a set"):
        addresses.canonical({"fine": 1, "bag": {1, "a"}}, "task 't'")


@pytest.mark.parametrize("headers", [{"a": 5}, {"a": True}, {"a": {"b": 1}}])
def test_header_lists_that_are_none_are_skipped(headers: dict[str, Any]) -> None:
    """A foreign event may look like an HTTP request; it must pass through whatever it holds."""
    event = aws_events.http_event({"httpMethod": "GET", "requestContext": {}, "multiValueHeaders": headers})

    assert event is not None
    assert not event.ours


async def test_a_body_cannot_change_what_the_workflow_passes_next() -> None:
    """A body works on arguments of its own: the workflow's stay, as they do on replay."""

    @task
    def grow(items: list[int]) -> int:
        items.append(9)
        return len(items)

    @workflow("grow")
    async def handler(run: Run) -> list[int]:
        items = [1]
        return [await run.task(grow, items), await run.task(grow, items), len(items)]

    port = MemoryPort()
    ended = await Engine(handler, grant(), port).run()
    assert isinstance(ended, Completed)
    assert bytes(ended.result) == b"[2,2,1]"


async def test_a_function_that_is_no_task_is_named() -> None:
    """run.task of an undecorated function fails the run with a set-up error that says what to do."""

    def bare() -> None:
        """Nobody decorated this."""

    @workflow("plain")
    async def handler(run: Run) -> None:
        await run.task(bare)  # type: ignore[arg-type]

    ended = await Engine(handler, grant(), MemoryPort()).run()
    assert isinstance(ended, Failed)
    assert "decorate it with @task" in ended.error.message


async def test_a_long_wait_gives_the_run_up() -> None:
    """A retry more than ten seconds away is not waited for here, even on a host without a limit."""

    @task(retry=Retry.fixed(max_attempts=2, delay=timedelta(seconds=60)))
    def flaky() -> None:
        raise ValueError("not yet")

    @workflow("patient")
    async def handler(run: Run) -> None:
        await run.task(flaky)

    port = MemoryPort()
    assert await Engine(handler, grant(), port).run() == Parked()
    assert [(wait.kind, wait.name, wait.deadline) for wait in port.parks[0]] == [
        ("retry", flaky.name, port.records[0].next_attempt_at)
    ]


class _Uncopied(msgspec.Struct):
    number: int

    def __deepcopy__(self, _memo: object) -> Never:
        raise RuntimeError("no copies of me")


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_an_argument_that_cannot_be_copied_fails_its_task(kind: str) -> None:
    """Such an argument is a failure of the task, recorded and told, not a run that starts over for ever."""

    @task(retry=Retry.never())
    def in_thread(_given: _Uncopied) -> None:
        """Never reached."""

    @task(retry=Retry.never())
    async def in_loop(_given: _Uncopied) -> None:
        """Never reached."""

    @workflow("uncopied")
    async def handler(run: Run) -> None:
        await run.task(in_loop if kind == "async" else in_thread, _Uncopied(1))

    ended = await Engine(handler, grant(), MemoryPort()).run()
    assert isinstance(ended, Failed)
    assert "no copies of me" in ended.error.message
