"""The relay over brokers: batches, copies and their slow clocks, calls that take long or never end."""

import asyncio
import logging

import pytest

from dispatcher import handover, leasing
from dispatcher.settings import Route
from endpoint_sdk.wire.messages import Delivery, Release
from publishers.base import Outcome
from tests.integration.relays import (
    ACCEPTED,
    REFUSED,
    UNKNOWN,
    Broker,
    Relays,
    over,
    passes,
    publish,
    settle,
    until_batches,
)
from tests.integration.world import HOUR_MS, World

MINUTE_MS = 60_000


@pytest.fixture
def relays(world: World) -> Relays:
    """No publisher yet."""
    return Relays(world)


async def test_a_batch_is_handed_over_in_one_call(world: World, relays: Relays) -> None:
    """Due runs go to the broker in one call, without a push number; each is published by its route, one copy out."""
    broker = relays.broker("fast", type_="redis")
    ids = [await world.submit(pool="gpu") for _ in range(3)]
    relay = relays.relay(over("fast"))
    assert await relay.once() == {"leased": 3, "more": 0}
    await settle(relay)
    [batch] = broker.batches
    assert sorted(delivery.run_id for delivery in batch) == sorted(ids)
    assert broker.pools == {"gpu"}
    assert {(delivery.audience, delivery.push_number, delivery.revision) for delivery in batch} == {("fast", None, 0)}
    for run_id in ids:
        entry = world.entry(run_id)
        assert (entry.status, entry.route, entry.publisher, entry.copies) == ("published", "redis", "ep_fast", 1)
        assert entry.published_at == pytest.approx(world.now(), abs=10_000)
    assert await relay.once() == {"leased": 0, "more": 0}


async def test_a_broker_needs_a_route(world: World, relays: Relays) -> None:
    """A queue that no route sends to a broker is left to pollers: a broker is not discovered."""
    broker = relays.broker("fast")
    run_id = await world.submit()
    assert await publish(relays.relay()) == 0
    assert await publish(relays.relay(Route(workflows=("other",), publish=("fast",)))) == 0
    assert broker.batches == []
    assert world.entry(run_id).status == "pending"


