"""endpoint_sdk.testing: stubs, crashes and children."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from endpoint_sdk import (
    ChildFailed,
    ConfigurationError,
    OutcomeUnknown,
    PayloadError,
    Retry,
    Run,
    RunFailed,
    SyncRun,
    TaskFailed,
    task,
    workflow,
)
from endpoint_sdk.testing import StubUsedUp, WorkflowTester

HOUR = timedelta(hours=1)

bodies: list[str] = []


class Receipt(msgspec.Struct):
    number: str


class Declined(Exception):
    """What a card does."""


@task(retry=Retry.fixed(max_attempts=3, delay=HOUR))
def charge(order: str, cents: int = 1) -> Receipt:
    raise AssertionError("the real provider was called")


@task
async def names(prefix: str) -> list[str]:
    raise AssertionError("the real directory was asked")


@task
def free(value: Any):  # type: ignore[no-untyped-def]
    raise AssertionError("not stubbed")


@task
def pay(order: str) -> str:
    bodies.append(order)
    return f"paid {order}"


@task(at_most_once=True)
def pay_once(order: str) -> str:
    bodies.append(order)
    return f"paid {order}"


@workflow("order")
async def order(run: Run, name: str) -> str:
    try:
        receipt = await run.task(charge.with_options(name="charge-card"), name, cents=5)
    except TaskFailed as failure:
        return f"declined at attempt {failure.attempt}" if failure.is_(Declined) else failure.error_type
    return receipt.number


@workflow("payment")
async def payment(run: Run, name: str) -> str:
    paid = await run.task(pay, name)
    return paid + await run.task(pay, "tip")


@workflow("payment-once")
def payment_once(run: SyncRun, name: str) -> str:
    try:
        return run.task(pay_once, name)
    except OutcomeUnknown:
        return "unknown"


def test_a_stub_returns_a_value() -> None:
    """Under whatever options the task runs, and as the codec would hand it out; calls are told by their arguments."""
    t = WorkflowTester()
    calls = t.stub(charge, Receipt("r1"))

    assert t.run(order, "o1") == "r1"
    assert calls.count == 1
    assert calls.called_with("o1", 5)  # noqa: PGH005 - a method of ours, no mock's
    assert calls.called_with(order="o1", cents=5)  # noqa: PGH005 - a method of ours, no mock's
    assert not calls.called_with("o1")


def test_a_stub_raises() -> None:
    """Every attempt fails as the body would."""
    t = WorkflowTester()
    calls = t.stub(charge, Declined("no"))

    assert t.run(order, "o1") == "declined at attempt 3"
    assert calls.count == 3


def test_a_stub_is_a_function() -> None:
    """It gets the arguments; the task's own function makes a spy of the stub."""
    t = WorkflowTester()
    t.stub(charge, lambda order, cents=1: Receipt(f"{order}/{cents}"))
    assert t.run(order, "o1") == "o1/5"

    bodies.clear()
    calls = t.stub(pay, pay.definition.fn)
    assert t.run(payment, "o1") == "paid o1paid tip"
    assert (calls.count, bodies) == (2, ["o1", "tip"])


def test_a_stub_gives_one_outcome_to_each_attempt() -> None:
    """A list or a tuple; one attempt more fails the test, even where the workflow catches everything."""
    t = WorkflowTester()
    calls = t.stub(charge, [Declined("no"), Receipt("r2")])

    assert t.run(order, "o1") == "r2"
    assert calls.count == 2
    with pytest.raises(StubUsedUp, match="called 3 times"):
        t.run(order, "o2")


def test_a_list_is_a_value_where_the_task_returns_one() -> None:
    """The annotation decides; without one a list is a sequence of outcomes."""

    @workflow("w")
    async def handler(run: Run) -> list[Any]:
        return [await run.task(names, "a"), await run.task(free, 1), await run.task(free, 2)]

    t = WorkflowTester()
    t.stub(names, ["anna", "ari"])
    t.stub(free, (["x"], "y"))

    assert t.run(handler) == [["anna", "ari"], ["x"], "y"]


