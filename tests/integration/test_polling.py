"""Claim many on both databases: what a poll takes, in which order and share, and what it must not take."""

import asyncio
import threading
from typing import Any

import pytest
from msgspec import Raw

from dispatcher.pollers import ABSENT_MS, Pollers
from dispatcher.registry import Registry
from dispatcher.settings import Publishing, Recovery
from dispatcher.store import polling
from dispatcher.store.entries import Entry
from endpoint_sdk.wire.messages import Complete, Release
from tests.integration.pollers import DEADLINE_MS, Poller, claim_of, ids, publish
from tests.integration.world import IDLE_MS, NAMESPACE, World, refused, task


async def _older(world: World, workflow: str = "order") -> str:
    """A run submitted a moment before whatever comes next."""
    run_id = await world.submit(workflow)
    world.advance(10)
    return run_id


# --- order and shares
async def test_priority_and_age_give_the_order(world: World) -> None:
    """The lowest rank comes first: the older run, a priority step being worth ten seconds."""
    low = await world.submit(priority=4)
    old = await world.submit()
    world.advance(5_000)
    young = await world.submit()
    high = await world.submit(priority=6)

    assert ids(await Poller(world)(3)) == [high, old, young]
    assert ids(await Poller(world)(3)) == [low]


async def test_every_queue_gets_an_equal_share(world: World) -> None:
    """A queue with a long backlog leaves the others their share, and gets what they do not need."""
    flood = [await _older(world, "flood") for _ in range(8)]
    pair = [await world.submit("pair") for _ in range(2)]
    single = await world.submit("single")
    found = ids(await Poller(world)(6, "flood", "pair", "single", "idle"))

    assert sorted(found) == sorted([*flood[:3], *pair, single])


