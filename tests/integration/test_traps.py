"""The traps of the protocol: shortest traces by which other readings of it break, followed step by step.

Each test is named by the reading that fails; here the step at which it would fail is refused.
"""

import pytest
from msgspec import Raw

from dispatcher import endings
from dispatcher.store import Session, entries
from endpoint_sdk.wire.messages import Complete, Ending, ErrorObject, Fail, Progressed, Release, Stall
from tests.integration.sessions import Pair
from tests.integration.world import IDLE_MS, World, refused, task


def lease(world: World, run_id: str) -> entries.Entry:
    """A replica leases the run's entry and pushes it; answers the entry as the replica remembers it."""
    entry = world.entry(run_id)
    now = world.now()
    [leased] = world.lease(entry.queue, now=now + 300_000, until=now + 30_000)
    return leased


def failed(world: World, leased: entries.Entry) -> bool:
    """The replica writes the outcome failed of its push; answers whether anything changed."""
    return world.store.transact_blocking(
        lambda session: endings.unpublish(
            session,
            world.settings.publishing,
            world.settings.stalling,
            leased,
            reason="server-error",
            counted=True,
            delay_ms=0,
        )
    )


async def goes_stale_and_is_released(world: World, run_id: str) -> None:
    """More than the idle timeout passes without a served refresh, and recovery releases the claim."""
    world.elapse(IDLE_MS + 1_000)
    assert (await world.recovers())["released"] == 1
    assert world.entry(run_id).status == "pending"


async def test_claim_id_derived_from_webhook_id(world: World) -> None:
    """claimId derived from webhook-id"""
    run_id = await world.submit()
    first = lease(world, run_id)
    assert failed(world, first)
    second = lease(world, run_id)
    assert (first.revision, second.revision) == (0, 0), "both pushes have the webhook-id <run>_0"
    owner = await world.claim(run_id, first.revision, push_number=first.push_number)
    with refused("already_claimed"):
        await world.claim(run_id, second.revision, push_number=second.push_number)
    assert await world.is_held(owner)


async def test_claim_retry_answered_by_claim_id_only(world: World) -> None:
    """claim retry answered by claimId only"""
    run_id = await world.submit()
    lease(world, run_id)
    zero = await world.claim(run_id, 0, "clm_0")
    await goes_stale_and_is_released(world, run_id)
    with refused("stale_delivery"):
        await world.claim(run_id, 0, "clm_0")
    lease(world, run_id)
    one = await world.claim(run_id, 2, "clm_1")
    with refused("stale_delivery"):
        await world.claim(run_id, 0, "clm_0")
    with refused("revision_conflict"):
        await world.write(zero, task())
    assert await world.is_held(one)


async def test_claim_retry_answered_with_the_current_revision(world: World) -> None:
    """claim retry answered with the current revision, fence = revision only"""
    run_id = await world.submit()
    lease(world, run_id)
    await world.claim(run_id, 0, "clm_0")
    await goes_stale_and_is_released(world, run_id)
    lease(world, run_id)
    one = await world.claim(run_id, 2, "clm_1")
    with refused("stale_delivery"):
        await world.claim(run_id, 0, "clm_0")
    adopted = world.forged(one, id="clm_0")
    assert not await world.is_held(adopted)
    with refused("revision_conflict"):
        await world.write(adopted, task(), ending=Complete(Raw(b"0")))
    assert await world.is_held(one)


async def test_failover_loses_a_claim(world: World) -> None:
    """failover loses a claim, fence = revision only"""
    run_id = await world.submit()
    first = lease(world, run_id)
    assert failed(world, first)
    second = lease(world, run_id)
    entry, run = world.entry(run_id), world.run(run_id)
    zero = await world.claim(run_id, first.revision, "clm_0")
    world.restore(entry, run)
    one = await world.claim(run_id, second.revision, "clm_1")
    assert zero.revision == one.revision
    with refused("revision_conflict"):
        await world.write(zero, task(value=b'"zero"'))
    assert not await world.is_held(zero)
    with refused("already_claimed"):
        await world.claim(run_id, 0, "clm_0")
    await world.write(one, task(value=b'"one"'))
    assert [row.value for row in world.records(run_id)] == [b'"one"']