def test_a_value_the_task_could_not_return_is_refused_at_once() -> None:
    """Not when the run gets there."""
    t = WorkflowTester()

    with pytest.raises(ConfigurationError, match="stubbed result of task 'charge'"):
        t.stub(charge, 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="not a task"):
        t.stub(lambda: 5, 5)  # type: ignore[arg-type]


# --- crashes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("replay", ["each-step", "never"])
def test_a_crash_before_the_record_runs_the_body_again(replay: Any) -> None:
    """At least once: what nobody recorded happens twice, what was recorded does not."""
    bodies.clear()
    t = WorkflowTester(replay=replay)
    t.crash_after(pay)

    assert t.run(payment, "o1") == "paid o1paid tip"
    assert bodies == ["o1", "o1", "tip"]


def test_a_crash_after_the_record_repeats_nothing() -> None:
    """The outcome is there, only its executor is gone."""
    bodies.clear()
    t = WorkflowTester()
    t.crash_after(pay, recorded=True)
    t.crash_after(pay, recorded=True)

    assert t.run(payment, "o1") == "paid o1paid tip"
    assert bodies == ["o1", "tip"]


def test_a_crash_leaves_the_outcome_of_an_at_most_once_task_unknown() -> None:
    """It is not run again; recorded, it is known."""
    bodies.clear()
    t = WorkflowTester()
    t.crash_after(pay_once)
    assert t.run(payment_once, "o1") == "unknown"
    assert bodies == ["o1"]

    t.crash_after(pay_once, recorded=True)
    assert t.run(payment_once, "o1") == "paid o1"


# --- children --------------------------------------------------------------------------------------------------------
@workflow("kid")
async def kid(run: Run, hours: int) -> int:
    await run.sleep("s", timedelta(hours=hours))
    if hours > 8:
        raise Declined("too long")
    return hours * 10


@workflow("family")
async def family(run: Run, hours: list[int]) -> list[int]:
    first = await run.start_child(kid, 7)
    rest = await run.map(kid, hours)
    return [await first.result(), *rest, await run.child(kid, 1)]


@workflow("family-sync")
def family_sync(run: SyncRun, hours: list[int]) -> list[int]:
    first = run.start_child(kid, 7)
    rest = run.map(kid, hours)
    return [first.result(), *rest, run.child(kid, 1)]


@pytest.mark.parametrize("replay", ["each-step", "never"])
@pytest.mark.parametrize("parent", [family, family_sync])
def test_children_are_runs_beside_their_parent(replay: Any, parent: Any) -> None:
    """They wait at the same time, on the same clock, and the parent waits for them."""
    t = WorkflowTester(replay=replay)
    began = t.now

    assert t.run(parent, [1, 2, 4]) == [70, 10, 20, 40, 10]
    assert t.now - began == 8 * HOUR


def test_a_child_that_fails_fails_the_call() -> None:
    """As ChildFailed, with the child's error; the parent shows what it waits for meanwhile."""
    run = WorkflowTester().start(family, [1, 9])
    assert run.status == "awaiting_child"
    assert run.waiting_for == {"kid"}

    with pytest.raises(RunFailed) as caught:
        run.result()
    assert isinstance(caught.value.__cause__, ChildFailed)
    assert caught.value.__cause__.error_type == "Declined"
    assert [(step.kind, step.status) for step in run.history] == [("children", "failed")]


def test_a_stubbed_child_is_not_executed() -> None:
    """A value, a function of the input, an exception."""
    t = WorkflowTester()
    calls = t.stub_child(kid, lambda hours: -hours)
    assert t.run(family, [1, 2]) == [-7, -1, -2, -1]
    assert calls.count == 4
    assert calls.called_with(7)  # noqa: PGH005 - a method of ours, no mock's
    assert not calls.called_with(8)

    t.stub_child(kid, 0)
    assert t.run(family, [1]) == [0, 0, 0]

    t.stub_child(kid, Declined("no"))
    with pytest.raises(RunFailed, match="Declined"):
        t.run(family, [1])
    with pytest.raises(PayloadError):
        t.stub_child(kid, "many")  # type: ignore[arg-type]
