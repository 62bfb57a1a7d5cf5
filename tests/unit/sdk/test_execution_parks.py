"""endpoint_sdk.execution: giving the claim up to wait, refused or not."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from endpoint_sdk import CancelRequested, Retry, Run, WaitTimeout, task, workflow
from endpoint_sdk.execution import Conclusion
from endpoint_sdk.wire import clock, messages
from tests.unit.sdk.dispatcher_double import DispatcherDouble, Fault, refusal, reply_lost, status, unreachable
from tests.unit.sdk.handling import Handling, bodies, one

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    bodies.clear()


@workflow("order")
async def patient(run: Run, value: str) -> str:
    first = await run.task(one, value)
    answer = await run.wait_event("answer", timeout=HOUR)
    await run.sleep("cool-off", HOUR)
    return f"{first} {answer}"


def again(handling: Handling) -> Handling:
    """The run is claimed again, on another executor."""
    handling.dispatcher.requeue()
    return Handling(patient, handling.dispatcher)


async def test_a_run_lives_through_its_waits() -> None:
    """Park, event, park, timer: three claims, one body, one result."""
    handling = Handling(patient)
    run = handling.dispatcher
    assert await handling.run() == Conclusion("settled", "park")
    assert run.room.parked

    run.room.send("answer", "yes")
    handling = again(handling)
    assert await handling.run() == Conclusion("settled", "park")
    [wait] = run.room.armed.values()
    assert (wait.kind, wait.name) == ("sleep", "cool-off")

    run.room.advance()
    handling = again(handling)
    assert await handling.run() == Conclusion("settled", "complete")
    assert run.result == b'"in1 yes"'
    assert bodies == ["one"]


async def test_c62_an_event_sent_while_the_run_parks_is_seen() -> None:
    """C62: the park is refused, brings the event, and the run goes on under its claim."""
    handling = Handling(patient)
    run = handling.dispatcher
    parks: list[int] = []

    def send_beside_the_park() -> None:
        if "park" in str(run.requests[-1][1].get("ending")):
            parks.append(run.revision)
            if len(parks) == 1:
                run.room.send("answer", "just now")

    run.before["progress"] = send_beside_the_park
    assert await handling.run() == Conclusion("settled", "park")

    assert parks == [5, 5]
    assert [record.kind for record in run.records] == ["task", "event"]
    assert [wait.name for wait in run.room.armed.values()] == ["cool-off"]


async def test_a_park_says_what_was_heard() -> None:
    """The signal number of the last answer, and the newest outcome: without them the next park would be refused too."""
    handling = Handling(patient)
    run = handling.dispatcher

    def send_beside() -> None:
        kind = (run.sent("progress")[-1]["ending"] or {}).get("kind")
        if kind is None:
            run.room.send("other", 1)
        elif len(run.sent("progress")) == 2:
            run.room.send("answer", 2)

    run.before["progress"] = send_beside
    assert await handling.run() == Conclusion("settled", "park")

    sent = [(body["signalSeq"], body["signalsAfter"]) for body in run.sent("progress") if body["ending"] is not None]
    assert sent == [(1, 0), (2, 2)]


@pytest.mark.parametrize("fault", [reply_lost, unreachable, status(500), status(429), status(200, b"{")])
async def test_a_park_is_repeated_until_its_outcome_is_known(fault: Fault) -> None:
    """I6: a park whose answer is lost is sent again as it was, and answered as before."""
    handling = Handling(patient)
    run = handling.dispatcher

    def once() -> None:
        if run.sent("progress")[-1]["ending"] is not None:
            run.before.clear()
            run.faults["progress"].append(fault)

    run.before["progress"] = once
    assert await handling.run() == Conclusion("settled", "park")

    sent = [body for body in run.sent("progress") if body["ending"] is not None]
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert run.room.parked


async def test_a_park_of_a_lost_claim_settles_quietly() -> None:
    """The fence holds for parks too: the loser stops, and nothing is asked for again."""
    handling = Handling(patient)
    run = handling.dispatcher
    run.before["progress"] = lambda: run.takes_over() if run.sent("progress")[-1]["ending"] is not None else None

    assert await handling.run() == Conclusion("settled", "claim lost: revision_conflict")
    assert not run.room.parked


async def test_a_park_that_is_refused_for_good_fails_the_run() -> None:
    """A definite refusal of an ending: the run fails with its code."""
    handling = Handling(patient)
    run = handling.dispatcher

    def refuse() -> None:
        if (run.sent("progress")[-1]["ending"] or {}).get("kind") == "park":
            run.faults["progress"].append(refusal(422, "too_many_waits"))

    run.before["progress"] = refuse
    assert await handling.run() == Conclusion("settled", "fail")
    assert isinstance(run.ending, messages.Fail)
    assert run.ending.error.type == "too_many_waits"


async def test_a_park_under_an_unheard_cancel_is_refused_once() -> None:
    """The refusal tells of the cancel: the workflow is told where it waits, and ends cancelled by it."""
    handling = Handling(patient)
    run = handling.dispatcher

    def cancel() -> None:
        if run.sent("progress")[-1]["ending"] is not None:
            run.stop = "cancel"

    run.before["progress"] = cancel
    assert await handling.run() == Conclusion("settled", "cancelled")
    sent = [(body["ending"] or {"kind": body["records"][0]["kind"]}) for body in run.sent("progress")]
    assert [(each["kind"], each.get("told")) for each in sent] == [
        ("task", None),
        ("park", False),
        ("cancel", None),
        ("cancelled", None),
    ]


async def test_a_cancel_a_refresh_tells_of_is_raised_at_the_next_call() -> None:
    """Whatever call's answer brought it, the workflow hears of it at its next task boundary."""
    begun, finish = asyncio.Event(), asyncio.Event()

    @task(name="slow")
    async def slow() -> None:
        begun.set()
        await finish.wait()

    @workflow("order")
    async def steps(run: Run, value: str) -> str:
        await run.task(slow)
        try:
            return await run.task(one, value)
        except CancelRequested:
            return "told"

    handling = Handling(steps)
    run = handling.dispatcher
    running = asyncio.create_task(handling.run())
    await begun.wait()
    run.stop = "cancel"
    await asyncio.to_thread(handling.refresh)
    finish.set()
    assert await running == Conclusion("settled", "complete")
    assert run.result == b'"told"'
    assert bodies == []


