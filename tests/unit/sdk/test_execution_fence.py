"""endpoint_sdk.execution: no body on a claim that may be stale, no effect before its record."""

from collections.abc import Callable
from typing import Any

import pytest

from endpoint_sdk.errors import CancelRequested
from endpoint_sdk.execution import Conclusion
from endpoint_sdk.run import Run
from endpoint_sdk.workflow import workflow
from tests.unit.sdk.dispatcher_double import Fault, reply_lost, status, unreachable
from tests.unit.sdk.handling import Handling, bodies, one, payment


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    bodies.clear()


# --- the self-fence --------------------------------------------------------------------------------------------------
def _answer_takes(handling: Handling, seconds: float) -> Fault:
    def slow(proceed: Callable[[], Any]) -> Any:
        answer = proceed()
        handling.clock.pass_(seconds)
        return answer

    return slow


async def test_no_self_fence_before_a_task_body() -> None:
    """I15: a claim frozen away before the first body is noticed before that body, not after it."""
    handling = Handling()

    def frozen_after(proceed: Callable[[], Any]) -> Any:
        answer = proceed()
        handling.clock.pass_(300)
        handling.dispatcher.takes_over()
        return answer

    handling.dispatcher.faults["claim"].append(frozen_after)
    conclusion = await handling.run()

    assert bodies == []
    assert conclusion == Conclusion("settled", "claim lost: revision_conflict")
    assert [name for name, _ in handling.dispatcher.requests] == ["claim", "refresh"]


async def test_self_fence_counts_from_receipt_of_the_answer() -> None:
    """I15: it must count from sending. An answer 75 s on its way makes a 90 s claim stale on arrival: refresh first."""
    handling = Handling()
    handling.dispatcher.faults["claim"].append(_answer_takes(handling, 75))

    assert await handling.run() == Conclusion("settled", "complete")
    assert [name for name, _ in handling.dispatcher.requests][:2] == ["claim", "refresh"]


async def test_a_fresh_claim_needs_no_refresh_before_a_body() -> None:
    """An answer 70 s on its way leaves the claim younger than 0.8 × 90 s."""
    handling = Handling()
    handling.dispatcher.faults["claim"].append(_answer_takes(handling, 70))
    await handling.run()

    assert handling.dispatcher.sent("refresh") == []


async def test_a_fence_whose_refresh_is_slow_refreshes_again() -> None:
    """The age is checked after the last await before the body, the refresh's own included."""
    handling = Handling()
    handling.dispatcher.faults["claim"].append(_answer_takes(handling, 75))
    handling.dispatcher.faults["refresh"].append(_answer_takes(handling, 75))

    assert await handling.run() == Conclusion("settled", "complete")
    assert len(handling.dispatcher.sent("refresh")) == 2


async def test_a_fence_that_gets_no_answer_starts_no_body() -> None:
    """Unknown for good: the run is left to recovery without a body having run."""
    handling = Handling()
    handling.dispatcher.faults["claim"].append(_answer_takes(handling, 75))
    handling.dispatcher.faults["refresh"].extend([unreachable] * 1_000)

    assert (await handling.run()).result == "retry"
    assert bodies == []
    assert handling.ending is None


@workflow("order")
async def _compensating(run: Run, value: str) -> None:
    run.undo(one, value)
    try:
        await run.wait_event("never")
    except CancelRequested:
        await run.compensate()
        raise


@pytest.mark.parametrize("lost", [True, False])
async def test_no_self_fence_before_a_body_compensation_included(lost: bool) -> None:
    """I15: a compensation's body starts no sooner than a refresh, where the last accepted call is too old by then."""
    handling = Handling(_compensating)
    handling.dispatcher.stop = "cancel"

    def frozen_after(proceed: Callable[[], Any]) -> Any:
        answer = proceed()
        handling.clock.pass_(75)
        if lost:
            handling.dispatcher.takes_over()
        return answer

    handling.dispatcher.faults["progress"].append(frozen_after)
    conclusion = await handling.run()

    assert [name for name, _ in handling.dispatcher.requests][:3] == ["claim", "progress", "refresh"]
    assert [record.kind for record in handling.dispatcher.records] == (["cancel"] if lost else ["cancel", "task"])
    assert bodies == ([] if lost else ["one"])
    assert conclusion.what == ("claim lost: revision_conflict" if lost else "cancelled")


# --- records before effects ------------------------------------------------------------------------------------------
async def test_at_most_once_start_record_not_awaited() -> None:
    """I7: the body has not begun when the started record is sent, lost and sent again."""
    handling = Handling(payment)
    seen: list[list[str]] = []
    handling.dispatcher.before["progress"] = lambda: seen.append(list(bodies))
    handling.dispatcher.faults["progress"].extend([unreachable, reply_lost])

    assert await handling.run() == Conclusion("settled", "complete")
    assert seen[:3] == [[], [], []]
    assert [(record.phase, record.state) for record in handling.dispatcher.records] == [
        ("started", "started"),
        ("ended", "completed"),
    ]


async def test_a_started_record_without_an_answer_starts_nothing() -> None:
    """I7: whether it was recorded is not known, so the body does not run."""
    handling = Handling(payment)
    handling.dispatcher.faults["progress"].extend([reply_lost] * 1_000)

    assert (await handling.run()).result == "retry"
    assert bodies == []


async def test_result_visible_before_its_checkpoint_is_acknowledged() -> None:
    """It must not be: while the record's outcome is unknown the workflow has not seen the result."""
    seen: list[str] = []

    @workflow("order")
    async def watching(run: Run, value: str) -> str:
        result = await run.task(one, value)
        seen.append(result)
        return result

    handling = Handling(watching)
    visible: list[int] = []
    handling.dispatcher.before["progress"] = lambda: visible.append(len(seen))
    handling.dispatcher.faults["progress"].extend([reply_lost, status(500)])
    await handling.run()

    assert visible[:3] == [0, 0, 0]
    assert seen == ["in1"]
