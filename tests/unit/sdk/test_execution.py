"""endpoint_sdk.execution: from claim to settled end, with every reply lost and every claim lost once."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from endpoint_sdk import replay
from endpoint_sdk.execution import Conclusion
from endpoint_sdk.run import Run
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import workflow
from tests.unit.sdk.dispatcher_double import DispatcherDouble, Fault, refusal, reply_lost, status, unreachable
from tests.unit.sdk.handling import UNKNOWN, Handling, bodies, one


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    bodies.clear()


async def test_a_run_is_claimed_run_and_completed() -> None:
    """One delivery: a claim, one request per record, the result."""
    handling = Handling()
    conclusion = await handling.run()

    assert conclusion == Conclusion("settled", "complete")
    assert [name for name, _ in handling.dispatcher.requests] == ["claim", "progress", "progress", "progress"]
    assert handling.dispatcher.result == b'"in12"'
    assert bodies == ["one", "two"]


@pytest.mark.parametrize("fault", UNKNOWN)
@pytest.mark.parametrize("at", range(4))
async def test_an_unknown_outcome_at_any_call_is_harmless(fault: Fault, at: int) -> None:
    """I6: whichever call's answer is lost, three times over, the run completes and no body runs twice."""
    handling = Handling()
    kind = "claim" if at == 0 else "progress"
    passes: list[Fault] = [lambda proceed: proceed()] * max(at - 1, 0)
    handling.dispatcher.faults[kind].extend([*passes, fault, fault, fault])

    assert await handling.run() == Conclusion("settled", "complete")
    assert bodies == ["one", "two"]
    assert [record.name for record in handling.dispatcher.records] == ["one", "two"]


async def test_a_write_is_repeated_under_its_own_request_id() -> None:
    """Each write has one id on all its tries, and no two writes share one."""
    handling = Handling()
    handling.dispatcher.faults["progress"].extend([reply_lost, reply_lost])
    await handling.run()
    ids = [body["requestId"] for body in handling.dispatcher.sent("progress")]

    assert len(ids) == 5
    assert len(set(ids[:3])) == 1
    assert len(set(ids)) == 3


async def test_a_dispatcher_that_cannot_be_reached_means_retry() -> None:
    """Nothing was claimed, so the dispatcher may send it again soon."""
    handling = Handling()
    handling.dispatcher.faults["claim"].extend([unreachable] * 100)

    assert (await handling.run()).result == "retry"
    assert bodies == []


@pytest.mark.parametrize("code", ["already_claimed", "cancelled", "run_finished", "not_claimable", "stale_delivery"])
async def test_a_refused_claim_settles_the_delivery(code: str) -> None:
    """C13: a second copy of a delivery runs nothing and is done with."""
    handling = Handling()
    handling.dispatcher.faults["claim"].append(refusal(409, code))

    assert await handling.run() == Conclusion("settled", f"claim refused: {code}")
    assert bodies == []


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("refused", [refusal(409, "revision_conflict"), refusal(404, "run_not_found")])
async def test_a_loss_at_any_write_stops_quietly(refused: Fault, at: int) -> None:
    """C10: a fenced writer settles its delivery, runs no further body and sends nothing more."""
    handling = Handling()
    passes: list[Fault] = [lambda proceed: proceed()] * at
    handling.dispatcher.faults["progress"].extend([*passes, refused])
    conclusion = await handling.run()

    assert conclusion.result == "settled"
    assert "claim lost" in conclusion.what
    assert len(handling.dispatcher.sent("progress")) == at + 1
    assert bodies == ["one", "two"][: at + 1]


async def test_a_write_that_never_gets_an_answer_leaves_the_run_to_recovery() -> None:
    """No ending is guessed: the claim is no longer refreshed and the answer says that the outcome is unknown."""
    handling = Handling()
    handling.dispatcher.faults["progress"].extend([unreachable] * 1_000)
    conclusion = await handling.run()

    assert conclusion.result == "retry"
    assert handling.ending is None
    assert bodies == ["one"]
    assert handling.refresh() == 0


async def test_a_final_write_without_an_answer_is_retried_then_left() -> None:
    """Whether the run completed is not known here; the dispatcher knows."""
    handling = Handling()
    handling.dispatcher.faults["progress"].extend([lambda proceed: proceed()] * 2 + [reply_lost] * 1_000)

    assert (await handling.run()).result == "retry"
    assert handling.ending == "Complete"


