"""Children: a start and an end are two outcomes, found again by whoever claims the run next."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import ChildFailed, Run, SyncRun, child_call, task, workflow
from endpoint_sdk.exchange import Abandoned
from endpoint_sdk.replay import Diverged, Lost, Parked
from endpoint_sdk.wire import child_messages, messages
from tests.unit.sdk.family import Family, Order, Receipt, address, echo, kid, tick
from tests.unit.sdk.replay_lab import MemoryPort, execute


async def test_a_start_and_its_end_are_two_outcomes() -> None:
    """The run parks for its child, comes back with the typed result, and starts nothing twice."""

    @workflow("w")
    async def parent(run: Run) -> list[Any]:
        child = await run.start_child(kid, Order("o1"), idempotency_key="k1", pool="slow", tags={"a": "b"})
        receipt = await child.result()
        assert isinstance(receipt, Receipt)
        return [child.id, receipt.number]

    family = Family(parent)
    assert await family.claim() == Parked()

    [[wait]] = family.port.parks
    [child] = family.nursery.children
    assert (wait.kind, wait.name, wait.deadline) == ("child", "kid", None)
    assert child.call == address(wait)
    assert (child.start.version, bytes(child.start.input)) == ("1.2.0", b'{"id":"o1","cents":0}')
    assert (child.start.idempotency_key, child.start.pool, child.start.tags) == ("k1", "slow", {"a": "b"})
    assert [record.phase for record in family.port.records] == ["started"]

    family.complete(lambda index: Receipt("r1"))
    assert await family.claim() == [child.id, "r1"]
    assert family.nursery.children == [child]


async def test_c63_a_child_that_failed_is_told() -> None:
    """C63: the parent gets ChildFailed with what the child said, and may go on."""

    @workflow("w")
    async def parent(run: Run) -> list[Any]:
        try:
            await run.child(kid, Order("o1"))
        except ChildFailed as failure:
            return [failure.run_id, failure.error_type, failure.message, failure.details]
        return []

    family = Family(parent)
    await family.claim()
    [child] = family.nursery.children
    family.nursery.fail(child, "CardDeclined")

    assert await family.claim() == [child.id, "CardDeclined", f"child {child.id} ended", {"index": 0}]


async def test_a_cancelled_child_is_told_and_fails_a_parent_that_does_not_mind() -> None:
    """The run's error names the child."""

    @workflow("w")
    async def parent(run: Run) -> None:
        await run.child(tick)

    family = Family(parent)
    await family.claim()
    family.nursery.cancel(family.nursery.children[0])
    assert await family.claim() == "ChildFailed"
    ended, _ = await execute(parent, family.port.records)

    error = ended.error  # type: ignore[union-attr]
    assert error.details == {"runId": "run_c0", "type": "cancelled", "details": {"index": 0}}


async def test_a_map_starts_all_and_waits_once() -> None:
    """One wait for all of them, results typed and in the order of the items, fetched when they are handed out."""

    @workflow("w")
    async def parent(run: Run) -> list[str]:
        receipts = await run.map(kid, (Order(f"o{index}") for index in range(3)), limit=2)
        await run.task(echo, "after")
        return [receipt.number for receipt in receipts]

    family = Family(parent)
    assert await family.claim() == Parked()
    [[wait]] = family.port.parks
    assert wait.kind == "children"
    assert [(child.index, child.total, child.start.limit) for child in family.nursery.children] == [
        (0, 3, 2),
        (1, 3, 2),
        (2, 3, 2),
    ]
    assert family.port.fetched == []

    family.complete(lambda index: Receipt(f"r{index}"))
    assert await family.claim() == ["r0", "r1", "r2"]
    assert family.port.fetched == [f"children:{wait.args_hash}:0:kid"]


async def test_the_first_child_of_a_map_that_fails_ends_the_wait() -> None:
    """The others run on."""

    @workflow("w")
    async def parent(run: Run) -> str:
        try:
            await run.map(kid, [Order("a"), Order("b"), Order("c")])
        except ChildFailed as failure:
            return failure.run_id
        return ""

    family = Family(parent)
    await family.claim()
    family.nursery.fail(family.nursery.children[1], "ValueError")

    assert await family.claim() == "run_c1"
    assert len(family.nursery.running) == 2
    assert family.port.fetched == []


async def test_results_that_stay_away_leave_the_run_to_recovery() -> None:
    """Nothing is decided without them: an unknown outcome is never the user's failure."""

    class Silent(MemoryPort):
        async def child_outcomes(self, parent_call: str) -> Sequence[child_messages.ChildOutcome]:
            raise Abandoned

    @workflow("w")
    async def parent(run: Run) -> list[Receipt]:
        return await run.map(kid, [Order("a")])

    family = Family(parent)
    await family.claim()
    family.complete(lambda index: Receipt("r"))
    await family.claim()
    ended, _ = await execute(parent, family.port.records, port=Silent())
    assert ended == Lost()


async def test_missing_results_leave_the_run_to_recovery() -> None:
    """As many results as there are children, or none."""

    @workflow("w")
    async def parent(run: Run) -> list[Receipt]:
        return await run.map(kid, [Order("a"), Order("b")])

    family = Family(parent)
    await family.claim()
    family.complete(lambda index: Receipt("r"))
    await family.claim()
    ended, _ = await execute(parent, family.port.records)
    assert ended == Lost()


