"""endpoint_sdk.execution: starting children and reading what became of them, whatever happens to the calls."""

import asyncio
from datetime import timedelta

import pytest

from endpoint_sdk import PointsmanError, Run, workflow
from endpoint_sdk.execution import Conclusion
from endpoint_sdk.wire import messages
from tests.unit.sdk.dispatcher_double import Fault, refusal, reply_lost, unreachable
from tests.unit.sdk.handling import UNKNOWN, Handling, bodies, one


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    bodies.clear()


@workflow("kid")
async def kid(run: Run, name: str) -> str:
    return name


@workflow("order")
async def parent(run: Run, value: str) -> str:
    return await run.child(kid, value)


@workflow("order")
async def family(run: Run, value: str) -> list[str]:
    names = [f"{value}{index}" for index in range(3)]
    beside = asyncio.ensure_future(run.task(one, value))
    children = await asyncio.gather(*(run.start_child(kid, name) for name in names))
    return [await beside, *(child.id for child in children)]


@workflow("order")
async def many(run: Run, value: str) -> list[str]:
    return await run.map(kid, [f"{value}{index}" for index in range(5)])


def again(handling: Handling, served: object = parent) -> Handling:
    """All children return their input, and the run is claimed again on another executor."""
    room = handling.dispatcher.room
    for child in room.nursery.running:
        room.nursery.complete(child, f"{child.index} done")
    room.child_ended()
    handling.dispatcher.requeue()
    return Handling(served, handling.dispatcher)  # type: ignore[arg-type]


async def test_a_run_waits_for_its_child() -> None:
    """Start, park, end: the second claim has the result, and starts nothing."""
    handling = Handling(parent)
    assert await handling.run() == Conclusion("settled", "park")
    handling = again(handling)

    assert await handling.run() == Conclusion("settled", "complete")
    assert handling.dispatcher.result == b'"0 done"'
    assert len(handling.dispatcher.sent("children")) == 1


@pytest.mark.parametrize("fault", UNKNOWN)
async def test_a_start_is_repeated_with_the_same_body_until_it_is_known(fault: Fault) -> None:
    """Whatever happens to an answer, there is one child."""
    handling = Handling(parent)
    handling.dispatcher.faults["children"].extend([fault, fault])
    assert await handling.run() == Conclusion("settled", "park")

    first, *repeats = handling.dispatcher.sent("children")
    assert repeats == [first, first]
    assert len(handling.dispatcher.room.nursery.children) == 1


async def test_an_executor_that_lost_its_claim_starts_nothing() -> None:
    """The refusal is a loss: the run stops quietly."""
    handling = Handling(parent)
    handling.dispatcher.before["children"] = handling.dispatcher.takes_over
    assert await handling.run() == Conclusion("settled", "claim lost: revision_conflict")

    assert handling.dispatcher.room.nursery.children == []
    assert handling.ending is None


async def test_a_start_without_an_answer_is_left_to_recovery() -> None:
    """Never the user's failure; whoever claims the run next finds the child."""
    handling = Handling(parent)
    handling.dispatcher.idle_timeout_ms = 300
    handling.dispatcher.faults["children"].extend([reply_lost] * 50)
    assert await handling.run() == Conclusion("retry", "a write got no answer")

    assert handling.ending is None
    run = handling.dispatcher
    run.faults.clear()
    run.takes_over()
    run.state = "queued"
    handling = Handling(parent, run)
    assert await handling.run() == Conclusion("settled", "park")
    assert len(run.room.nursery.children) == 1


async def test_starts_made_at_once_share_a_request_in_the_order_of_the_calls() -> None:
    """One call for three children of a gather; the record beside them keeps its place."""
    handling = Handling(family)
    assert await handling.run() == Conclusion("settled", "complete")

    [start] = handling.dispatcher.sent("children")
    assert [child["input"] for child in start["children"]] == ["in0", "in1", "in2"]
    assert handling.dispatcher.result == b'["in1","run_c0","run_c1","run_c2"]'
    assert bodies == ["one"]


