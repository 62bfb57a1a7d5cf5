"""The relay: leases, push numbers, what becomes of outcomes, and how a delivery that never works ends."""

import asyncio
import logging

import pytest
from msgspec import Raw

from dispatcher import outcomes
from dispatcher.settings import Publishing, Route
from dispatcher.store import Session, backlog
from endpoint_sdk.wire.messages import Complete, Delivery, Release
from publishers.base import Outcome
from tests.integration.relays import PUBLISHED, SERVER_ERROR, Relays, publish, settle
from tests.integration.world import World, details, refused


@pytest.fixture
def relays(world: World) -> Relays:
    """No endpoint yet."""
    return Relays(world)


async def test_a_due_run_is_leased_and_pushed(world: World, relays: Relays) -> None:
    """A lease takes the next push number and a claim deadline; the delivery names run, revision, push and audience."""
    endpoint = relays.endpoint("orders")
    run_id = await world.submit()
    relay = relays.relay()
    assert await relay.once() == {"leased": 1, "more": 0}
    await settle(relay)
    entry = world.entry(run_id)
    [delivery] = endpoint.deliveries
    assert (entry.status, entry.push_number, entry.publisher, entry.revision) == ("published", 1, "ep_orders", 0)
    assert entry.next_publish_at == pytest.approx(world.now() + 30_000, abs=2_000)
    assert (delivery.run_id, delivery.revision, delivery.push_number, delivery.attempt) == (run_id, 0, 1, 1)
    assert (delivery.namespace, delivery.workflow, delivery.version) == ("default", "order", "1")
    assert (delivery.audience, delivery.url) == ("orders", "http://dispatcher")
    assert world.keys.check_claim_token(delivery.token, run_id, 0)
    assert await relay.once() == {"leased": 0, "more": 0}


async def test_nothing_is_leased_without_an_endpoint(world: World, relays: Relays) -> None:
    """A run no endpoint serves stays pending, in nobody's way."""
    run_id = await world.submit()
    assert await relays.relay().once() == {"leased": 0, "more": 0}
    relays.endpoint("others", serves="other")
    assert await relays.relay().once() == {"leased": 0, "more": 0}
    assert world.entry(run_id).push_number == 0


async def test_what_is_not_due_waits(world: World, relays: Relays) -> None:
    """A backed-off entry is leased when its time has come, by the database's clock."""
    relays.endpoint("orders")
    run_id = await world.submit()
    world.set_entry(run_id, next_publish_at=world.now() + 10_000)
    relay = relays.relay()
    assert await publish(relay) == 0
    world.elapse(11_000)
    assert await publish(relay) == 1


async def test_the_oldest_and_the_urgent_go_first(world: World, relays: Relays) -> None:
    """Entries are leased by rank: a priority step is worth ten seconds."""
    endpoint = relays.endpoint("orders", max_in_flight=1)
    low = await world.submit(priority=0)
    high = await world.submit(priority=9)
    relay = relays.relay()
    await publish(relay)
    assert [delivery.run_id for delivery in endpoint.deliveries] == [high]
    await world.cancel(high)
    await publish(relay)
    assert endpoint.deliveries[-1].run_id == low


async def test_an_unclaimed_push_is_redelivered_under_a_new_number(world: World, relays: Relays) -> None:
    """A push answered settled but unclaimed at its deadline is counted, backs off, and is pushed again as number 2."""
    endpoint = relays.endpoint("orders", PUBLISHED)
    run_id = await world.submit()
    relay = relays.relay()
    await publish(relay)
    world.elapse(31_000)
    assert (await world.recovers())["redelivered"] == 1
    assert world.entry(run_id).endings == 1
    world.elapse(5_000)
    await publish(relay)
    assert [delivery.push_number for delivery in endpoint.deliveries] == [1, 2]
    assert {delivery.revision for delivery in endpoint.deliveries} == {0}
    await world.claim(run_id, 0, push_number=1)