async def test_a_result_its_annotation_does_not_fit_diverges() -> None:
    """What the child's workflow returns is checked by this process's code of it."""

    @workflow("w")
    async def parent(run: Run) -> Receipt:
        return await run.child(kid, Order("a"))

    family = Family(parent)
    await family.claim()
    family.complete(lambda index: [1, 2])
    assert isinstance(await family.claim(), Diverged)


async def test_c61_no_except_swallows_the_park_for_a_child() -> None:
    """C61: what the handler does while it is unwound is not heard."""

    @workflow("w")
    async def parent(run: Run) -> str:
        try:
            await run.child(tick)
        except BaseException:
            return "swallowed"
        return "done"

    family = Family(parent)
    assert await family.claim() == Parked()
    family.complete(lambda index: None)
    assert await family.claim() == "done"


async def test_c65_addresses_of_children_never_mix() -> None:
    """C65: a child, a map, a task and a sleep of one name each find their own record."""

    @task(name="kid")
    async def same(order: Order) -> str:
        return order.id

    @workflow("w")
    async def parent(run: Run) -> list[Any]:
        order = Order("a")
        return list(
            await asyncio.gather(
                run.child(kid, order), run.map(kid, [order]), run.task(same, order), run.child(kid, order)
            )
        )

    family = Family(parent)
    assert await family.claim() == Parked()
    numbers = {child.id: f"of {child.start.kind} {child.start.ordinal}" for child in family.nursery.children}
    for child in family.nursery.running:
        family.nursery.complete(child, Receipt(numbers[child.id]))

    assert await family.claim() == [
        {"number": "of child 0"},
        [{"number": "of children 0"}],
        "a",
        {"number": "of child 1"},
    ]


async def test_an_outcome_may_be_asked_for_twice() -> None:
    """At once, and again once it is known."""

    @workflow("w")
    async def parent(run: Run) -> list[str]:
        child = await run.start_child(kid, Order("a"))
        seen = [*await asyncio.gather(child.result(), child.result()), await child.result()]
        return [receipt.number for receipt in seen]

    family = Family(parent)
    assert await family.claim() == Parked()
    assert len(family.port.parks[0]) == 1
    family.complete(lambda index: Receipt("r"))

    assert await family.claim() == ["r", "r", "r"]


async def test_a_wait_for_a_child_outlives_the_branch_that_gave_up() -> None:
    """Who is left still gets the outcome, on the first run and on replay."""

    @workflow("w")
    async def parent(run: Run) -> str:
        child = await run.start_child(kid, Order("a"))
        first, second = asyncio.ensure_future(child.result()), asyncio.ensure_future(child.result())
        await run.task(echo, 1)
        first.cancel()
        await run.task(echo, 2)
        return (await second).number

    family = Family(parent)
    assert await family.claim() == Parked()
    family.complete(lambda index: Receipt("r"))

    assert await family.claim() == "r"


async def test_a_child_beside_a_short_sleep_is_parked_for() -> None:
    """Only the dispatcher knows when a child ends."""

    @workflow("w")
    async def parent(run: Run) -> None:
        await asyncio.gather(run.child(tick), run.sleep("s", timedelta(seconds=1)))

    family = Family(parent)
    assert await family.claim() == Parked()
    assert {wait.kind for wait in family.port.parks[0]} == {"child", "sleep"}


async def test_def_workflows_have_children_too() -> None:
    """The same calls, blocking."""

    @workflow("w")
    def parent(run: SyncRun) -> list[Any]:
        first, second = run.start_child(kid, Order("a")), run.start_child(kid, Order("b"))
        seen = [second.result().number, first.result().number, first.id]
        try:
            run.child(tick)
        except ChildFailed as failure:
            seen.append(failure.error_type)
        assert run.map(tick, []) == []
        return [*seen, *(receipt.number for receipt in run.map(kid, [Order("c"), Order("d")]))]

    family = Family(parent)
    for _ in range(2):
        assert await family.claim() == Parked()
        family.complete(lambda index: Receipt("r"))
    assert await family.claim() == Parked()
    family.nursery.fail(family.nursery.running[0], "ValueError")
    assert await family.claim() == Parked()
    family.complete(lambda index: Receipt(f"m{index}"))

    assert await family.claim() == ["r", "r", "run_c0", "ValueError", "m0", "m1"]


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        (
            {"runId": "run_1", "status": "failed", "type": "CardDeclined", "details": [1]},
            ("run_1", "CardDeclined", "no", [1]),
        ),
        ({"runId": "run_1", "status": "failed", "type": "X", "message": "inside"}, ("run_1", "X", "inside", None)),
        ({"runId": None, "status": None, "type": "child_not_found"}, ("", "child_not_found", "no", None)),
        (None, ("", "ChildFailed", "no", None)),
    ],
)
def test_what_the_dispatcher_says_of_a_child_that_did_not_complete(details: Any, expected: tuple[Any, ...]) -> None:
    """Whatever it leaves out; where the child's executor sealed its errors, the message is inside."""
    failure = child_call.failure(messages.ErrorObject("ChildFailed", "no", details, retryable=False))

    assert (failure.run_id, failure.error_type, failure.message, failure.details) == expected
