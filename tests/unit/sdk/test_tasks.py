"""Tasks as a workflow sees them: attempts, failures, results, at-most-once, and how they are declared."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import (
    ConfigurationError,
    NonRetryableError,
    Retry,
    Run,
    TaskFailed,
    task,
    task_context,
    workflow,
)
from endpoint_sdk.replay import RecordRefused
from endpoint_sdk.wire import messages
from tests.unit.sdk.replay_lab import MemoryPort, execute, plain
from tests.unit.sdk.task_workflows import calling

SOON = Retry.fixed(max_attempts=3, delay=timedelta(milliseconds=2))


class CardDeclined(Exception):
    """An error of the user's."""


class CardExpired(CardDeclined):
    """A kind of it."""


def _attempts(records: list[messages.RecordIn]) -> list[tuple[str, str, int, bool]]:
    return [(each.phase, each.state, each.attempt, each.next_attempt_at is not None) for each in records]


# --- attempts --------------------------------------------------------------------------------------------------------
async def test_failed_attempts_are_recorded_and_repeated() -> None:
    """Each failed attempt is a record that says when the next is due; the success is the last."""
    ran: list[int] = []

    @task(retry=SOON)
    async def flaky() -> str:
        ran.append(task_context().attempt)
        if len(ran) < 3:
            raise ValueError("not yet")
        return "done"

    ended, records = await execute(calling(flaky))

    assert plain(ended) == "done"
    assert ran == [1, 2, 3]
    assert _attempts(records) == [
        ("ended", "failed", 1, True),
        ("ended", "failed", 2, True),
        ("ended", "completed", 3, False),
    ]


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_replay_goes_on_at_the_next_attempt(kept: int) -> None:
    """After a crash the recorded failures count and the unrecorded attempt does not."""
    ran: list[int] = []

    @task(retry=SOON)
    async def failing() -> None:
        ran.append(task_context().attempt)
        raise ValueError("no")

    first, records = await execute(calling(failing))
    ran.clear()
    again, new = await execute(calling(failing), records[:kept])

    assert ran == [1, 2, 3][kept:]
    assert plain(again) == plain(first)
    assert len(new) == 3 - kept


async def test_a_failure_is_the_same_on_the_first_run_and_on_replay() -> None:
    """TaskFailed carries the same fields and text; only `__cause__` knows the original, and only live."""
    causes: list[BaseException | None] = []

    @task(retry=Retry.never())
    def declined() -> None:
        raise NonRetryableError("no funds", details={"cents": 5, "when": [1.5]})

    @workflow("w")
    async def handler(run: Run) -> Any:
        with pytest.raises(TaskFailed) as failed:
            await run.task(declined)
        causes.append(failed.value.__cause__)
        return [str(failed.value), failed.value.__dict__]

    first, records = await execute(handler)
    again, _ = await execute(handler, records)

    assert plain(first) == plain(again)
    assert plain(first)[1]["details"] == {"cents": 5, "when": [1.5]}
    assert isinstance(causes[0], NonRetryableError)
    assert causes[1] is None


async def test_is_recognises_the_class_and_its_bases() -> None:
    """`failure.is_` answers for the class raised and for those it derives from, live and on replay."""
    told: list[list[bool]] = []

    @task(retry=Retry.never())
    async def pay() -> None:
        raise CardExpired("12/24")

    @workflow("w")
    async def handler(run: Run) -> None:
        with pytest.raises(TaskFailed) as failed:
            await run.task(pay)
        told.append([failed.value.is_(kind) for kind in (CardExpired, CardDeclined, Exception, ValueError)])

    _, records = await execute(handler)
    await execute(handler, records)

    assert told == [[True, True, True, False]] * 2


def test_is_looks_behind_another_class_of_the_same_name() -> None:
    """Two modules may each have a class of one name: what derives from either is found."""
    bases = [type("Twin", (Exception,), {}), type("Twin", (Exception,), {})]
    heirs = [type(f"HeirOf{number}", (base,), {}) for number, base in enumerate(bases)]

    assert all(TaskFailed("t", 1, heir.__qualname__, "no").is_(Exception) for heir in heirs)


async def test_an_error_nobody_can_print_still_fails_its_task() -> None:
    """A broken __str__ and details that are not JSON do not hide the failure."""

    class Broken(Exception):
        details = object()

        def __str__(self) -> str:
            raise RuntimeError

    @task(retry=Retry.never())
    async def broken() -> None:
        raise Broken

    ended, _ = await execute(calling(broken))

    assert plain(ended)[2]["details"] is None
    assert "without a readable message" in plain(ended)[2]["message"]


# --- results ---------------------------------------------------------------------------------------------------------
async def test_a_result_json_cannot_carry_fails_the_task_at_once() -> None:
    """NaN in a result is a failure with its code, recorded, and never retried."""
    ran = 0

    @task(retry=SOON)
    async def average() -> float:
        nonlocal ran
        ran += 1
        return float("nan")

    ended, records = await execute(calling(average))

    assert plain(ended)[2]["error_type"] == "not_recordable"
    assert "result of task 'test_a_result" in plain(ended)[2]["message"]
    assert ran == 1
    assert _attempts(records) == [("ended", "failed", 1, False)]


async def test_a_result_that_is_not_what_was_annotated_fails_the_task() -> None:
    """A body that breaks its own annotation fails on the first run, not at a later replay."""

    @task
    async def count() -> int:
        return "three"  # type: ignore[return-value]

    ended, _ = await execute(calling(count))

    assert plain(ended)[2]["error_type"] == "invalid_payload"


