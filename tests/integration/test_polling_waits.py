"""Polls that wait, on both databases: who is woken, who is not there any more, and two dispatchers at once."""

import asyncio
import threading
from typing import Any

import pytest
from msgspec import Raw

from dispatcher import polling as dispatcher_polling
from dispatcher.store import polling
from dispatcher.store.entries import Entry
from endpoint_sdk.wire.messages import Complete, Release
from tests.integration.pollers import Poller, claim_of, ids
from tests.integration.sessions import Pair
from tests.integration.world import NAMESPACE, World, refused, task


# --- nobody there
async def test_a_client_that_hung_up_claims_nothing(world: World) -> None:
    """Once the client has gone the poll ends without another look, and the wake it got is the next one's."""
    poller, other = Poller(world), Poller(world)
    other.polling = poller.polling
    gone = asyncio.create_task(poller(wait_ms=20_000))
    await poller.waits()
    waiting = asyncio.create_task(other(wait_ms=20_000))
    await poller.waits(2)
    poller.gone.set_result(None)
    run_id = await world.submit()

    assert await gone == []
    assert ids(await waiting) == [run_id]


async def test_a_client_that_hangs_up_during_the_claim(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was claimed for a client that left before the commit is never stored."""
    run_id = await world.submit()
    poller = Poller(world)
    loop = asyncio.get_running_loop()

    def hangs_up(*arguments: Any, **options: Any) -> list[Entry]:
        left = threading.Event()
        loop.call_soon_threadsafe(poller.gone.set_result, None)
        loop.call_soon_threadsafe(left.set)
        assert left.wait(10)
        return taken(*arguments, **options)

    taken = polling.claim
    monkeypatch.setattr(polling, "claim", hangs_up)

    assert await poller() == []
    assert world.status(run_id) == ("queued", 0)


async def test_nothing_is_claimed_too_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that begins, or ends, two seconds after the wait stores nothing: its client may be asking elsewhere."""
    run_id = await world.submit()
    monkeypatch.setattr(dispatcher_polling, "_GRACE_SECONDS", -1.0)

    assert await Poller(world)() == []
    assert world.status(run_id) == ("queued", 0)


async def test_a_server_that_stops_waits_for_no_poll(world: World) -> None:
    """Stopping answers every poll with nothing, the one that comes then too."""
    poller = Poller(world)
    waiting = [asyncio.create_task(poller(wait_ms=20_000)) for _ in range(3)]
    await poller.waits(3)
    poller.polling.stop()

    assert await asyncio.gather(*waiting) == [[], [], []]
    assert await poller(wait_ms=20_000) == []


# --- waking
async def test_each_run_wakes_one_poll(world: World) -> None:
    """Two runs for three polls: each is one poll's, and the third goes on waiting."""
    poller = Poller(world)
    waiting = [asyncio.create_task(poller(1, wait_ms=20_000)) for _ in range(3)]
    await poller.waits(3)
    run_ids = {await world.submit(), await world.submit()}
    await poller.waits(1)
    poller.polling.stop()
    found = await asyncio.gather(*waiting)

    assert sorted(map(len, found)) == [0, 1, 1]
    assert {run_id for grants in found for run_id in ids(grants)} == run_ids


async def test_a_poll_that_got_its_fill_wakes_the_next(world: World) -> None:
    """A backlog another dispatcher wrote reaches every waiting poll from one tick."""
    poller = Poller(world)
    waiting = [asyncio.create_task(poller(1, wait_ms=20_000)) for _ in range(3)]
    await poller.waits(3)
    world.store._listeners["backlog"].clear()
    run_ids = {await world.submit() for _ in range(3)}
    assert (await poller.polling.once())["woken"] == 1
    found = await asyncio.gather(*waiting)

    assert {run_id for grants in found for run_id in ids(grants)} == run_ids


async def test_a_tick_without_polls_asks_nothing(world: World) -> None:
    """Nobody waits, so the database is left alone."""
    poller = Poller(world)
    before = world.store.statements
    assert await poller.polling.once() == {"waiting": 0, "woken": 0}
    assert world.store.statements == before


async def test_many_pollers_share_a_stream(world: World) -> None:
    """Six pollers over a backlog that grows, and is released, as they work: every run ends once, one holding it."""
    poller, count = Poller(world), 60
    done: set[str] = set()

    async def works() -> None:
        while len(done) < count:
            for grant in await poller(5, wait_ms=1_000):
                claim = claim_of(grant)
                if grant.revision == 1 and len(done) % 3 == 0:
                    await world.write(claim, task(), ending=Release("handoff"))
                    continue
                await world.write(claim, ending=Complete(Raw(b"1")))
                assert grant.run.id not in done
                done.add(grant.run.id)
        poller.polling.stop()

    async def submits() -> None:
        for _ in range(count):
            await world.submit()

    async with asyncio.timeout(60):
        await asyncio.gather(submits(), *(works() for _ in range(6)))

    assert len(done) == count
    for run_id in done:
        claims = [move.request_id for move in world.history(run_id) if move.reason == "claimed"]
        assert len(claims) == len(set(claims)) <= 2


# --- two sessions
async def test_a_poll_while_a_claim_is_uncommitted(pair: Pair) -> None:
    """A poll waits for no lock: it passes over an entry another is claiming, and takes the next."""
    first, second = await pair.one.submit(), await pair.one.submit()
    claim = await pair.begin(pair.one.claim(first, 0))
    assert ids(await Poller(pair.other)()) == [second]
    pair.commit()
    await claim
    assert await Poller(pair.other)() == []


async def test_a_claim_while_a_poll_is_uncommitted(pair: Pair) -> None:
    """I1: the claim of a delivery that waited for a poll's commit is refused."""
    run_id = await pair.one.submit()
    poller = Poller(pair.one)
    await poller.pollers.saw(NAMESPACE, [("order", "1")])
    poll = await pair.begin(poller())
    claim = await pair.blocks(pair.other.claim(run_id, 0))
    pair.commit()
    assert ids(await poll) == [run_id]
    with refused("already_claimed"):
        await claim


async def test_a_cancel_while_a_poll_is_uncommitted(pair: Pair) -> None:
    """A cancel that waited for a poll's commit ends that claim; the poll's grant is fenced."""
    run_id = await pair.one.submit()
    poller = Poller(pair.one)
    await poller.pollers.saw(NAMESPACE, [("order", "1")])
    poll = await pair.begin(poller())
    cancel = await pair.blocks(pair.other.cancel(run_id))
    pair.commit()
    (grant,) = await poll
    assert (await cancel).status == "cancelled"
    with refused("cancelled"):
        await pair.other.write(claim_of(grant), task())


async def test_a_repeat_while_the_first_is_uncommitted(pair: Pair) -> None:
    """Two copies of a request at once, which no client of ours sends, never get the same run."""
    first, second = await pair.one.submit(), await pair.one.submit()
    poller = Poller(pair.one)
    await poller.pollers.saw(NAMESPACE, [("order", "1")])
    poll = await pair.begin(poller(1, request_id="req_1"))
    other = await Poller(pair.other)(1, request_id="req_1")
    pair.commit()
    assert {*ids(await poll), *ids(other)} == {first, second}
    assert set(ids(await Poller(pair.other)(1, request_id="req_1"))) == {first, second}


async def test_dispatchers_that_say_the_same_versions(pair: Pair) -> None:
    """Two that write the same rows in whatever order wait for one another, and neither deadlocks."""
    poller, other = Poller(pair.one), Poller(pair.other)
    pairs = [("a", "1"), ("b", "1"), ("c", "1")]
    saying = await pair.begin(poller.pollers.saw(NAMESPACE, pairs))
    waiting = await pair.blocks(other.pollers.saw(NAMESPACE, reversed(pairs)))
    pair.commit()
    await asyncio.gather(saying, waiting)
    assert [item.version for item in await other.pollers.versions(NAMESPACE, "c")] == ["1"]