@pytest.mark.parametrize(
    ("outcome", "endings", "earliest_ms", "latest_ms"),
    [
        (Outcome("deferred", "busy", delay_ms=7_000), 0, 7_000, 7_000),
        (Outcome("deferred", "retry", delay_ms=5_000), 0, 5_000, 5_000),
        (Outcome("declined", "unknown-workflow"), 0, 30_000, 30_000),
        (Outcome("declined", "unknown-workflow", delay_ms=1_000), 0, 1_000, 1_000),
        (Outcome("failed", "server-error", counted=True), 1, 500, 5_000),
        (Outcome("failed", "connect"), 0, 500, 5_000),
        (Outcome("failed", "no-header", counted=True, delay_ms=300_000), 1, 300_000, 300_000),
        (Outcome("failed", "auth", delay_ms=300_000), 0, 300_000, 300_000),
        (Outcome("failed", "instant", delay_ms=0), 0, 0, 0),
    ],
    ids=lambda value: f"{value.kind}-{value.row}" if isinstance(value, Outcome) else None,
)
async def test_outcomes_set_clocks_and_counts(
    world: World, relays: Relays, outcome: Outcome, endings: int, earliest_ms: int, latest_ms: int
) -> None:
    """I10: each outcome makes the entry pending at its own time, counted or not; the run does not move."""
    relays.endpoint("orders", outcome)
    run_id = await world.submit()
    before = world.now()
    await publish_once(relays)
    entry = world.entry(run_id)
    assert (entry.status, entry.endings, entry.failures, entry.publisher) == ("pending", endings, 1, None)
    assert before + earliest_ms <= entry.next_publish_at <= world.now() + latest_ms
    assert world.status(run_id) == ("queued", 0)


async def publish_once(relays: Relays) -> None:
    """One tick of a relay, its pushes answered."""
    relay = relays.relay()
    await relay.once()
    await settle(relay)