async def test_the_lease_is_short_until_the_outcome_is_known(
    world: World, relays: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that dies while it hands over loses five seconds: then the entry is pending again, nothing counted."""
    monkeypatch.setattr(handover, "_RENEW_SECONDS", 20.0)
    forever = asyncio.Event()

    async def never(_delivery: Delivery) -> Outcome:
        await forever.wait()
        return ACCEPTED

    broker = relays.broker("fast", never)
    run_id = await world.submit()
    dying = relays.relay(over("fast"))
    await dying.once()
    await until_batches(broker, 1)
    lease = world.entry(run_id)
    assert lease.next_publish_at - (lease.published_at or 0) == 5_000
    for call in dying._handovers.calls:
        call.cancel()
    await settle(dying)
    world.elapse(6_000)
    assert (await world.recovers())["redelivered"] == 1
    entry = world.entry(run_id)
    assert (entry.status, entry.copies, entry.endings, entry.failures) == ("pending", 0, 0, 0)
    assert entry.next_publish_at <= world.now()


@pytest.mark.parametrize(
    ("route", "republish_ms", "first_ms"),
    [("sqs", None, 300_000), ("redis", None, 60_000), ("memory", None, 60_000), ("redis", 7_000, 7_000)],
)
async def test_copies_have_a_slow_clock(
    world: World, relays: Relays, route: str, republish_ms: int | None, first_ms: int
) -> None:
    """A copy nobody claims is taken for lost after its route's time, the next after twice that, an hour at most."""
    broker = relays.broker("lossy", type_=route, republish_ms=republish_ms)
    run_id = await world.submit()
    relay = relays.relay(over("lossy"))
    for copies in range(1, 12):
        await publish(relay)
        entry, wait_ms = world.entry(run_id), min(HOUR_MS, first_ms * 2 ** (copies - 1))
        assert (entry.status, entry.copies, broker.copies[run_id]) == ("published", copies, copies)
        assert entry.next_publish_at - world.now() == pytest.approx(wait_ms, rel=0.101, abs=10_000)
        world.elapse(entry.next_publish_at - world.now() + 1)
        assert (await world.recovers())["redelivered"] == 1
        entry = world.entry(run_id)
        assert (entry.status, entry.endings, entry.failures, entry.route) == ("pending", 0, 0, None)
    assert world.status(run_id) == ("queued", 0)


async def test_copies_lost_together_do_not_come_back_together(world: World, relays: Relays) -> None:
    """The slow clock is jittered by ten percent either way."""
    relays.broker("fast")
    ids = [await world.submit() for _ in range(60)]
    await publish(relays.relay(over("fast")))
    dues = {world.entry(run_id).next_publish_at for run_id in ids}
    assert len(dues) > 30
    assert 3_000 < max(dues) - min(dues) <= 12_000


async def test_an_unknown_copy_counts_and_is_retried_soon(world: World, relays: Relays) -> None:
    """A first copy of which nothing is known is sent again after five seconds; from the second on the clock is slow."""
    broker = relays.broker("fast", UNKNOWN, type_="sqs")
    run_id = await world.submit()
    relay = relays.relay(over("fast"))
    await publish(relay)
    entry = world.entry(run_id)
    assert (entry.status, entry.copies, entry.endings, entry.failures) == ("published", 1, 0, 0)
    assert entry.next_publish_at - world.now() <= 5_500
    world.elapse(6_000)
    await world.recovers()
    await publish(relay)
    entry = world.entry(run_id)
    assert (entry.copies, broker.copies[run_id]) == (2, 2)
    assert entry.next_publish_at - world.now() == pytest.approx(600_000, rel=0.101, abs=10_000)


@pytest.mark.parametrize(
    ("outcome", "earliest_ms", "latest_ms"),
    [
        (REFUSED, 500, 5_000),
        (Outcome("failed", "throttled", delay_ms=2_000), 2_000, 2_000),
        (Outcome("declined", "too_large"), 30_000, 30_000),
        (Outcome("deferred", "full", delay_ms=7_000), 7_000, 7_000),
        (Outcome("failed", "lying", counted=True), 500, 5_000),
    ],
    ids=lambda value: value.row if isinstance(value, Outcome) else None,
)
async def test_what_a_broker_does_not_take_is_never_counted(
    world: World, relays: Relays, outcome: Outcome, earliest_ms: int, latest_ms: int
) -> None:
    """I10: a delivery not handed over is pending at its own time, no copy and no ending: no executor was reached."""
    relays.broker("fast", outcome)
    run_id = await world.submit()
    before = world.now()
    await publish(relays.relay(over("fast")))
    entry = world.entry(run_id)
    assert (entry.status, entry.copies, entry.endings, entry.failures) == ("pending", 0, 0, 1)
    assert (entry.publisher, entry.route, entry.published_at) == (None, None, None)
    assert before + earliest_ms <= entry.next_publish_at <= world.now() + latest_ms


async def test_a_batch_may_fail_in_parts(world: World, relays: Relays) -> None:
    """Each delivery of a batch has its own outcome; one the publisher says nothing about has failed."""

    class Partial(Broker):
        async def publish(self, due: object) -> list[Outcome]:
            return [ACCEPTED, REFUSED]

    relays.broker("fast")
    relays.endpoints["fast"] = Partial()
    ids = [await world.submit() for _ in range(3)]
    await publish(relays.relay(over("fast")))
    entries = [world.entry(run_id) for run_id in ids]
    assert [entry.status for entry in entries] == ["published", "pending", "pending"]
    assert [(entry.copies, entry.failures) for entry in entries] == [(1, 0), (0, 1), (0, 1)]


async def test_a_publisher_that_raises_has_handed_over_nothing(
    world: World, relays: Relays, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception fails the whole batch, uncounted, and is logged."""
    relays.broker("fast", RuntimeError("boom"))
    ids = [await world.submit() for _ in range(3)]
    await publish(relays.relay(over("fast")))
    assert {(world.entry(run_id).status, world.entry(run_id).failures) for run_id in ids} == {("pending", 1)}
    assert "publisher raised" in caplog.text


async def test_an_outage_is_logged_once(world: World, relays: Relays, caplog: pytest.LogCaptureFixture) -> None:
    """One line when a broker takes nothing any more and one when it does again, however many batches fail between."""
    broker = relays.broker("fast", REFUSED)
    await world.submit()
    relay = relays.relay(over("fast"))
    with caplog.at_level(logging.INFO):
        await passes(world, relay, 30 * MINUTE_MS, step_ms=5 * MINUTE_MS)
        broker.answer = ACCEPTED
        await passes(world, relay, 5 * MINUTE_MS, step_ms=5 * MINUTE_MS)
    messages = [record.message for record in caplog.records if record.name == handover.__name__]
    assert len(broker.batches) >= 6
    assert messages == ["the broker takes no delivery", "the broker takes deliveries again"]


async def test_a_broker_that_refuses_is_left_alone(world: World, relays: Relays) -> None:
    """A broker refuses one batch, then a single delivery at a time; the rest of its backlog is free for others."""
    broker = relays.broker("fast", REFUSED)
    ids = [await world.submit() for _ in range(handover.CALLS + leasing.BATCH)]
    relay = relays.relay(over("fast"))
    assert await publish(relay) == leasing.BATCH
    assert await relay.once() == {"leased": 0, "more": 0}
    left = [world.entry(run_id) for run_id in ids if world.entry(run_id).push_number == 0]
    assert [(entry.status, entry.next_publish_at <= world.now()) for entry in left] == [("pending", True)] * 4
    for tried in (1, 2):
        world.elapse(31_000)
        assert await publish(relay) == 1
        assert [len(batch) for batch in broker.batches] == [leasing.BATCH] + [1] * tried
    broker.answer = ACCEPTED
    world.elapse(31_000)
    for _ in range(3):
        await publish(relay)
    assert sorted(broker.copies) == sorted(ids)


async def test_failures_do_not_lengthen_the_slow_clock(world: World, relays: Relays) -> None:
    """After an outage the first copy has the clock of a first copy, and the next failure the shortest backoff."""
    broker = relays.broker("fast", REFUSED)
    run_id = await world.submit()
    relay = relays.relay(over("fast"))
    await passes(world, relay, 60 * MINUTE_MS, step_ms=5 * MINUTE_MS)
    assert world.entry(run_id).failures >= 10
    broker.answer = ACCEPTED
    await passes(world, relay, 5 * MINUTE_MS, step_ms=5 * MINUTE_MS)
    entry = world.entry(run_id)
    assert (entry.status, entry.copies, entry.failures) == ("published", 1, 0)
    assert entry.next_publish_at - world.now() <= 66_000


async def test_a_claim_and_a_release_start_the_copies_again(world: World, relays: Relays) -> None:
    """Copies are counted since the run was queued at its present revision, and a claim voids a late outcome."""
    hold = asyncio.Event()

    async def slowly(_delivery: Delivery) -> Outcome:
        await hold.wait()
        return ACCEPTED

    broker = relays.broker("fast", slowly)
    run_id = await world.submit()
    relay = relays.relay(over("fast"))
    await relay.once()
    await until_batches(broker, 1)
    claim = await world.claim(run_id, 0)
    hold.set()
    await settle(relay)
    entry = world.entry(run_id)
    assert (entry.status, entry.copies) == ("claimed", 0)
    world.set_entry(run_id, copies=3)
    await world.write(claim, ending=Release("handoff"))
    entry = world.entry(run_id)
    assert (entry.status, entry.copies, entry.route, entry.published_at) == ("pending", 0, None, None)
    await publish(relay)
    world.set_entry(run_id, copies=3)
    await world.claim(run_id)
    assert world.entry(run_id).copies == 0
    assert [delivery.revision for delivery in broker.deliveries] == [0, 2]
