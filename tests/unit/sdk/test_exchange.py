"""endpoint_sdk.exchange: the same request until its outcome is known, and not for ever."""

import pytest

from endpoint_sdk import calls
from endpoint_sdk.exchange import Abandoned, Exchange, Times
from endpoint_sdk.wire import messages
from tests.unit.sdk.dispatcher_double import (
    URL,
    DispatcherDouble,
    FakeClock,
    Fault,
    refusal,
    reply_lost,
    status,
    unreachable,
)

UNKNOWN = [reply_lost, unreachable, status(500), status(502), status(408), status(429), status(200, b"{"), status(401)]


class Fixture:
    """An exchange with the double, on a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.pauses: list[float] = []
        self.dispatcher = DispatcherDouble()
        times = Times(self.clock.now, self._sleep, lambda low, high: (low + high) / 2)
        self.exchange = Exchange(self.dispatcher, URL + "/", times)
        self.claim = calls.claim(self.dispatcher.delivery(), "clm_1", messages.ExecutorInfo("me"), 30_000)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.clock.sleep(seconds)


@pytest.mark.parametrize("fault", UNKNOWN)
async def test_an_unknown_outcome_is_asked_again_with_the_same_request(fault: Fault) -> None:
    """I6: a lost reply, a 5xx and silence are all repeated under one claim id, and the claim is granted once."""
    fixture = Fixture()
    fixture.dispatcher.faults["claim"].extend([fault, fault, fault])
    outcome, _ = await fixture.exchange.settle(fixture.claim, 10, lambda: True)

    assert isinstance(outcome, calls.Accepted)
    assert fixture.dispatcher.revision == 5
    assert {body["claimId"] for body in fixture.dispatcher.sent("claim")} == {"clm_1"}


async def test_pauses_double_from_fifty_milliseconds_to_two_seconds() -> None:
    """A short hiccup costs little, a long outage few requests."""
    fixture = Fixture()
    fixture.dispatcher.faults["claim"].extend([unreachable] * 8)
    await fixture.exchange.settle(fixture.claim, 60, lambda: True)

    assert fixture.pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])


async def test_a_call_is_given_up_when_its_time_is_over() -> None:
    """Unknown for good: the caller stops quietly and leaves the run to recovery."""
    fixture = Fixture()
    fixture.dispatcher.faults["claim"].extend([unreachable] * 1_000)
    started = fixture.clock.now()
    with pytest.raises(Abandoned):
        await fixture.exchange.settle(fixture.claim, 30, lambda: True)

    assert fixture.clock.now() - started <= 30


async def test_a_call_is_given_up_when_nobody_needs_it() -> None:
    """A claim lost meanwhile, or a host out of time, ends the trying."""
    fixture = Fixture()
    fixture.dispatcher.faults["claim"].append(unreachable)
    with pytest.raises(Abandoned):
        await fixture.exchange.settle(fixture.claim, 30, lambda: False)

    assert len(fixture.dispatcher.requests) == 1


async def test_a_refusal_and_a_loss_are_final() -> None:
    """A known outcome is not asked for again."""
    fixture = Fixture()
    fixture.dispatcher.faults["claim"].extend([refusal(422, "nope"), refusal(409, "already_claimed")])
    first, _ = await fixture.exchange.settle(fixture.claim, 30, lambda: True)
    second, _ = await fixture.exchange.settle(fixture.claim, 30, lambda: True)

    assert (first, second) == (calls.Refused("nope", "no"), calls.Loss("already_claimed"))


async def test_the_first_sending_counts() -> None:
    """The dispatcher may have acted on the first request: the claim is as old as that."""
    fixture = Fixture()
    fixture.dispatcher.faults["claim"].extend([reply_lost, reply_lost])
    started = fixture.clock.now()
    _, sent_at = await fixture.exchange.settle(fixture.claim, 30, lambda: True)

    assert sent_at == started
    assert fixture.clock.now() > started


async def test_an_unexpected_body_is_never_an_acceptance() -> None:
    """A captive portal's 200 is unknown."""
    fixture = Fixture()
    fixture.dispatcher.faults["claim"].append(status(200, b"<html>please sign in</html>"))
    outcome = await fixture.exchange.once(fixture.claim, 1)

    assert isinstance(outcome, calls.Unknown)