async def test_a_publisher_that_raises_has_failed(
    world: World, relays: Relays, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of a publisher is a failed push: backed off, not counted, logged."""
    relays.endpoint("orders", RuntimeError("boom"))
    run_id = await world.submit()
    await publish_once(relays)
    entry = world.entry(run_id)
    assert (entry.status, entry.endings, entry.failures) == ("pending", 0, 1)
    assert "publisher raised" in caplog.text


async def test_failures_in_a_row_back_off(world: World, relays: Relays) -> None:
    """The relay's own backoff doubles its ceiling with each failure in a row, and starts again after a claim."""
    relays.endpoint("orders", Outcome("failed", "connect"))
    run_id = await world.submit()
    for failures in range(1, 9):
        await publish_once(relays)
        entry, ceiling = world.entry(run_id), min(300_000, 5_000 * 2 ** (failures - 1))
        assert entry.failures == failures
        assert ceiling * 0.1 - 1_000 <= entry.next_publish_at - world.now() <= ceiling
        world.elapse(300_000)
    await world.write(await world.claim(run_id), ending=Release("handoff"))
    assert world.entry(run_id).failures == 0


async def test_an_answer_while_the_claim_is_held_is_no_failure(world: World, relays: Relays) -> None:
    """C11: the HTTP client gives up on a handler that runs for ten minutes: no redelivery while refreshes arrive."""
    hold = asyncio.Event()

    async def gives_up(_delivery: Delivery) -> Outcome:
        await hold.wait()
        return SERVER_ERROR

    endpoint = relays.endpoint("orders", gives_up)
    run_id = await world.submit()
    relay = relays.relay()
    await relay.once()
    await endpoint.arrived.wait()
    assert relay.in_flight == 1
    claim = await world.claim(run_id, 0, push_number=1)
    hold.set()
    await settle(relay)
    for _ in range(10):
        world.elapse(60_000)
        assert await world.is_held(claim)
        assert (await world.recovers()) == {"released": 0, "stalled": 0, "redelivered": 0, "more": 0}
        assert await publish(relay) == 0
    await world.write(claim, ending=Complete(Raw(b"1")))
    assert len(endpoint.deliveries) == 1


async def test_a_late_outcome_of_an_older_push_changes_nothing(world: World, relays: Relays) -> None:
    """Outcomes are compare-and-set on (revision, push number, not claimed): the older push's answer is void."""
    hold = asyncio.Event()

    async def late(delivery: Delivery) -> Outcome:
        if delivery.push_number == 1:
            await hold.wait()
            return SERVER_ERROR
        return PUBLISHED

    relays.endpoint("orders", late)
    run_id = await world.submit()
    first, second = relays.relay(), relays.relay()
    await first.once()
    world.elapse(31_000)
    assert (await world.recovers())["redelivered"] == 1
    world.elapse(5_000)
    assert await publish(second) == 1
    before = world.entry(run_id)
    hold.set()
    await settle(first)
    assert world.entry(run_id) == before
    assert (before.status, before.push_number, before.endings) == ("published", 2, 1)


async def test_counted_deliveries_stall_the_run(world: World, relays: Relays) -> None:
    """I10: the tenth counted delivery without progress stalls the run, with the last outcome as a fact."""
    endpoint = relays.endpoint("orders", SERVER_ERROR)
    run_id = await world.submit()
    for _ in range(12):
        await publish_once(relays)
        world.elapse(300_000)
    assert len(endpoint.deliveries) == 10
    assert world.status(run_id) == ("stalled", 1)
    row = world.run(run_id)
    assert (row.reason, row.deliveries) == ("undeliverable", 10)
    facts = details(world.history(run_id)[-1])
    assert (facts["endings"], facts["lastOutcome"]) == (10, "server-error")


async def test_uncounted_outcomes_never_stall(world: World, relays: Relays) -> None:
    """I10: thirty refused connections and declined deliveries stall nothing by count."""
    endpoint = relays.endpoint("orders", Outcome("failed", "connect"))
    run_id = await world.submit()
    for number in range(30):
        endpoint.answer = Outcome("declined", "unknown-workflow") if number % 2 else Outcome("failed", "connect")
        await publish_once(relays)
        world.elapse(300_000)
    assert world.status(run_id) == ("queued", 0)
    assert world.entry(run_id).endings == 0


async def test_poison_runs_are_counted_and_healthy_ones_unaffected(world: World, relays: Relays) -> None:
    """C23: 500 runs whose delivery always dies are each counted and stall after ten; healthy runs go on meanwhile."""
    world.configure(publishing=Publishing(base_backoff_ms=100, max_backoff_ms=400))

    async def works(delivery: Delivery) -> Outcome:
        claim = await world.claim(delivery.run_id, delivery.revision, push_number=delivery.push_number)
        await world.write(claim, ending=Complete(Raw(b"1")))
        return PUBLISHED

    dies = relays.endpoint("poison", SERVER_ERROR, serves="poison", max_in_flight=500)
    relays.endpoint("healthy", works, serves="order")
    poison = [await world.submit("poison") for _ in range(500)]
    relay = relays.relay()
    rounds = 0
    while world.store.transact_blocking(backlog.queues):
        healthy = [await world.submit() for _ in range(5)]
        await publish(relay)
        assert {world.status(run_id) for run_id in healthy} == {("completed", 2)}
        world.elapse(1_000)
        rounds += 1
        assert rounds <= 10
    assert len(dies.deliveries) == 5_000
    rows = [world.run(run_id) for run_id in poison]
    assert {(row.status, row.reason, row.deliveries) for row in rows} == {("stalled", "undeliverable", 10)}


async def test_max_in_flight_holds_over_two_relays(world: World, relays: Relays) -> None:
    """Two replicas at once never have more runs at an endpoint than it may hold, pushed or claimed."""
    endpoint = relays.endpoint("orders", max_in_flight=7)
    ids = [await world.submit() for _ in range(20)]
    first, second = relays.relay(), relays.relay()
    counts = await asyncio.gather(first.once(), second.once())
    await settle(first)
    await settle(second)
    assert sum(count["leased"] for count in counts) == 7
    pushed = [delivery.run_id for delivery in endpoint.deliveries]
    held = [await world.claim(run_id, 0) for run_id in pushed[:3]]
    assert await publish(first) == 0, "a claimed run is in flight until it ends"
    await world.write(held[0], ending=Complete(Raw(b"1")))
    await world.write(held[1], ending=Release("unknown_version"))
    assert await publish(second) == 2
    assert len(ids) == 20


async def test_each_redelivery_moves_to_the_next_publisher(world: World, relays: Relays) -> None:
    """A route's publishers take turns: each delivery that ended unclaimed goes to the next one."""
    outcome = Outcome("failed", "connect", delay_ms=0)
    first, second = relays.endpoint("first", outcome), relays.endpoint("second", outcome)
    await world.submit()
    route = Route(workflows=("ord*",), publish=("second", "first"))
    for _ in range(4):
        relay = relays.relay(route)
        await relay.once()
        await settle(relay)
    assert {(delivery.push_number or 0) % 2 for delivery in second.deliveries} == {1}
    assert {(delivery.push_number or 0) % 2 for delivery in first.deliveries} == {0}
    assert {delivery.audience for delivery in first.deliveries} == {"first"}


async def test_queues_share_an_endpoint(world: World, relays: Relays) -> None:
    """A long queue does not keep a short one from the endpoint both use; what the short leaves, the long gets."""
    endpoint = relays.endpoint("orders", max_in_flight=10)
    for _ in range(30):
        await world.submit(pool="long")
    for _ in range(2):
        await world.submit(pool="short")
    await publish_once(relays)
    assert len(endpoint.deliveries) == 10
    runs = {delivery.run_id: world.run(delivery.run_id).pool for delivery in endpoint.deliveries}
    assert sorted(runs.values()) == ["long"] * 8 + ["short"] * 2


async def test_other_namespaces_endpoints_get_nothing(world: World, relays: Relays) -> None:
    """An endpoint registered in one namespace is never sent another's runs, route or not."""
    foreign = relays.endpoint("foreign", namespace="elsewhere")
    await world.submit()
    for routes in ((), (Route(publish=("foreign",)),)):
        relay = relays.relay(*routes)
        assert await publish(relay) == 0
    assert foreign.deliveries == []


async def test_a_full_batch_asks_for_more(world: World, relays: Relays) -> None:
    """A hundred at a time: a full batch asks for another tick at once."""
    relays.endpoint("orders", max_in_flight=500)
    for _ in range(130):
        await world.submit()
    relay = relays.relay()
    assert await relay.once() == {"leased": 100, "more": 1}
    assert await relay.once() == {"leased": 30, "more": 0}
    await settle(relay)


async def test_an_endpoint_that_went_away_has_no_room(world: World, relays: Relays) -> None:
    """A target whose row is gone leases nothing."""
    relays.endpoint("orders")
    run_id = await world.submit()

    def gone(session: Session) -> int:
        return backlog.room(session, "ep_gone")

    assert world.store.transact_blocking(gone) == 0
    assert world.entry(run_id).status == "pending"


async def test_stop_leaves_executors_running(world: World, relays: Relays) -> None:
    """Stopping ends the pushes and tells of the room; entries stay published or claimed, and the claim decides."""
    forever = asyncio.Event()

    async def never(_delivery: Delivery) -> Outcome:
        await forever.wait()
        return PUBLISHED

    relays.endpoint("orders", never)
    pushed, claimed = await world.submit(), await world.submit()
    relay = relays.relay()
    told: list[int] = []
    relay.on_room = lambda: told.append(relay.in_flight)
    await relay.once()
    claim = await world.claim(claimed, 0)
    assert relay.in_flight == 2
    await relay.stop()
    await asyncio.sleep(0)
    assert relay.in_flight == 0
    assert told == [1, 0]
    assert world.entry(pushed).status == "published"
    assert await world.is_held(claim)


async def test_an_outcome_that_cannot_be_written_waits_for_the_deadline(
    world: World, relays: Relays, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A relay that cannot write an outcome logs it; the push is overdue at its deadline, as if unanswered."""
    relays.endpoint("orders", SERVER_ERROR)
    run_id = await world.submit()
    relay = relays.relay()

    def broken(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(outcomes, "write", broken)
    with caplog.at_level(logging.ERROR):
        await relay.once()
        await settle(relay)
        await asyncio.sleep(0)
    assert "push ended unexpectedly" in caplog.text
    assert world.entry(run_id).status == "published"
    world.elapse(31_000)
    assert (await world.recovers())["redelivered"] == 1


async def test_the_same_push_handled_twice(world: World, relays: Relays) -> None:
    """C13: an executor handed one delivery twice claims once; the second handling is told to stop."""
    endpoint = relays.endpoint("orders")
    await world.submit()
    await publish_once(relays)
    [delivery] = endpoint.deliveries
    owner = await world.claim(delivery.run_id, delivery.revision, push_number=delivery.push_number)
    with refused("already_claimed"):
        await world.claim(delivery.run_id, delivery.revision, push_number=delivery.push_number)
    assert await world.is_held(owner)
    assert world.entry(delivery.run_id).claim_push_number == 1