async def test_an_outage_shorter_than_the_idle_timeout_is_survived() -> None:
    """C16: 5xx for most of the idle timeout, then an answer: the run goes on."""
    handling = Handling()
    until = handling.clock.now() + 80

    def down(proceed: Callable[[], Any]) -> Any:
        return status(500)(proceed) if handling.clock.now() < until else proceed()

    handling.dispatcher.faults["progress"].extend([down] * 500)

    assert await handling.run() == Conclusion("settled", "complete")


async def test_long_histories_are_joined_before_the_engine_starts() -> None:
    """A grant with a cursor is completed page by page; recorded tasks do not run again."""
    first = Handling()
    await first.run()
    recorded = first.dispatcher.records
    bodies.clear()
    handling = Handling()
    handling.dispatcher.records = list(recorded)
    handling.dispatcher.page = 1
    handling.dispatcher.faults["records"].append(status(500))

    assert await handling.run() == Conclusion("settled", "complete")
    assert len(handling.dispatcher.sent("records")) == 2
    assert bodies == []


async def test_a_definite_refusal_of_an_ending_fails_the_run_with_its_code() -> None:
    """A result the dispatcher will never take ends the run, it is not tried for ever."""
    handling = Handling()
    handling.dispatcher.faults["progress"].extend(
        [lambda proceed: proceed(), lambda proceed: proceed(), refusal(413, "payload_too_large")]
    )
    await handling.run()

    assert isinstance(handling.dispatcher.ending, messages.Fail)
    assert handling.dispatcher.ending.error.type == "payload_too_large"


async def test_a_definite_refusal_of_a_record_fails_its_task() -> None:
    """The task's failure carries the code; the run fails with it, as nothing catches it."""
    handling = Handling()
    handling.dispatcher.faults["progress"].append(refusal(422, "history_limit"))
    await handling.run()

    assert isinstance(handling.dispatcher.ending, messages.Fail)
    assert "history_limit" in handling.dispatcher.ending.error.message
    assert bodies == ["one"]


async def test_a_version_that_is_not_served_is_released() -> None:
    """A grant of another version than was delivered goes back with its reason, not to a failure."""
    handling = Handling(dispatcher=DispatcherDouble("order", "9"))
    await handling.run()

    assert handling.dispatcher.ending == messages.Release("unknown_version")


# --- claims lost while running ---------------------------------------------------------------------------------------
async def test_a_refresh_that_says_lost_cancels_the_handler() -> None:
    """I3: at the next await the handler is gone; the executor writes nothing more and settles."""
    entered = asyncio.Event()

    @workflow("order")
    async def waiting(run: Run, value: str) -> str:
        await run.task(one, value)
        entered.set()
        await asyncio.Event().wait()
        return value

    handling = Handling(waiting)
    running = asyncio.create_task(handling.run())
    await entered.wait()
    handling.dispatcher.takes_over()
    handling.refresh()

    assert await running == Conclusion("settled", "claim lost: revision_conflict")
    assert handling.ending is None


async def test_a_swallowed_cancellation_completes_nothing() -> None:
    """C61: after a loss, whatever the handler's except does is ignored."""
    entered = asyncio.Event()

    @workflow("order")
    async def stubborn(run: Run, value: str) -> str:
        await run.task(one, value)
        entered.set()
        try:
            await asyncio.Event().wait()
        except BaseException:
            bodies.append("swallowed")
        return "completed anyway"

    handling = Handling(stubborn)
    running = asyncio.create_task(handling.run())
    await entered.wait()
    handling.dispatcher.takes_over()
    handling.refresh()

    assert (await running).result == "settled"
    assert handling.ending is None
    assert len(handling.dispatcher.sent("progress")) == 1


async def test_a_loss_reported_once_the_final_write_is_sent_is_ignored() -> None:
    """The refresh may see the run's own end; only the final write's answer decides."""
    handling = Handling()

    def refresh_meanwhile(proceed: Callable[[], Any]) -> Any:
        answer = proceed()
        handling.refresh()
        return answer

    handling.dispatcher.faults["progress"].extend(
        [lambda proceed: proceed(), lambda proceed: proceed(), refresh_meanwhile]
    )

    assert await handling.run() == Conclusion("settled", "complete")


