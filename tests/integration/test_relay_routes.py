"""Routes of several publishers, and brokers that are away for hours."""

import asyncio

import msgspec
import pytest

from dispatcher import handover
from endpoint_sdk.wire.messages import Delivery
from publishers.base import Outcome
from tests.integration.relays import (
    ACCEPTED,
    REFUSED,
    SERVER_ERROR,
    UNKNOWN,
    Relays,
    over,
    passes,
    publish,
    settle,
    until_batches,
)
from tests.integration.world import World

MINUTE_MS = 60_000


@pytest.fixture
def relays(world: World) -> Relays:
    """No publisher yet."""
    return Relays(world)


async def test_the_next_publisher_gets_it_at_once(world: World, relays: Relays) -> None:
    """What one publisher of a route does not take goes to the next without delay; the last one's clock ends a round."""
    first, second = relays.broker("first", REFUSED, type_="sqs"), relays.broker("second", REFUSED)
    endpoint = relays.endpoint("orders", Outcome("deferred", "busy", delay_ms=60_000))
    run_id = await world.submit()
    relay = relays.relay(over("first", "second", "orders"))
    for _ in range(3):
        await relay.once()
        await settle(relay)
    entry = world.entry(run_id)
    assert (entry.failures, entry.publisher_index, entry.endings) == (3, 3, 0)
    assert entry.next_publish_at - world.now() == pytest.approx(60_000, abs=10_000)
    assert [len(each.deliveries) for each in (first, second, endpoint)] == [1, 1, 1]
    world.elapse(61_000)
    second.answer = ACCEPTED
    for _ in range(2):
        await relay.once()
        await settle(relay)
    entry = world.entry(run_id)
    assert (entry.status, entry.route, entry.publisher, entry.failures) == ("published", "memory", "ep_second", 0)


async def test_one_round_of_failures_is_one_backoff(world: World, relays: Relays) -> None:
    """Two publishers that refuse double the backoff once a round, not once a publisher."""
    relays.broker("first", REFUSED)
    relays.broker("second", REFUSED)
    run_id = await world.submit()
    relay = relays.relay(over("first", "second"))
    for rounds in range(1, 5):
        for _ in range(2):
            await relay.once()
            await settle(relay)
        entry = world.entry(run_id)
        assert entry.failures == 2 * rounds
        assert 0 < entry.next_publish_at - world.now() <= 5_000 * 2 ** (rounds - 1)
        world.elapse(300_000)


async def test_a_lost_copy_moves_on_to_the_next_route(world: World, relays: Relays) -> None:
    """A copy nobody claimed is followed by one on the route's next publisher, a push included; both say so."""
    queue, endpoint = relays.broker("queue", type_="sqs"), relays.endpoint("orders", SERVER_ERROR)
    run_id = await world.submit()
    relay = relays.relay(over("queue", "orders"))
    await publish(relay)
    assert world.entry(run_id).route == "sqs"
    world.elapse(6 * MINUTE_MS)
    await world.recovers()
    await relay.once()
    assert (world.entry(run_id).route, world.entry(run_id).publisher) == ("push", "ep_orders")
    await settle(relay)
    entry = world.entry(run_id)
    assert (entry.status, entry.endings, entry.copies, entry.failures) == ("pending", 1, 1, 1)
    await publish(relay)
    assert world.entry(run_id).route == "sqs", "a failed push goes to the queue at once"
    assert (len(queue.deliveries), len(endpoint.deliveries)) == (2, 1)
    assert [delivery.push_number for delivery in endpoint.deliveries] == [2]


async def test_a_full_brokers_share_goes_to_the_next(world: World, relays: Relays) -> None:
    """While every call to a route's first broker hangs, its second publisher takes what comes."""
    forever = asyncio.Event()

    async def never(_delivery: Delivery) -> Outcome:
        await forever.wait()
        return ACCEPTED

    hanging, well = relays.broker("hanging", never), relays.broker("well")
    relay = relays.relay(over("hanging", "well"))
    for _ in range(handover.CALLS):
        await world.submit()
        await relay.once()
    await until_batches(hanging, handover.CALLS)
    last = await world.submit()
    assert (await relay.once())["leased"] == 1
    await until_batches(well, 1)
    assert [delivery.run_id for delivery in well.deliveries] == [last]
    forever.set()
    await settle(relay)


async def test_a_publisher_that_went_away_counts_nothing(world: World, relays: Relays) -> None:
    """I10: an entry published to somebody who left the configuration is pending at once, uncounted, also a push."""
    run_id = await world.submit()
    world.publish(run_id)
    world.set_entry(run_id, publisher="ep_left")
    world.elapse(31_000)
    assert (await world.recovers())["redelivered"] == 1
    entry = world.entry(run_id)
    assert (entry.status, entry.endings, entry.failures) == ("pending", 0, 0)
    assert entry.next_publish_at <= world.now()


async def test_a_broker_that_becomes_an_endpoint_has_room(world: World, relays: Relays) -> None:
    """What a queue holds takes no place at the endpoint that has its name since the configuration was reloaded."""
    queue = relays.broker("orders", type_="sqs")
    old = [await world.submit() for _ in range(60)]
    await publish(relays.relay(over("orders")))
    assert len(queue.deliveries) == 60
    relays.targets[0] = msgspec.structs.replace(relays.targets[0], type="push", max_in_flight=50)
    run_id = await world.submit()
    assert await publish(relays.relay(over("orders"))) == 1
    assert (world.entry(run_id).route, world.entry(old[0]).route) == ("push", "sqs")


@pytest.mark.parametrize("answer", [REFUSED, UNKNOWN, ACCEPTED], ids=["refused", "replies-lost", "copies-lost"])
async def test_two_hours_without_a_broker(world: World, relays: Relays, answer: Outcome) -> None:
    """A broker down for two hours stalls nothing and leaves at most six copies of any message; then all are handed."""
    broker = relays.broker("queue", answer, type_="sqs")
    ids = [await world.submit() for _ in range(20)]
    relay = relays.relay(over("queue"))
    await publish(relay)
    for _ in range(240):
        await passes(world, relay, 30_000, step_ms=30_000)
        assert (await world.stalling.once())["stalled"] == 0
    assert {world.status(run_id) for run_id in ids} == {("queued", 0)}
    assert {world.entry(run_id).endings for run_id in ids} == {0}
    if answer == REFUSED:
        assert broker.copies.total() == 0
    else:
        assert 4 <= min(broker.copies.values()) <= max(broker.copies.values()) <= 6
    broker.answer = ACCEPTED
    handed = broker.copies.copy()
    await passes(world, relay, 70 * MINUTE_MS, step_ms=2 * MINUTE_MS)
    assert all(broker.copies[run_id] > handed[run_id] for run_id in ids)
