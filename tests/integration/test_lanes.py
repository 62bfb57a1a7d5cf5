"""Lanes: a run whose workflow bounds how many run at once is held back until there is a place for it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from dispatcher import control, submission
from dispatcher import lanes as opening
from dispatcher.lanes import OpenPlaces
from dispatcher.queues import Queue
from dispatcher.store import Session, backlog, declarations, entries, lanes, polling, runs
from dispatcher.submission import PRIORITY_STEP_MS
from endpoint_sdk.wire import clock, identity
from endpoint_sdk.wire.messages import Complete, Concurrency, ServedWorkflow, Stall
from endpoint_sdk.wire.operating import Nothing, SubmitRun
from tests.integration.families import many, started
from tests.integration.sessions import Pair
from tests.integration.world import DAY_MS, NAMESPACE, World, refused

QUEUE = Queue(NAMESPACE, "order", "1", "default").key()
LANE = f"{NAMESPACE}:order:customer%3Dacme"
DONE = Complete(Raw(b"1"))


def declare(world: World, limit: int | None, key: str | None = "customer", **fields: Any) -> ServedWorkflow:
    """The workflow `order` is declared to run so many at once of those alike in tag *key*, or any number."""
    concurrency = None if limit is None else Concurrency(limit, key)
    served = ServedWorkflow("order", "1", concurrency=concurrency, **fields)
    text = msgspec.json.encode(served).decode()
    world.store.transact_blocking(lambda session: declarations.put(session, NAMESPACE, [("order", "1", text)]))
    return served


async def order(world: World, served: ServedWorkflow, customer: str = "acme", **fields: Any) -> str:
    """The id of an order of *customer* just submitted."""
    request = SubmitRun("order", **{"version": "1", "tags": {"customer": customer}, **fields})
    return (await submission.submit(world.store, NAMESPACE, request, "tester", None, served)).run.id


async def orders(world: World, served: ServedWorkflow, count: int, customer: str = "acme") -> list[str]:
    """As many orders of *customer*, the first submitted first."""
    return [await order(world, served, customer) for _ in range(count)]


def pump(world: World) -> OpenPlaces:
    """What opens places, looking at every lane in each tick as a replica does that has heard of nothing."""
    return OpenPlaces(world.store, look_seconds=0)


async def opened(world: World) -> int:
    """How many places a tick opened."""
    return (await pump(world).once())["opened"]


def has_place(world: World, run_id: str) -> bool:
    return not world.entry(run_id).held


async def test_a_run_waits_for_a_place(world: World) -> None:
    """Born held back, the first runs of a lane get its places, in the order in which they are due; the rest wait."""
    served = declare(world, 2)
    ids = await orders(world, served, 5)
    other = await order(world, served, "other")
    assert (world.run(ids[0]).lane, world.run(ids[0]).lane_limit) == (LANE, 2)
    assert [has_place(world, run_id) for run_id in (*ids, other)] == [False] * 6
    assert await opened(world) == 3
    assert [has_place(world, run_id) for run_id in (*ids, other)] == [True, True, False, False, False, True]
    assert await opened(world) == 0


async def test_nobody_delivers_a_held_run(world: World) -> None:
    """Held back, it is in no queue, no lease, no poll, is overdue to nobody and refuses the claim of a delivery."""
    served = declare(world, 1)
    [run_id] = await orders(world, served, 1)
    world.elapse(2 * DAY_MS)
    now = world.now()

    def look(session: Session) -> list[Any]:
        later = {"now_ms": now, "published_before": now}
        vein = polling.Vein(QUEUE, "pending", 0)
        lease = [
            backlog.lease(session, QUEUE, "ep_x", way=0, ways=ways, limit=5, now=now, until=now) for ways in (1, 2)
        ]
        return [
            backlog.queues(session),
            *lease,
            polling.heads(session, [QUEUE], **later),
            polling.claim(session, vein, "req_", "{}", limit=5, **later),
            backlog.overdue(session, before=now, limit=5),
            backlog.undeliverable(session, queued_before=now, endings=0, limit=5),
        ]

    assert not any(world.store.transact_blocking(look))
    with refused("not_claimable"):
        await world.grant(run_id, 0, "clm_a")
    direct = world.store.transact_blocking(lambda session: entries.claim(session, run_id, 0, "clm_a", None, "{}"))
    assert (direct, world.status(run_id)) == (False, ("queued", 0))
    assert (await world.stalling.once())["stalled"] == 0
    assert await opened(world) == 1
    assert await world.stalling.once() == {"stalled": 0, "more": 0}, "its age counts from its place on"
    await world.write(await world.claim(run_id), ending=DONE)


async def _pauses(world: World, run_id: str) -> None:
    await control.pause(world.store, world.settings, NAMESPACE, run_id, Nothing(), "x")


async def _cancels(world: World, run_id: str) -> None:
    await world.cancel(run_id)


async def _completes(world: World, run_id: str) -> None:
    await world.write(await world.claim(run_id), ending=DONE)


async def _parks(world: World, run_id: str) -> None:
    await world.park(await world.claim(run_id), world.sleep())


async def _stalls(world: World, run_id: str) -> None:
    await world.write(await world.claim(run_id), ending=Stall("divergence", {}))


@pytest.mark.parametrize("leave", [_pauses, _cancels, _completes, _parks, _stalls])
async def test_a_place_is_free_when_the_run_goes(world: World, leave: Callable[[World, str], Awaitable[None]]) -> None:
    """Whatever takes a run from the queue or its executor frees its place, and says so to this process at once."""
    heard: list[str] = []
    world.store.listen("lane", heard.append)
    served = declare(world, 1)
    first, second = await orders(world, served, 2)
    assert heard == [LANE, LANE]
    assert await opened(world) == 1
    await leave(world, first)
    assert heard == [LANE, LANE, LANE]
    assert not has_place(world, second)
    assert await opened(world) == 1
    assert has_place(world, second)


async def test_a_run_without_a_lane_is_nothing_to_the_pump(world: World) -> None:
    """Nothing is announced for it, nothing held, and its life takes no statement more than that of one in a lane."""
    heard: list[str] = []
    world.store.listen("lane", heard.append)
    await world.submit("other")
    counts = []
    for served in (None, declare(world, 1)):
        before = world.store.statements
        request = SubmitRun("order", version="1", tags={"customer": "acme"})
        run = (await submission.submit(world.store, NAMESPACE, request, "tester", None, served)).run
        submitted = world.store.statements - before
        assert len(heard) == (0 if served is None else 1)
        await opened(world)
        before = world.store.statements
        await world.write(await world.claim(run.id, 0), ending=DONE)
        counts.append((submitted, world.store.statements - before))
    assert counts[0] == counts[1]
    assert len(heard) == 2


async def test_a_released_claim_keeps_its_place(world: World) -> None:
    """A killed executor's run is delivered again from the place it has: recovery never waits behind others."""
    served = declare(world, 1)
    first, second = await orders(world, served, 2)
    await opened(world)
    await world.claim(first)
    world.elapse(DAY_MS // 2)
    assert (await world.recovers())["released"] == 1
    assert await opened(world) == 0
    assert (has_place(world, first), has_place(world, second)) == (True, False)


async def test_a_run_that_comes_back_waits_again(world: World) -> None:
    """Woken, resumed or requeued, a run waits for a place as any other, behind what was due before it."""
    served = declare(world, 1)
    first, second = await orders(world, served, 2)
    await opened(world)
    await _parks(world, first)
    await opened(world)
    await control.wake(world.store, world.settings, NAMESPACE, first, Nothing(), "x")
    assert (world.status(first)[0], has_place(world, first), has_place(world, second)) == ("queued", False, True)
    await _stalls(world, second)
    await world.requeue(second)
    assert await opened(world) == 1
    assert (has_place(world, first), has_place(world, second)) == (True, False)


async def test_the_newest_declared_limit_counts(world: World) -> None:
    """A new deploy's limit holds for the whole lane: raised, more places open; lowered, none do until enough have gone;
    dropped, everybody has one."""
    served = declare(world, 2)
    ids = await orders(world, served, 12)
    assert await opened(world) == 2
    declare(world, 4)
    assert await opened(world) == 2
    declare(world, 3)
    await _completes(world, ids[0])
    assert await opened(world) == 0
    await _completes(world, ids[1])
    assert await opened(world) == 1
    declare(world, None)
    assert await opened(world) == 7
    assert all(has_place(world, run_id) for run_id in ids[2:])


async def test_a_lane_of_a_workflow_nobody_declares_any_more(world: World) -> None:
    """Without any declaration the limit a run was born with holds."""
    served = ServedWorkflow("order", "1", concurrency=Concurrency(2))
    await orders(world, served, 3)
    assert await opened(world) == 2


async def test_runs_without_the_tag_share_a_lane(world: World) -> None:
    """They are alike in having none; without a key all runs of the workflow share one lane."""
    served = declare(world, 1)
    ids = [await order(world, served, tags=tags) for tags in ({}, {"x": "y"}, {"customer": "acme"})]
    assert await opened(world) == 2
    assert [has_place(world, run_id) for run_id in ids] == [True, False, True]
    whole = declare(world, 1, key=None)
    ids = [await order(world, whole, customer) for customer in ("a", "b")]
    assert await opened(world) == 1
    assert {world.run(run_id).lane for run_id in ids} == {f"{NAMESPACE}:order:"}


async def test_the_children_of_a_call_share_its_limit(world: World) -> None:
    """`map(limit=)`: as many children of the call are handed out at once, the next when one has ended."""
    claim = await world.claim(await world.submit("family"))
    ids = await started(world, claim, *many(5, limit=2))
    assert await opened(world) == 2
    first, second = (run_id for run_id in ids if has_place(world, run_id))
    await _completes(world, first)
    assert await opened(world) == 1
    left = [run_id for run_id in ids if run_id != first and has_place(world, run_id)]
    assert (len(left), second in left) == (2, True)


async def test_the_highest_priority_gets_the_next_place(world: World) -> None:
    """Within a lane as between runs without one: each step of priority overtakes what came ten seconds before it."""
    served = declare(world, 1)
    low, high = await order(world, served, priority=5), await order(world, served, priority=6)
    assert await opened(world) == 1
    assert (has_place(world, low), has_place(world, high)) == (False, True)


async def test_priorities_overtake_and_starve_nobody(world: World) -> None:
    """Rank is due time less ten seconds a step: priority 9 overtakes 0 by 90 seconds, and not by more."""
    overtaken, too_old = 9 * PRIORITY_STEP_MS - 5_000, 9 * PRIORITY_STEP_MS + 5_000
    young = await world.submit(priority=0, due_at=_ago(world, overtaken))
    old = await world.submit(priority=0, due_at=_ago(world, too_old))
    high = await world.submit(priority=9)
    now = world.now()
    leased = [world.lease(QUEUE, now=now, until=now + 1)[0].run_id for _ in range(3)]
    assert leased == [old, high, young]


def _ago(world: World, ms: int) -> str:
    return clock.to_wire(world.now() - ms)


async def test_what_is_declared_holds_for_the_run(world: World) -> None:
    """The time a workflow declares counts from when the run is due; schedules and followers have lane and time too."""
    served = declare(world, 1, timeout_ms=60_000)
    run = world.run(await order(world, served, delay_ms=DAY_MS))
    assert run.due_at is not None
    assert run.expires_at == run.due_at + 60_000
    [answer] = await submission.submit_batch(
        world.store, NAMESPACE, [(SubmitRun("order"), "1")], "tester", {("order", "1"): served}
    )
    assert isinstance(answer, submission.Submission)
    assert (answer.run.lane, answer.run.lane_limit) == (f"{NAMESPACE}:order:customer%3D", 1)
    birth = runs.Birth(identity.new("run"), NAMESPACE, "order", "1", 5, "default", "{}", None, None, b"1")
    born = world.store.transact_blocking(lambda session: submission.born(session, birth, "x", session.now())).run
    assert (born.lane, born.expires_at) == (answer.run.lane, born.created_at + 60_000)


async def test_two_dispatchers_open_a_place_once(pair: Pair) -> None:
    """While one's opening is not committed the other waits, and then counts what the first has opened."""
    served = declare(pair.one, 2)
    await orders(pair.one, served, 5)
    first = await pair.begin(pump_once(pair.one))
    second = await pair.blocks(pump_once(pair.other))
    pair.commit()
    assert (await first, await second) == (2, 0)
    assert pair.other.store.transact_blocking(lambda session: lanes.taken(session, LANE)) == 2


async def pump_once(world: World) -> int:
    """How many places were opened by one transaction for the lane."""
    return (await world.store.transact(lambda session: opening._open(session, [LANE])))[LANE]


async def test_a_race_for_places(world: World) -> None:
    """Runs come, end, park and are cancelled while several pumps tick: never more than the limit, nobody forgotten."""
    limit, served = 3, declare(world, 3)
    submitted: list[str] = []
    stop = asyncio.Event()

    def taken() -> int:
        return world.store.transact_blocking(lambda session: lanes.taken(session, LANE))

    async def comes() -> None:
        submitted.extend([await order(world, served) for _ in range(4)])
        submitted.extend([await order(world, served) for _ in range(8)])

    async def pumps() -> None:
        daemon = pump(world)
        while not stop.is_set():
            await daemon.once()

    async def works(leave: Callable[[World, str], Awaitable[None]]) -> int:
        done = 0
        while not stop.is_set():
            found = next((run_id for run_id in list(submitted) if _is_free(world, run_id)), None)
            if found is not None:
                submitted.remove(found)
                await leave(world, found)
                done += 1
            assert taken() <= limit
            await asyncio.sleep(0)
            if done == 4:
                return done
        return done

    async with asyncio.timeout(60):
        pumping = [asyncio.create_task(pumps()) for _ in range(2)]
        _, *done = await asyncio.gather(comes(), works(_completes), works(_parks), works(_cancels))
        stop.set()
        await asyncio.gather(*pumping)
    assert done == [4, 4, 4]
    assert taken() == 0


def _is_free(world: World, run_id: str) -> bool:
    entry = world.maybe_entry(run_id)
    return entry is not None and not entry.held and entry.status == "pending"