async def test_c14_no_answer_to_a_park_makes_the_executor_adopt_a_revision() -> None:
    """C14: an answer that names another revision is none; the same park is sent again under the claim's own."""
    handling = Handling(patient)
    run = handling.dispatcher

    def answer_wrongly() -> None:
        if run.sent("progress")[-1]["ending"] is not None and len(run.sent("progress")) == 2:
            run.faults["progress"].append(status(200, b'{"revision": 99, "parked": false, "signalSeq": 7}'))

    run.before["progress"] = answer_wrongly
    assert await handling.run() == Conclusion("settled", "park")
    first, second = run.sent("progress")[1:]
    assert first == second
    assert {body["expectedRevision"] for body in run.sent("progress")} == {first["expectedRevision"]}


@workflow("order")
async def together(run: Run, value: str) -> str:
    await run.sleep("s", HOUR)
    return value


async def test_time_nearly_up_parks_a_run_that_only_waits() -> None:
    """Inside the margin a run all of whose branches wait is parked; nothing of it could go on elsewhere."""
    handling = Handling(together)
    handling.left = timedelta(seconds=1)

    assert await handling.run() == Conclusion("settled", "park")


async def test_a_pause_keeps_the_waits() -> None:
    """Asked to pause, a waiting run parks with everything it waits for instead of releasing."""
    handling = Handling(together)
    handling.dispatcher.stop = "pause"

    assert await handling.run() == Conclusion("settled", "park")
    assert [wait.name for wait in handling.dispatcher.room.armed.values()] == ["s"]


async def test_a_task_beyond_ten_seconds_parks_for_its_next_attempt() -> None:
    """The retry is a wait like any other; the claim after it makes the second attempt."""
    attempts: list[int] = []

    @task(retry=Retry.fixed(max_attempts=2, delay=timedelta(minutes=1)))
    async def flaky() -> str:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            raise ValueError
        return "second"

    @workflow("order")
    async def handler(run: Run, value: str) -> str:
        return await run.task(flaky)

    handling = Handling(handler)
    run = handling.dispatcher
    assert await handling.run() == Conclusion("settled", "park")
    [wait] = run.room.armed.values()
    assert wait.kind == "retry"
    assert wait.deadline == run.records[0].next_attempt_at

    run.room.advance()
    run.requeue()
    assert await Handling(handler, run).run() == Conclusion("settled", "complete")
    assert run.result == b'"second"'


async def test_an_event_that_does_not_come_in_time_raises_on_every_replay() -> None:
    """The recorded timeout decides, even if the event comes later."""

    @workflow("order")
    async def handler(run: Run, value: str) -> str:
        try:
            return str(await run.wait_event("e", timeout=HOUR))
        except WaitTimeout:
            await run.sleep("s", HOUR)
            return "late"

    handling = Handling(handler)
    run = handling.dispatcher
    await handling.run()
    run.room.advance()
    run.room.send("e", 1)
    run.requeue()
    await Handling(handler, run).run()
    run.room.advance()
    run.requeue()
    assert await Handling(handler, run).run() == Conclusion("settled", "complete")
    assert run.result == b'"late"'


async def test_outcomes_of_a_late_copy_are_seen_before_the_records_of_the_answer_that_brings_them() -> None:
    """A refused park that arrives once more may record more; the executor sees that in the order of the records."""
    seen: list[str] = []

    @workflow("order")
    async def handler(run: Run, value: str) -> None:
        async def branch(name: str) -> None:
            seen.append(await run.wait_event(name))
            seen.append(await run.task(one, name))

        await asyncio.gather(branch("a"), branch("b"))

    handling = Handling(handler)
    run = handling.dispatcher
    parks: list[messages.Park] = []

    def beside() -> None:
        ending = run.sent("progress")[-1]["ending"]
        if ending is not None and ending["kind"] == "park":
            parks.append(msgspec.convert(ending, messages.Park))
            run.room.send("a", "A")
        elif len(parks) == 1:
            run.room.send("b", "B")
            assert not run.room.park(parks[0].waits, 0)
            parks.append(parks[0])

    run.before["progress"] = beside
    assert await handling.run() == Conclusion("settled", "complete")

    assert [(record.kind, record.name) for record in run.records] == [
        ("event", "a"),
        ("event", "b"),
        ("task", one.name),
        ("task", one.name),
    ]
    assert seen == ["A", "B", "a1", "b1"]


def test_the_doubles_clock_is_the_grants() -> None:
    """Deadlines are counted from the dispatcher's time."""
    run = DispatcherDouble()

    assert run._grant().server_time == clock.to_wire(2_000)
