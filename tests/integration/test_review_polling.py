"""What a review found in polls, on both databases."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.pollers import Pollers
from dispatcher.store import Store, polling
from dispatcher.store.entries import Entry
from tests.integration.pollers import Poller, claim_of, ids
from tests.integration.world import NAMESPACE, World, task


@pytest.fixture
def world(store: Store) -> Iterator[World]:
    """A dispatcher's operations, once on each database; every invariant holds when the test ends."""
    made = World(store)
    yield made
    made.check()


async def test_a_fleet_that_starts_speaks_once(world: World) -> None:
    """Polls that come at the same time write what they serve once, not each for itself."""
    pollers = Pollers(world.store)
    before = world.store.statements

    await asyncio.gather(*(pollers.saw(NAMESPACE, [("order", "1"), ("refund", "1")]) for _ in range(50)))

    assert world.store.statements == before + 2  # the clock, and the rows
    assert [item.version for item in await pollers.versions(NAMESPACE, "order")] == ["1"]


async def test_a_repeat_brings_what_was_recorded(world: World) -> None:
    """Whoever asks again under a request id gets the records its first claim of a run has written since (I7)."""
    run_id = await world.submit()
    poller = Poller(world)
    (grant,) = await poller(request_id="req_1")
    await world.write(claim_of(grant), task())

    for limit in (10, 0):
        (again,) = await poller(limit, request_id="req_1")
        assert (again.run.id, again.revision, [record.name for record in again.records]) == (run_id, 1, ["charge"])


async def test_a_request_id_that_looks_like_a_claim(world: World) -> None:
    """Claims under a request id that another one begins with, up to a run's id, are no answer to that other one."""
    run_id = await world.submit()
    poller = Poller(world)
    (grant,) = await poller(request_id=f"req_1_{run_id}")

    assert await poller(request_id="req_1") == []
    assert await world.is_held(claim_of(grant))


async def test_no_queue_goes_without_its_share(world: World) -> None:
    """A limit that the queues do not divide evenly still leaves every one of them its whole share."""
    for workflow in ("a", "a", "b", "b", "c"):
        await world.submit(workflow)

    grants = await Poller(world)(4, "a", "b", "c")

    assert sorted(grant.run.workflow for grant in grants) in (["a", "a", "b", "c"], ["a", "b", "b", "c"])


async def test_a_wake_outlives_the_poll_it_woke(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose poll is hung up on while it claims goes to the next poll at once, no tick needed."""
    leaver, stayer = Poller(world), Poller(world)
    stayer.polling = leaver.polling
    loop, taken = asyncio.get_running_loop(), polling.claim

    def hangs_up(*arguments: Any, **options: Any) -> list[Entry]:
        monkeypatch.setattr(polling, "claim", taken)
        left = threading.Event()
        loop.call_soon_threadsafe(leaver.gone.set_result, None)
        loop.call_soon_threadsafe(left.set)
        assert left.wait(10)
        return taken(*arguments, **options)

    monkeypatch.setattr(polling, "claim", hangs_up)
    gone = asyncio.create_task(leaver(wait_ms=20_000))
    await leaver.waits(1)
    waiting = asyncio.create_task(stayer(wait_ms=20_000))
    await leaver.waits(2)
    run_id = await world.submit()

    async with asyncio.timeout(10):
        assert await gone == []
        assert ids(await waiting) == [run_id]
