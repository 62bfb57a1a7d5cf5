"""endpoint_sdk.worker: what becomes of every message a worker receives."""

import time
from typing import Any

import pytest

from endpoint_sdk import shift
from endpoint_sdk.wire import messages, signature
from tests.unit.sdk.dispatcher_double import refusal, unreachable
from tests.unit.sdk.fleet_double import SECRET, Fleet, MemorySubscriber, message, serving, until
from tests.unit.sdk.gated_worker import gate, made

OTHER_KEY = signature.parse_secret(signature.new_secret())


async def test_a_message_is_claimed_run_and_settled(fleet: Fleet) -> None:
    """Its run completes, and the transport is told so once."""
    subscriber, run = MemorySubscriber(), fleet.queue()
    async with serving(made(subscriber)):
        subscriber.put(message(run))
        await until(lambda: subscriber.settled)

    assert isinstance(run.ending, messages.Complete)
    assert subscriber.returned == []
    assert (subscriber.opened, subscriber.closed) == (1, 1)


@pytest.mark.parametrize("code", ["already_claimed", "run_finished", "stale_delivery"])
async def test_a_refused_claim_settles_the_message(fleet: Fleet, code: str) -> None:
    """A duplicate is done with."""
    subscriber, run = MemorySubscriber(), fleet.queue()
    run.faults["claim"].append(refusal(409, code))
    async with serving(made(subscriber)):
        subscriber.put(message(run))
        await until(lambda: subscriber.settled)

    assert run.ending is None


@pytest.mark.parametrize(("receives", "delay"), [(1, 5), (2, 10), (50, 900)])
async def test_an_unknown_outcome_sends_the_message_back(fleet: Fleet, receives: int, delay: float) -> None:
    """Without an answer to the claim somebody tries again, later each time."""
    subscriber, run = MemorySubscriber(), fleet.queue()
    run.faults["claim"].extend([unreachable] * 100)
    async with serving(made(subscriber)):
        subscriber.put(message(run, receives=receives))
        await until(lambda: subscriber.returned)

    assert [each[1] for each in subscriber.returned] == [delay]
    assert subscriber.settled == []


@pytest.mark.parametrize("changes", [{"workflow": "other"}, {"version": "7"}])
async def test_an_unknown_workflow_is_refused_before_it_is_claimed(fleet: Fleet, changes: dict[str, Any]) -> None:
    """C45: a deploy race costs a delay of 30 seconds, and nothing of the run."""
    subscriber, run = MemorySubscriber(), fleet.queue()
    async with serving(made(subscriber)):
        subscriber.put(message(run, delivery=changes))
        await until(lambda: subscriber.returned)

    assert subscriber.returned[0][1] == 30
    assert run.requests == []


async def test_a_version_that_is_accepted_is_run(fleet: Fleet) -> None:
    """Runs of older versions go on."""
    subscriber, run = MemorySubscriber(), fleet.queue(version="0")
    async with serving(made(subscriber)):
        subscriber.put(message(run))
        await until(lambda: subscriber.settled)


@pytest.mark.parametrize(("receives", "delay"), [(1, 60), (3, 240), (9, 900)])
async def test_a_bad_signature_sends_the_message_back(
    fleet: Fleet, receives: int, delay: float, caplog: pytest.LogCaptureFixture
) -> None:
    """It is never claimed, comes back later each time until the queue gives it up, and is logged once for all."""
    subscriber, run = MemorySubscriber(), fleet.queue()
    async with serving(made(subscriber)):
        subscriber.put(*(message(run, key=OTHER_KEY, receives=receives) for _ in range(5)))
        await until(lambda: len(subscriber.returned) == 5)

    assert {each[1] for each in subscriber.returned} == {delay}
    assert run.requests == []
    assert caplog.text.count("no_matching_signature") == 1
    assert caplog.text.count("POINTSMAN_SIGNING_SECRET") == 1