async def test_four_concurrent_claimers_get_ten_each(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C36: four claimers of ten share a backlog of forty evenly, whatever the others hold locked."""
    from dispatcher.store import Store

    world = World(Store.open(postgres_url))
    try:
        for _ in range(40):
            await world.submit()
        together = threading.Barrier(4)

        def claimed_by_all(*arguments: Any, **options: Any) -> list[Entry]:
            found = taken(*arguments, **options)
            together.wait(20)  # every claimer's rows stay locked until all have theirs
            return found

        taken = polling.claim
        monkeypatch.setattr(polling, "claim", claimed_by_all)
        poller = Poller(world)
        found = await asyncio.gather(*(poller(10) for _ in range(4)))

        assert [len(grants) for grants in found] == [10, 10, 10, 10]
        assert len({run_id for grants in found for run_id in ids(grants)}) == 40
        world.check()
    finally:
        world.store.close()


# --- what is due
async def test_a_delay_is_waited_for(world: World) -> None:
    """An entry in its backoff is no poller's yet; the tick finds it once it is due."""
    claim = await world.claim(await world.submit())
    await world.write(claim, task(), ending=Release("handoff", delay_ms=60_000))
    poller = Poller(world)
    assert await poller() == []

    waiting = asyncio.create_task(poller(wait_ms=20_000))
    await poller.waits()
    assert (await poller.polling.once())["woken"] == 0
    world.elapse(61_000)
    assert (await poller.polling.once())["woken"] == 1
    assert ids(await waiting) == [claim.run_id]


async def test_what_a_broker_lost(world: World) -> None:
    """I14: an entry published longer ago than the claim deadline is a poller's, a younger one is not."""
    run_id = await world.submit()
    publish(world, run_id, world.now())
    poller = Poller(world)
    world.elapse(DEADLINE_MS - 5_000)
    assert await poller() == []

    waiting = asyncio.create_task(poller(wait_ms=20_000))
    await poller.waits()
    world.elapse(6_000)
    await poller.polling.once()
    (grant,) = await waiting

    assert (grant.run.id, grant.revision) == (run_id, 1)
    assert (world.entry(run_id).publisher, world.entry(run_id).claim_push_number) == (None, None)
    with refused("already_claimed"):
        await world.grant(run_id, 0, "clm_late_copy")


async def test_a_lost_entry_older_than_the_backlog_goes_first(world: World) -> None:
    """Pending or lost, the lowest rank comes first, and a queue has one share for both."""
    lost = await world.submit()
    publish(world, lost, world.now())
    world.elapse(DEADLINE_MS + 1_000)
    young = await world.submit()
    other = await world.submit("refund")

    assert ids(await Poller(world)(2, "order", "refund")) == [lost, other]
    assert ids(await Poller(world)(2, "order", "refund")) == [young]


async def test_released_by_recovery_and_seen_by_a_poller(world: World) -> None:
    """A claim that went silent is a waiting poller's at once, two revisions on, its records in the grant."""
    dead = await world.claim(await world.submit())
    await world.write(dead, task("a"))
    poller = Poller(world)
    waiting = asyncio.create_task(poller(wait_ms=20_000))
    await poller.waits()
    world.elapse(IDLE_MS + 1_000)
    assert (await world.recovers())["released"] == 1
    (grant,) = await waiting

    assert (grant.run.id, grant.revision) == (dead.run_id, dead.revision + 2)
    assert [record.name for record in grant.records] == ["a"]
    with refused("revision_conflict"):
        await world.write(dead, task("b"))
    await world.write(claim_of(grant), task("b"), ending=Complete(Raw(b"1")))


# --- repeats
async def test_a_lost_answer_is_harmless(world: World) -> None:
    """I6: whoever never heard of its claims repeats the request and holds them, alive from then."""
    for _ in range(3):
        await world.submit()
    poller, request = Poller(world), {"request_id": "req_1"}
    first = await poller(2, **request)
    world.elapse(IDLE_MS - 10_000)
    again = await poller(2, **request)
    world.elapse(IDLE_MS - 10_000)

    assert ids(again) == ids(first)
    assert [grant.token for grant in again] == [grant.token for grant in first]
    assert (await world.recovers())["released"] == 0
    assert await world.is_held(claim_of(first[0]))


async def test_a_repeat_of_what_has_ended(world: World) -> None:
    """A claim that ended is not granted again: the run at its next revision is another claim's, the old one fenced."""
    run_id = await world.submit()
    poller = Poller(world)
    (first,) = await poller(request_id="req_1")
    await world.free(run_id)
    (second,) = await poller(request_id="req_1")

    assert (first.revision, second.revision) == (1, 3)
    assert first.token != second.token
    with refused("revision_conflict"):
        await world.write(claim_of(first), task())
    await world.write(claim_of(second), task())


async def test_a_repeat_that_takes_nothing(world: World) -> None:
    """With a limit of 0 a repeat learns what is held under its request id, and never takes anything new."""
    run_id = await world.submit()
    poller = Poller(world)
    assert await poller(0, request_id="req_1") == []
    (first,) = await poller(request_id="req_1")
    await world.submit()
    (again,) = await poller(0, request_id="req_1")

    assert (again.run.id, again.token) == (run_id, first.token)
    await world.free(run_id)
    assert await poller(0, request_id="req_1", wait_ms=20_000) == []


async def test_another_namespace_is_told_of_no_claims(world: World) -> None:
    """A request id that somebody else uses in another namespace gives away none of its claims, and no token."""
    await world.submit()
    poller = Poller(world)
    assert len(await poller(request_id="req_1")) == 1
    assert await poller(request_id="req_1", namespace="default2") == []
    assert await poller(0, request_id="req_1", namespace="def") == []


@pytest.mark.parametrize("other", ["req", "req_", "req_1_", "req_10", "REQ_1", "req%1", "req\u200b_1"])
async def test_another_request_is_no_repeat(world: World, other: str) -> None:
    """A request id that looks like another, or begins like it, holds none of its claims."""
    await world.submit()
    poller = Poller(world)
    assert len(await poller(request_id="req_1")) == 1
    assert await poller(request_id=other) == []
    await world.submit()
    assert len(await poller(request_id=other)) == 1
    assert len(await poller(request_id="req_1")) == 1


async def test_settings_that_change_hold_for_later_grants(world: World) -> None:
    """After a reload a grant carries the new idle timeout, and the new claim deadline says what a broker lost."""
    run_id = await world.submit()
    publish(world, run_id, world.now())
    world.elapse(2_000)
    poller = Poller(world)
    assert await poller() == []
    world.configure(
        Recovery(claim_idle_timeout_ms=7_000, claim_refresh_interval_ms=2_000), Publishing(claim_deadline_ms=1_000)
    )
    poller.polling.reload(world.settings)
    (grant,) = await poller()

    assert (grant.run.id, grant.idle_timeout_ms) == (run_id, 7_000)


# --- discovery
async def test_polls_count_as_discovery(world: World) -> None:
    """The version first asked for last is the default, and one that comes back after an absence is new again."""
    registry = Registry(world.store, world.keys)

    async def saw(version: str) -> None:
        await Pollers(world.store).saw(NAMESPACE, [("order", version)])  # a dispatcher that has not said so lately
        registry.pollers = Pollers(world.store)

    assert await registry.default_version(NAMESPACE, "order") is None
    for version in ("2", "1"):
        await saw(version)
        world.advance(1_000)
    assert await registry.default_version(NAMESPACE, "order") == "1"
    await saw("2")
    assert await registry.default_version(NAMESPACE, "order") == "1"
    world.advance(ABSENT_MS + 1_000)
    await saw("2")
    assert await registry.default_version(NAMESPACE, "order") == "2"
    assert await registry.default_version("other", "order") is None


async def test_versions_are_said_once_a_minute(world: World) -> None:
    """What was said a moment ago costs no statement; a version beside it costs one for both."""
    pollers = Pollers(world.store)
    await pollers.saw(NAMESPACE, [("order", "1"), ("refund", "1")])
    before = world.store.statements
    await pollers.saw(NAMESPACE, [("order", "1"), ("refund", "1")])
    assert world.store.statements == before
    await pollers.saw(NAMESPACE, [("order", "1"), ("order", "2"), ("order", "3")])
    assert world.store.statements == before + 2  # the clock, and the rows

    found = await pollers.versions(NAMESPACE, "order")
    assert [item.version for item in found] == ["1", "2", "3"]