async def test_a_refused_request_is_sent_start_by_start() -> None:
    """Only the start at fault fails, with the code."""

    @workflow("order")
    async def three(run: Run, value: str) -> list[str]:
        found = await asyncio.gather(*(run.start_child(kid, name) for name in "abc"), return_exceptions=True)
        return [each.code if isinstance(each, PointsmanError) else "started" for each in found]

    handling = Handling(three)
    conflict = refusal(422, "history_limit")
    handling.dispatcher.faults["children"].extend([conflict, lambda proceed: proceed(), conflict])
    assert await handling.run() == Conclusion("settled", "complete")

    assert [len(body["children"]) for body in handling.dispatcher.sent("children")] == [3, 1, 1, 1]
    assert handling.dispatcher.result == b'["started","history_limit","started"]'


async def test_results_are_read_page_by_page_under_any_fault() -> None:
    """Pages are asked for again until they come; the results are in order."""
    handling = Handling(many)
    handling.dispatcher.page = 2
    assert await handling.run() == Conclusion("settled", "park")
    handling = again(handling, many)
    handling.dispatcher.faults["outcomes"].extend([unreachable, reply_lost, *UNKNOWN])

    assert await handling.run() == Conclusion("settled", "complete")
    assert handling.dispatcher.result == b'["0 done","1 done","2 done","3 done","4 done"]'
    assert len(handling.dispatcher.sent("outcomes")) == 2 + len(UNKNOWN) + 3


@pytest.mark.parametrize(
    ("fault", "conclusion"),
    [
        (refusal(409, "revision_conflict"), Conclusion("settled", "claim lost: revision_conflict")),
        (refusal(403, "forbidden"), Conclusion("retry", "a write got no answer")),
    ],
)
async def test_results_that_are_refused_stop_the_run_quietly(fault: Fault, conclusion: Conclusion) -> None:
    """A loss is a loss, and no refusal of a page is the user's failure."""
    handling = Handling(many)
    await handling.run()
    handling = again(handling, many)
    handling.dispatcher.faults["outcomes"].append(fault)

    assert await handling.run() == conclusion
    assert handling.ending is None


async def test_a_child_that_ends_while_the_run_parks_is_seen() -> None:
    """The park is refused, brings the outcome, and the run goes on under its claim."""
    handling = Handling(parent)
    room = handling.dispatcher.room

    def end_beside_the_park() -> None:
        if room.nursery.running and "park" in str(handling.dispatcher.requests[-1][1].get("ending")):
            room.nursery.complete(room.nursery.running[0], "just now")
            room.child_ended()

    handling.dispatcher.before["progress"] = end_beside_the_park
    assert await handling.run() == Conclusion("settled", "complete")
    assert handling.dispatcher.result == b'"just now"'


async def test_outcomes_an_answer_to_starts_brings_are_seen_before_them() -> None:
    """As replay will hand them out: by number, the outcome before the start it was answered with."""

    @workflow("order")
    async def racing(run: Run, value: str) -> list[str]:
        seen: list[str] = []

        async def answer() -> None:
            seen.append(str(await run.wait_event("answer")))

        waiting = asyncio.ensure_future(answer())
        await run.sleep("s", timedelta(hours=1))
        seen.append((await run.start_child(kid, value)).id)
        await waiting
        return seen

    handling = Handling(racing)
    run = handling.dispatcher
    assert await handling.run() == Conclusion("settled", "park")
    run.room.advance()
    run.requeue()
    handling = Handling(racing, run)

    def late_copy() -> None:
        if not run.room.written[1:]:
            run.room.send("answer", "yes")
            assert not run.room.park([messages.WaitFor("event", "answer", 0)], 0)

    run.before["children"] = late_copy
    assert await handling.run() == Conclusion("settled", "complete")
    assert run.result == b'["yes","run_c0"]'
