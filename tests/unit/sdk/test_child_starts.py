"""endpoint_sdk.child_starts: what is started, what is refused, and what a crash leaves of it."""

import asyncio
from collections.abc import Sequence

import pytest

from endpoint_sdk import PointsmanError, Run, workflow
from endpoint_sdk.errors import RecordRefused
from endpoint_sdk.wire import child_messages, limits
from tests.unit.sdk.family import Family, Order, Receipt, echo, kid, tick
from tests.unit.sdk.replay_lab import MemoryPort, execute, plain
from tests.unit.sdk.wait_lab import WaitLab


async def test_a_map_over_nothing_calls_nothing() -> None:
    """An empty list is an empty list."""

    @workflow("w")
    async def parent(run: Run) -> list[Receipt]:
        return await run.map(kid, [])

    family = Family(parent)
    assert await family.claim() == []
    assert (family.port.records, family.nursery.children) == ([], [])


@pytest.mark.parametrize(("items", "limit"), [(1, 0), (limits.MAX_CHILDREN + 1, 50)])
async def test_a_map_that_cannot_be(items: int, limit: int) -> None:
    """No limit under 1, no more than 10 000 children a call."""

    @workflow("w")
    async def parent(run: Run) -> None:
        await run.map(tick, [None] * items, limit=limit)

    assert await Family(parent).claim() == "configuration"


async def test_starts_are_split_by_number_and_size() -> None:
    """No request has more than 500 starts, or over 4 MiB."""
    chunks: list[int] = []

    class Counting(MemoryPort):
        async def start_children(
            self, starts: Sequence[child_messages.ChildStart]
        ) -> Sequence[child_messages.StartedChild]:
            chunks.append(len(starts))
            assert sum(len(bytes(start.input)) for start in starts) < limits.MAX_PROGRESS
            return await super().start_children(starts)

    @workflow("w")
    async def parent(run: Run, items: list[str]) -> None:
        await run.map(kid, [Order(item) for item in items])

    await execute(parent, value=["a"] * 1_001, port=Counting())
    assert chunks == [500, 500, 1]
    chunks.clear()
    await execute(parent, value=["a" * 1_000_000] * 5, port=Counting())
    assert chunks == [4, 1]


async def test_a_refused_start_is_the_calls_failure_and_stays_so() -> None:
    """The code of the refusal is recorded: on replay nothing is asked for again."""

    @workflow("w")
    async def parent(run: Run) -> list[str]:
        seen = []
        for _ in range(2):
            try:
                await run.start_child(kid, Order("o1"))
            except PointsmanError as error:
                seen.append(error.code)
        return seen

    family = Family(parent)
    family.nursery.refuse = lambda start: "idempotency_conflict" if start.ordinal == 0 else None
    assert await family.claim() == ["idempotency_conflict"]
    [refusal, _] = family.port.records
    assert (refusal.kind, refusal.phase, refusal.state) == ("child", "ended", "failed")

    family.nursery.refuse = lambda start: None
    assert await family.claim() == ["idempotency_conflict"]
    assert len(family.nursery.children) == 1


async def test_a_map_of_which_one_start_is_refused_fails() -> None:
    """The whole call has the code."""

    @workflow("w")
    async def parent(run: Run) -> str:
        try:
            await run.map(kid, [Order("a"), Order("b")])
        except PointsmanError as error:
            return error.code
        return ""

    family = Family(parent)
    family.nursery.refuse = lambda start: "malformed" if start.index == 1 else None
    assert await family.claim() == "malformed"
    assert await family.claim() == "malformed"


async def test_a_request_refused_for_good_fails_its_call() -> None:
    """A refusal of the whole request is that of its one start."""

    class Refusing(MemoryPort):
        async def start_children(
            self, starts: Sequence[child_messages.ChildStart]
        ) -> Sequence[child_messages.StartedChild]:
            raise RecordRefused("payload_too_large", "no")

    @workflow("w")
    async def parent(run: Run) -> str:
        try:
            await run.child(tick)
        except PointsmanError as error:
            return error.code
        return ""

    ended, records = await execute(parent, port=Refusing())
    assert plain(ended) == "payload_too_large"
    assert [record.phase for record in records] == ["ended"]


async def test_an_input_that_does_not_fit_starts_nothing() -> None:
    """It is refused where it was given."""

    @workflow("w")
    async def parent(run: Run) -> None:
        await run.start_child(kid, Order("x" * (limits.MAX_PAYLOAD + 1)))

    family = Family(parent)
    assert await family.claim() == "payload_too_large"
    assert family.nursery.children == []


async def test_what_is_no_workflow_is_refused() -> None:
    """With a sentence."""

    @workflow("w")
    async def parent(run: Run) -> None:
        await run.start_child(echo, 1)  # type: ignore[call-overload]

    assert await Family(parent).claim() == "configuration"


async def test_c60_any_subset_of_parallel_starts_may_be_recorded() -> None:
    """C60: `gather` of children, crashed with any of them started: each is started once, in the end."""

    @workflow("w")
    async def parent(run: Run) -> list[str]:
        children = await asyncio.gather(*(run.start_child(kid, Order(name)) for name in "abc"))
        return [child.id for child in children]

    for stored in range(4):
        lab = WaitLab(parent)
        await lab.start()
        assert lab.on_the_way == 3
        await lab.crash(stored)
        await lab.start()
        while not lab.done:
            await lab.store(1)
        assert sorted(plain(await lab.ended())) == [child.id for child in lab.nursery.children]
        assert len(lab.nursery.children) == 3


async def test_a_start_whose_answer_was_lost_finds_the_same_child() -> None:
    """Sent again, it is the same start."""

    @workflow("w")
    async def parent(run: Run) -> str:
        return (await run.start_child(kid, Order("a"))).id

    lab = WaitLab(parent)
    await lab.start()
    lab.lose_reply()
    await lab.store(1)

    assert plain(await lab.ended()) == "run_c0"
    assert len(lab.nursery.children) == 1


async def test_a_map_cut_short_by_a_crash_is_started_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was started is found again, the rest is started."""
    monkeypatch.setattr(limits, "MAX_BATCH", 2)

    @workflow("w")
    async def parent(run: Run) -> list[Receipt]:
        return await run.map(kid, [Order(name) for name in "abc"])

    lab = WaitLab(parent)
    await lab.start()
    await lab.crash(1)
    assert (len(lab.nursery.children), lab.records) == (2, [])
    await lab.start()
    await lab.store(1)
    await lab.store(1)

    assert [child.index for child in lab.nursery.children] == [0, 1, 2]
    assert lab.asks


async def test_no_child_starts_on_an_executor_that_is_leaving() -> None:
    """A start is a boundary, as a task is."""

    @workflow("w")
    async def parent(run: Run) -> None:
        await run.child(tick)

    family = Family(parent)
    family.port.is_leaving = True
    await family.claim()
    assert family.nursery.children == []