async def test_a_thawed_executor_is_refused_at_its_first_action() -> None:
    """C22: five minutes frozen in mid-step, then a write: it is fenced, and no further body starts."""
    handling = Handling()

    def freeze(proceed: Callable[[], Any]) -> Any:
        handling.clock.pass_(300)
        handling.dispatcher.takes_over()
        return proceed()

    handling.dispatcher.faults["progress"].append(freeze)
    conclusion = await handling.run()

    assert conclusion == Conclusion("settled", "claim lost: revision_conflict")
    assert bodies == ["one"]
    assert handling.dispatcher.records == []


async def test_a_note_travels_with_the_next_write_once() -> None:
    """What the handler last noted is shown while the run goes on, and is not sent again unchanged."""

    @workflow("order")
    async def noting(run: Run, value: str) -> str:
        run.set_note("first")
        await run.task(one, value)
        await run.task(one, value + "x")
        run.set_note("second")
        return value

    handling = Handling(noting)
    await handling.run()

    assert [body["note"] for body in handling.dispatcher.sent("progress")] == ["first", None, "second"]


async def test_a_loss_during_a_final_write_without_an_answer_decides_nothing() -> None:
    """The refresher may see what the final write did; with no answer to that write the outcome stays unknown."""
    handling = Handling()

    def done_and_seen(proceed: Callable[[], Any]) -> Any:
        handling.dispatcher.before["progress"] = handling.refresh
        return reply_lost(proceed)

    handling.dispatcher.faults["progress"].extend(
        [lambda proceed: proceed(), lambda proceed: proceed(), done_and_seen, *[reply_lost] * 1_000]
    )

    assert (await handling.run()).result == "retry"
    assert handling.ending == "Complete"


async def test_no_ending_overtakes_a_record() -> None:
    """A record still on its way, its writer gone, is settled before the run ends."""
    written: list[asyncio.Task[None]] = []
    late = messages.RecordIn("task", "late", "h", 0, "ended", "completed", 1)

    @workflow("order")
    async def hasty(run: Run, value: str) -> str:
        written.append(asyncio.create_task(handling.execution.write(late)))
        await asyncio.sleep(0)
        return value

    handling = Handling(hasty)
    handling.dispatcher.faults["progress"].extend([unreachable, unreachable])

    assert await handling.run() == Conclusion("settled", "complete")
    assert [body["ending"] is None for body in handling.dispatcher.sent("progress")] == [True, True, True, False]
    assert written[0].done()


async def test_a_failure_refused_too_is_left_to_the_dispatcher() -> None:
    """When even the failure is refused, nothing is known to be recorded: the delivery is not settled."""
    handling = Handling()
    handling.dispatcher.faults["progress"].extend(
        [lambda proceed: proceed(), lambda proceed: proceed(), *[refusal(422, "nope")] * 2]
    )

    assert await handling.run() == Conclusion("retry", "ending refused: nope")


async def test_a_divergence_stalls_the_run() -> None:
    """A record the code no longer asks for, next to a call it has not: the run waits for an operator."""

    @workflow("order")
    async def changed(run: Run, value: str) -> str:
        await run.task(one, "something else")
        return value

    handling = Handling(changed)
    handling.dispatcher.records = [
        messages.RecordIn("task", "one", "h", 0, "ended", "completed", 1, msgspec.Raw(b'"x"'))
    ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "IDLE_SECONDS", 0.01)
        await handling.run()

    assert isinstance(handling.dispatcher.ending, messages.Stall)
    assert handling.dispatcher.ending.reason == "divergence"
    assert bodies == []


async def test_a_loss_heard_between_the_handlers_end_and_the_final_write_sends_none() -> None:
    """The claim is gone before anything was sent: there is nothing to send."""

    @workflow("order")
    async def outrun(run: Run, value: str) -> str:
        handling.dispatcher.takes_over()
        handling.refresh()
        return value

    handling = Handling(outrun)

    assert await handling.run() == Conclusion("settled", "claim lost: revision_conflict")
    assert handling.dispatcher.sent("progress") == []


@pytest.mark.parametrize("raised", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
async def test_whatever_a_handler_raises_ends_the_run_not_the_process(raised: BaseException) -> None:
    """SystemExit and its like in user code are failures of the run."""

    @workflow("order")
    async def raising(run: Run, value: str) -> str:
        raise raised

    handling = Handling(raising)
    await handling.run()

    assert isinstance(handling.dispatcher.ending, messages.Fail)
