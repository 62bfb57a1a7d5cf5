"""The checker finds what it is there to find: each breach, put into the rows by hand, is named."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from msgspec import Raw

from dispatcher.store import Statement, Store, entries, invariants, runs, schema
from endpoint_sdk.wire.messages import Complete
from tests.integration.world import World, refused, task


@pytest.fixture
def broken(sqlite_url: str) -> Iterator[World]:
    """A world nobody checks afterwards."""
    world = World(Store.open(sqlite_url))
    yield world
    world.store.close()


def breaches(world: World) -> list[str]:
    return world.store.transact_blocking(invariants.check)


async def test_nothing_is_found_in_sound_rows(broken: World) -> None:
    """A queued, a running and a completed run break nothing."""
    await broken.submit()
    await broken.claim(await broken.submit())
    await broken.write(await broken.claim(await broken.submit()), task(), ending=Complete(Raw(b"1")))
    assert breaches(broken) == []


async def test_queued_without_an_entry(broken: World) -> None:
    """I8: a queued run nobody can deliver."""
    run_id = await broken.submit()
    broken.store.transact_blocking(lambda session: entries.delete(session, run_id))
    assert breaches(broken) == [f"I8 {run_id} is queued with entry None"]


async def test_running_without_a_claim(broken: World) -> None:
    """I8: a running run that recovery would never find."""
    run_id = await broken.submit()
    broken.set_run(run_id, status="running", revision=1)
    assert f"I8 {run_id} is running with entry pending" in breaches(broken)


async def test_ended_with_an_entry(broken: World) -> None:
    """I8: a finished run that would be delivered."""
    run_id = await broken.submit()
    broken.set_run(run_id, status="completed", finished_at=1)
    assert f"I8 {run_id} is completed with entry pending" in breaches(broken)


async def test_entry_at_another_revision(broken: World) -> None:
    """I8: an entry that would deliver a revision the run is not at."""
    run_id = await broken.submit()
    broken.set_entry(run_id, revision=4)
    assert breaches(broken) == [f"I8 {run_id} is at 0, its entry at 4"]


async def test_claim_without_history(broken: World) -> None:
    """I1: a claim id no transition knows."""
    claim = await broken.claim(await broken.submit())
    broken.set_entry(claim.run_id, claim_id="clm_thief")
    assert breaches(broken) == [f"I1 {claim.run_id} is held by a claim its history does not know"]


async def test_history_with_a_gap_or_an_illegal_move(broken: World) -> None:
    """I2: each revision follows from the one before, by a legal move, and the run stands where they end."""
    run_id = await broken.submit()
    await broken.write(await broken.claim(run_id), ending=Complete(Raw(b"1")))
    t = schema.run_transition
    gap = Statement(sa.delete(t).where(t.c.run_id == run_id, t.c.revision == 1))
    broken.store.transact_blocking(lambda session: session.run(gap))
    illegal = Statement(sa.update(t).where(t.c.run_id == run_id, t.c.revision == 2).values(from_status="queued"))
    broken.store.transact_blocking(lambda session: session.run(illegal))
    assert breaches(broken) == [
        f"I2 {run_id} moved to 2 from queued, expected (1, 'queued')",
        f"{run_id} moved from queued to completed, which is not legal",
    ]


async def test_run_beside_its_history(broken: World) -> None:
    """I2: a run at a revision its history never reached, or without history."""
    run_id = await broken.submit()
    broken.set_run(run_id, revision=1)
    broken.set_entry(run_id, revision=1)
    assert breaches(broken) == [f"I2 {run_id} is queued at 1, its history ends at (0, 'queued', None)"]


async def test_two_completions_at_one_address(broken: World) -> None:
    """I7: a task recorded as completed twice."""
    claim = await broken.claim(await broken.submit())
    await broken.write(claim, task("charge"), task("charge", attempt=2))
    assert breaches(broken) == [f"I7 {claim.run_id} completed charge twice at one address"]


async def test_move_guards_itself(broken: World) -> None:
    """A move from another status or revision changes nothing; one the lifecycle does not know is our mistake."""
    run_id = await broken.submit()
    late = broken.store.transact_blocking(lambda session: runs.move(session, run_id, 3, "queued", "running", actor="x"))
    assert late is None
    with pytest.raises(ValueError, match="not a legal move"):
        broken.store.transact_blocking(lambda session: runs.move(session, run_id, 0, "queued", "completed", actor="x"))
    assert broken.status(run_id) == ("queued", 0)
    assert breaches(broken) == []


async def test_a_claim_that_finds_the_run_elsewhere_stores_nothing(broken: World) -> None:
    """A claim whose entry is free but whose run has moved is 503 and leaves the entry alone."""
    run_id = await broken.submit()
    broken.set_run(run_id, status="stalled")
    with refused("unavailable"):
        await broken.claim(run_id, 0)
    assert broken.entry(run_id).status == "pending"


@pytest.mark.parametrize("column", ["publisher", "route", "published_at"])
async def test_published_without_saying_where(broken: World, column: str) -> None:
    """I14: a published entry of which recovery could not tell whether it counts, or a poller whether it may take it."""
    run_id = await broken.submit()
    broken.publish(run_id)
    assert breaches(broken) == []
    broken.set_entry(run_id, **{column: None})
    assert breaches(broken) == [f"I14 {run_id} is published, and not to whom, by which route or when"]


async def test_pending_and_published(broken: World) -> None:
    """I14: a pending entry that still says where it was published."""
    run_id = await broken.submit()
    broken.set_entry(run_id, route="redis")
    assert breaches(broken) == [f"I14 {run_id} is pending and published at once"]
