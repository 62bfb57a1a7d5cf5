"""WorkflowTester: whose child a run is once its parent begins again, and whose it cannot be."""

from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import PointsmanError, Retry, Run, task, workflow
from endpoint_sdk.testing import WorkflowTester

AGAIN = Retry.fixed(max_attempts=2, delay=timedelta(hours=1))


class Declined(Exception):
    """What a card does."""


@task(retry=Retry.never())
def charge(card: str) -> str:
    raise AssertionError("stubbed")


@workflow("pay")
async def pay(run: Run, card: str) -> str:
    return await run.task(charge, card)


@workflow("one", retry=AGAIN)
async def one(run: Run) -> list[str]:
    return [await run.child(pay, "visa")]


@workflow("keyed", retry=AGAIN)
async def keyed(run: Run) -> list[str]:
    return [await (await run.start_child(pay, "visa", idempotency_key="k")).result()]


@workflow("many", retry=AGAIN)
async def many(run: Run) -> list[str]:
    return await run.map(pay, ["visa"])


@workflow("unheard", retry=AGAIN)
async def unheard(run: Run) -> list[str]:
    child = await run.start_child(pay, "visa")
    await run.sleep("until the child has failed", timedelta(hours=1))
    if run.info.attempt == 1:
        raise Declined("before it heard of the child")
    return [await child.result()]


@pytest.mark.parametrize("replay", ["each-step", "never"])
@pytest.mark.parametrize("parent", [one, keyed, many, unheard])
def test_the_next_attempt_starts_a_failed_child_again(replay: Any, parent: Any) -> None:
    """Whether the parent has heard of the failure or not, and under the same idempotency key."""
    t = WorkflowTester(replay=replay)
    charged = t.stub(charge, [Declined("no"), "paid"])

    assert t.run(parent) == ["paid"]
    assert charged.count == 2


@pytest.mark.parametrize("key", [None, "k"])
def test_a_run_that_begins_anew_starts_its_children_anew(key: str | None) -> None:
    """The same call starts another child, unless the idempotency key names the one there is."""

    @workflow("rounds")
    async def rounds(run: Run, left: int) -> str:
        child = await run.start_child(pay, "visa", idempotency_key=key)
        got = await child.result()
        if left:
            run.restart(left - 1)
        return got

    t = WorkflowTester()
    charged = t.stub(charge, lambda card: f"{card} {charged.count}")

    assert t.run(rounds, 2) == ("visa 3" if key is None else "visa 1")


def test_a_key_that_names_anothers_child_is_a_conflict() -> None:
    """The dispatcher makes no run the child of two calls, even if the inputs agree."""

    @workflow("twice")
    async def twice(run: Run) -> str:
        await run.start_child(pay, "visa", idempotency_key="k")
        try:
            await run.start_child(pay, "visa", idempotency_key="k")
        except PointsmanError as refusal:
            return refusal.code
        return "two calls, one child"

    t = WorkflowTester()
    t.stub(charge, "paid")

    assert t.run(twice) == "idempotency_conflict"


def test_a_child_that_was_forgotten_is_cancelled_with_its_parent() -> None:
    """It is the parent's child for as long as that lives."""

    @workflow("waits")
    async def waits(run: Run) -> str:
        try:
            await run.wait_event("never")
        finally:
            if not run.suspending:
                ends.append(run.id)
        return "came"

    @workflow("parent")
    async def parent(run: Run, left: int) -> None:
        await run.start_child(waits)
        if left:
            run.restart(left - 1)
        await run.wait_event("never")

    ends: list[str] = []
    run = WorkflowTester().start(parent, 1)
    run.cancel()

    assert run.status == "cancelled"
    assert len(set(ends)) == 2
