"""endpoint_sdk.execution over a run that came claimed, from a poll."""

import pytest

from endpoint_sdk.execution import Conclusion, Execution
from endpoint_sdk.subscribers.base import Claim
from endpoint_sdk.wire import messages
from tests.unit.sdk.handling import Handling, bodies


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    bodies.clear()


def polled(age: float = 0) -> Handling:
    """The run is claimed by a poll sent *age* seconds ago."""
    handling = Handling()
    run = handling.dispatcher
    run.state, run.revision, run.claim_id = "running", 5, f"req_1_{run.run_id}"
    claim = Claim(run._grant(), handling.clock.now() - age)
    handling.execution = Execution(handling.context, claim, lambda: handling.left)
    return handling


async def test_a_polled_run_is_run_without_claiming_it_again() -> None:
    """The claim came with its grant."""
    handling = polled()

    assert await handling.run() == Conclusion("settled", "complete")
    assert [name for name, _ in handling.dispatcher.requests] == ["progress", "progress", "progress"]
    assert bodies == ["one", "two"]


@pytest.mark.parametrize(("age", "refreshes"), [(71, 0), (73, 1)])
async def test_the_age_of_a_claim_is_that_of_the_poll(age: float, refreshes: int) -> None:
    """I15: a poll sent more than 0.8 idle timeouts ago is refreshed before the first body starts."""
    handling = polled(age)

    assert await handling.run() == Conclusion("settled", "complete")
    assert len(handling.dispatcher.sent("refresh")) == refreshes


async def test_c22_an_answer_read_too_late_starts_no_body() -> None:
    """A worker stopped while it polled reads an answer whose run others have taken over since."""
    handling = polled(300)
    handling.dispatcher.takes_over()
    conclusion = await handling.run()

    assert conclusion.what == "claim lost: revision_conflict"
    assert bodies == []
    assert handling.dispatcher.sent("progress") == []


async def test_a_claim_told_to_drain_before_it_started_is_released() -> None:
    """No handler is started for it."""
    handling = polled()
    handling.execution.drain()

    assert await handling.run() == Conclusion("settled", "release")
    assert handling.dispatcher.ending == messages.Release("drain")
    assert bodies == []


async def test_its_age_is_shown_once_it_is_held() -> None:
    """Before there is a claim there is none."""
    handling = polled(3)
    assert handling.execution.refreshed_at is None
    await handling.run()

    assert handling.execution.refreshed_at == handling.clock.now()