@pytest.mark.parametrize(
    "ending",
    [Complete(Raw(b"1")), Fail(ErrorObject("Boom", "x")), Release("handoff"), Stall("divergence")],
    ids=lambda ending: type(ending).__name__.lower(),
)
async def test_applied_transition_refused_on_retry(world: World, ending: Ending) -> None:
    """applied transition refused on retry (no request id)"""
    run_id = await world.submit()
    lease(world, run_id)
    claim = await world.claim(run_id)
    await world.write(claim, task(), request_id="req_ck")
    answers = [await world.write(claim, ending=ending, request_id="req_end") for _ in range(2)]
    assert answers == [Progressed(2), Progressed(2)]
    assert len(world.history(run_id)) == 3
    with refused("revision_conflict"):
        await world.write(claim, ending=ending, request_id="req_of_another")


async def test_checkpoint_guarded_by_exists_no_row_lock(pair: Pair) -> None:
    """checkpoint guarded by EXISTS, no row lock"""
    claim = await pair.one.claim(await pair.one.submit())
    pair.one.elapse(IDLE_MS + 1_000)
    checkpoint = await pair.begin(pair.one.write(claim, task()))
    assert (await pair.other.recovers())["released"] == 0, "the checkpoint holds the entry"
    pair.commit()
    await checkpoint
    assert (await pair.other.recovers())["released"] == 0, "the checkpoint was a refresh"
    assert await pair.other.is_held(claim)


async def test_checkpoint_guarded_by_exists_no_row_lock_won_by_recovery(pair: Pair) -> None:
    """checkpoint guarded by EXISTS, no row lock: the checkpoint waits for the release, then is refused"""
    claim = await pair.one.claim(await pair.one.submit())
    entry = pair.one.entry(claim.run_id)
    pair.one.elapse(IDLE_MS + 1_000)

    def release(session: Session) -> bool:
        return pair.one.recovery._release_one(session, entry, session.now())

    released = await pair.begin(pair.one.store.transact(release))
    checkpoint = await pair.blocks(pair.other.write(claim, task()))
    pair.commit()
    assert await released
    with refused("revision_conflict"):
        await checkpoint
    assert pair.other.records(claim.run_id) == []


async def test_relay_outcome_written_by_run_id(world: World) -> None:
    """relay outcome written by run id"""
    run_id = await world.submit()
    leased = lease(world, run_id)
    claim = await world.claim(run_id)
    assert not failed(world, leased)
    assert world.entry(run_id).status == "claimed"
    world.check()
    await world.write(claim, ending=Release("unknown_version"))
    assert not failed(world, leased), "the run moved on"
    again = lease(world, run_id)
    assert not failed(world, leased), "a push of another revision is out"
    assert failed(world, again)
    third = lease(world, run_id)
    assert not failed(world, again), "another push of the same revision is out"
    assert world.entry(run_id).status == "published"
    assert failed(world, third)


async def test_recovery_lists_then_releases_by_id(world: World) -> None:
    """recovery lists, then releases by id"""
    run_id = await world.submit()
    lease(world, run_id)
    claim = await world.claim(run_id)
    world.elapse(IDLE_MS + 1_000)
    entry = world.entry(run_id)
    assert await world.is_held(claim)
    assert (await world.recovers())["released"] == 0
    await world.write(claim, ending=Release("handoff"))
    listed = world.store.transact_blocking(
        lambda session: entries.release(session, entry, due_at=world.settings.recovery.interval_ms, endings=1, kills=1)
    )
    assert not listed, "the claim that was listed is not there any more"


async def test_recovery_lists_then_releases_by_id_refresh_in_flight(pair: Pair) -> None:
    """recovery lists, then releases by id: the refresh commits while recovery is at work"""
    claim = await pair.one.claim(await pair.one.submit())
    pair.one.elapse(IDLE_MS + 1_000)
    refresh = await pair.begin(pair.one.is_held(claim))
    assert (await pair.other.recovers())["released"] == 0
    pair.commit()
    assert await refresh
    assert (await pair.other.recovers())["released"] == 0
    assert pair.one.status(claim.run_id) == ("running", 1)


async def test_release_never_counts(world: World) -> None:
    """release never counts"""
    run_id = await world.submit()
    granted = 0
    while world.status(run_id)[0] == "queued":
        lease(world, run_id)
        await world.write(await world.claim(run_id), ending=Release("handoff"))
        granted += 1
    assert granted == world.settings.stalling.max_endings_without_progress
    assert world.status(run_id)[0] == "stalled"
    assert world.run(run_id).reason == "undeliverable"