async def test_messages_turned_away_are_counted(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a minute the log says how many there were."""
    monkeypatch.setattr(shift, "_MINUTE", 0.2)
    subscriber, run = MemorySubscriber(), fleet.queue()
    async with serving(made(subscriber)):
        subscriber.put(*(message(run, key=OTHER_KEY) for _ in range(5)))
        await until(lambda: "messages not taken here" in caplog.text)

    counted = [each for each in caplog.records if str(each.msg).startswith("messages not taken")]
    assert [getattr(each, "count", None) for each in counted] == [5]


@pytest.mark.parametrize(
    ("age", "sent", "taken"), [(1_200, -1_199, True), (1_200, None, True), (1_200, 0, False), (299, 0, True)]
)
async def test_the_age_of_a_signature_is_judged_when_the_transport_took_it_in(
    fleet: Fleet, age: int, sent: int | None, taken: bool
) -> None:
    """C06: a slow queue makes no message too old; where the transport does not tell, age is not judged."""
    subscriber, run = MemorySubscriber(), fleet.queue()
    async with serving(made(subscriber)):
        subscriber.put(message(run, age=age, sent_at=None if sent is None else time.time() + sent))
        await until(lambda: subscriber.settled or subscriber.returned)

    assert bool(subscriber.settled) is taken


@pytest.mark.parametrize(("name", "taken"), [("orders", True), ("a orders", True), ("other", False), (None, True)])
async def test_only_messages_for_this_audience_are_taken(fleet: Fleet, name: str | None, taken: bool) -> None:
    """A message signed for another publisher's workers is not claimed here."""
    subscriber, run = MemorySubscriber(), fleet.queue()
    async with serving(made(subscriber, name=name)):
        subscriber.put(message(run))
        await until(lambda: subscriber.settled or subscriber.returned)

    assert bool(subscriber.settled) is taken


async def test_a_secret_that_cannot_be_had_sends_messages_back(fleet: Fleet) -> None:
    """A secret store that is away is not the message's fault."""

    def away() -> str:
        raise OSError("away")

    subscriber, run = MemorySubscriber(), fleet.queue()
    async with serving(made(subscriber, secret=away)):
        subscriber.put(message(run))
        await until(lambda: subscriber.returned)

    assert subscriber.returned[0][1] == 5


@pytest.mark.parametrize("body", [b"{}", b"\xff", b'{"type":"endpoint.discover","audience":"a","url":"http://a"}'])
async def test_a_signed_body_that_is_no_delivery_goes_back(fleet: Fleet, body: bytes) -> None:
    """Whatever it contains, the worker goes on."""
    subscriber, run = MemorySubscriber(), fleet.queue()
    bad = message(run)
    bad.body = body
    bad.headers = signature.sign([signature.parse_secret(SECRET)], "run_1_1", int(time.time()), body)
    async with serving(made(subscriber)):
        subscriber.put(bad, message(run))
        await until(lambda: subscriber.settled and subscriber.returned)

    assert subscriber.returned == [(bad, 60)]


async def test_c04_a_message_signed_before_a_rotation_is_taken(fleet: Fleet) -> None:
    """What is still in the queue under the old key verifies as long as the worker has that key too."""
    subscriber, run = MemorySubscriber(), fleet.queue()
    old = signature.new_secret()
    async with serving(made(subscriber, secret=[SECRET, old])):
        subscriber.put(message(run, key=signature.parse_secret(old)), message(fleet.queue()))
        await until(lambda: len(subscriber.settled) == 2)

    assert isinstance(run.ending, messages.Complete)


async def test_a_secret_function_that_exits_sends_messages_back(fleet: Fleet) -> None:
    """User code never ends the worker."""

    def leaves() -> str:
        raise SystemExit(3)

    subscriber = MemorySubscriber()
    async with serving(made(subscriber, secret=leaves)) as served:
        subscriber.put(message(fleet.queue()))
        await until(lambda: subscriber.returned)
        assert not served.done()


async def test_a_copy_of_a_run_held_here_is_settled_and_the_run_goes_on(fleet: Fleet) -> None:
    """I1: the copy's claim is refused and its message deleted; the first one is still held, and settled once."""
    subscriber, run = MemorySubscriber(), fleet.queue("gated")
    worker = made(subscriber)
    async with serving(worker):
        first, copy = message(run), message(run)
        subscriber.put(first)
        await until(lambda: gate.inside == 1)
        subscriber.put(copy)
        await until(lambda: subscriber.settled)
        settled, held = list(subscriber.settled), worker.holding
        gate.open.set()
        await until(lambda: len(subscriber.settled) == 2)

    assert settled == [copy]
    assert [(each.run_id, each.transport) for each in held] == [(run.run_id, 0.5)]
    assert isinstance(run.ending, messages.Complete)
    assert subscriber.settled[1] is first