async def test_a_refused_record_fails_its_task_with_the_code() -> None:
    """The dispatcher's definite refusal becomes the task's recorded failure."""
    port = MemoryPort()

    async def refuse_success(record: messages.RecordIn) -> None:
        if record.state == "completed":
            raise RecordRefused("payload_too_large", "too large for this server")

    port.on_write = refuse_success

    @task
    async def large() -> str:
        return "x"

    ended, records = await execute(calling(large), port=port)
    again, _ = await execute(calling(large), records)

    assert plain(ended) == plain(again)
    assert plain(ended)[2]["error_type"] == "payload_too_large"


async def test_a_refusal_of_everything_still_ends_the_call() -> None:
    """When even the failure cannot be recorded the workflow hears of it."""
    port = MemoryPort()

    async def refuse(_: messages.RecordIn) -> None:
        raise RecordRefused("history_limit", "10 000 records")

    port.on_write = refuse

    @task
    async def one() -> int:
        return 1

    ended, _ = await execute(calling(one), port=port)

    assert plain(ended)[2]["error_type"] == "history_limit"


async def test_an_argument_json_cannot_carry_is_refused_before_anything_runs() -> None:
    """A call that could not be found again is not made."""

    @task
    async def use(session: Any) -> None: ...

    @workflow("w")
    async def handler(run: Run) -> str:
        with pytest.raises(ConfigurationError, match="argument 'session'"):
            await run.task(use, object())
        with pytest.raises(TypeError, match="missing a required argument"):
            await run.task(use)  # type: ignore[call-arg]
        return "refused"

    ended, records = await execute(handler)

    assert plain(ended) == "refused"
    assert records == []


# --- at most once ----------------------------------------------------------------------------------------------------
async def test_at_most_once_records_its_start_before_the_body() -> None:
    """The started record is acknowledged, then the claim fenced, then the body runs, then the end is recorded."""
    order: list[str] = []
    port = MemoryPort()

    async def note(record: messages.RecordIn) -> None:
        order.append(record.phase)

    async def fence() -> None:
        order.append("fence")

    port.on_write, port.on_fence = note, fence

    @task(at_most_once=True)
    async def pay() -> str:
        order.append("body")
        return "paid"

    ended, records = await execute(calling(pay), port=port)

    assert plain(ended) == "paid"
    assert order == ["started", "fence", "body", "ended"]
    assert records[0].finished_at is None


async def test_c57_started_and_never_recorded_is_outcome_unknown() -> None:
    """C57: the body does not run again; the failure is recorded, and the same on the next replay."""
    ran = 0
    keys: list[str] = []

    @task(at_most_once=True)
    async def pay() -> None:
        nonlocal ran
        ran += 1
        keys.append(task_context().idempotency_key)

    _, records = await execute(calling(pay))
    first, new = await execute(calling(pay), records[:1])
    again, none = await execute(calling(pay), [records[0], *new])

    assert ran == 1
    assert plain(first)[0] == "OutcomeUnknown"
    assert plain(first)[2]["idempotency_key"] == keys[0]
    assert plain(again) == plain(first)
    assert (_attempts(new), none) == ([("ended", "failed", 1, False)], [])


async def test_a_changed_at_most_once_call_does_not_run_beside_a_started_one() -> None:
    """A started record asks for its call: the same payment with another amount diverges instead of running."""
    ran: list[int] = []

    @task(at_most_once=True)
    async def pay(cents: int) -> None:
        ran.append(cents)

    _, records = await execute(calling(pay, 500))
    ended, _ = await execute(calling(pay, 550), records[:1])

    assert ended.details["changed"] == ["cents"]  # type: ignore[union-attr]
    assert ran == [500]


async def test_a_refused_start_runs_nothing() -> None:
    """When the started record is refused the task fails with the code and its body does not run."""
    port = MemoryPort()

    async def refuse(record: messages.RecordIn) -> None:
        if record.phase == "started":
            raise RecordRefused("history_limit", "10 000 records")

    port.on_write = refuse

    @task(at_most_once=True)
    async def pay() -> None:
        raise AssertionError("ran")

    ended, _ = await execute(calling(pay), port=port)

    assert plain(ended)[2]["error_type"] == "history_limit"


# --- declaring -------------------------------------------------------------------------------------------------------
def test_a_task_keeps_its_functions_name_and_docs() -> None:
    """The default name is the qualified one; options make another task over the same function."""

    @task
    async def charge(cents: int) -> int:
        """Charges."""
        return cents

    renamed = charge.with_options(name="charge-card", retry=Retry.never(), timeout=timedelta(seconds=1))

    assert charge.name == "test_a_task_keeps_its_functions_name_and_docs.<locals>.charge"
    assert charge.__doc__ == "Charges."
    assert repr(renamed) == "<AsyncTask 'charge-card'>"
    assert renamed.definition.fn is charge.definition.fn
    assert asyncio.run(charge(3)) == 3


def test_contradictory_options_are_refused_at_decoration() -> None:
    """at_most_once excludes retry=, names and timeouts are checked, generators are no tasks."""

    def fn() -> None: ...
    def generator() -> Any:
        yield 1

    def refused(**options: Any) -> None:
        with pytest.raises(ConfigurationError):
            task(**options)(fn)

    refused(at_most_once=True, retry=Retry.never())
    refused(name="")
    refused(name="a\nb")
    refused(name="x" * 201)
    refused(timeout=timedelta(0))
    refused(timeout=5)
    with pytest.raises(ConfigurationError, match="generator"):
        task(generator)
    with pytest.raises(ConfigurationError, match="needs name="):
        task(_Callable())
    with pytest.raises(ConfigurationError, match="excludes retry="):
        task(at_most_once=True)(fn).with_options(retry=Retry.never())


class _Callable:
    def __call__(self) -> None: ...
