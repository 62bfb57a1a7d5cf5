"""Graceful cancel: a request that stands until the run ends, and the traps of other readings of it, by their titles."""

import pytest
from msgspec import Raw

from dispatcher import control
from dispatcher.settings import Stalling
from endpoint_sdk.wire.messages import Cancelled, Complete, Ending, ErrorObject, Fail, Release
from endpoint_sdk.wire.operating import Nothing, RunView
from tests.integration.sessions import Pair
from tests.integration.world import HOUR_MS, IDLE_MS, NAMESPACE, Claim, World, details, refused, task

GRACE_MS = 300_000


async def asks(world: World, run_id: str, reason: str = "") -> RunView:
    """The run after a graceful cancel."""
    return await world.cancel(run_id, now=False, reason=reason)


async def pause(world: World, run_id: str) -> None:
    await control.pause(world.store, world.settings, NAMESPACE, run_id, Nothing(), "operator")


async def resume(world: World, run_id: str) -> None:
    await control.resume(world.store, world.settings, NAMESPACE, run_id, Nothing(), "operator")


async def claimed(world: World) -> Claim:
    """A claim with task 0 recorded."""
    claim = await world.claim(await world.submit())
    await world.write(claim, task("0"))
    return claim


async def test_an_executor_is_told_and_ends_the_run(world: World) -> None:
    """Every answer carries the request; the run that has undone what it did ends with its reason."""
    claim = await claimed(world)
    view = await asks(world, claim.run_id, "not wanted")
    assert (view.status, view.revision, view.stop) == ("running", 1, "cancel")
    assert view.cancel_forced_at is not None
    assert (await world.write(claim)).stop == "cancel"
    assert (await world.refresh(claim)).held[0].stop == "cancel"
    await world.write(claim, task("undo"), ending=Cancelled())
    run = world.run(claim.run_id)
    assert (run.status, run.reason, run.cancel_forced_at) == ("cancelled", "not wanted", None)
    assert (await asks(world, claim.run_id)).status == "cancelled"


async def test_nobody_ends_cancelled_unasked(world: World) -> None:
    """An executor cannot cancel a run nobody wanted cancelled."""
    claim = await claimed(world)
    with refused("cancel_not_requested"):
        await world.write(claim, ending=Cancelled())


@pytest.mark.parametrize("status", ["queued", "scheduled"])
async def test_what_was_never_claimed_is_cancelled_at_once(world: World, status: str) -> None:
    """There is nothing to undo."""
    run_id = await world.submit(delay_ms=HOUR_MS if status == "scheduled" else None)
    assert (await asks(world, run_id, "no")).status == "cancelled"


@pytest.mark.parametrize("ending", [Complete(Raw(b"1")), Fail(ErrorObject("E", "x"))])
async def test_a_run_may_end_by_itself_under_the_request(world: World, ending: Ending) -> None:
    """complete becomes cancelled while a cancel stands: it does not; its transition says that it was asked to"""
    claim = await claimed(world)
    await asks(world, claim.run_id)
    await world.write(claim, ending=ending)
    last = world.history(claim.run_id)[-1]
    assert last.status in {"completed", "failed"}
    assert details(last)["cancelRequested"] is True
    with refused("run_finished"):
        await asks(world, claim.run_id)


async def test_a_repeat_changes_nothing(world: World) -> None:
    """A repeat neither restarts the grace nor queues the run again, and keeps the first reason."""
    claim = await claimed(world)
    first = await asks(world, claim.run_id, "first")
    await world.park(claim, world.retry(HOUR_MS), told=True)
    world.elapse(1_000)
    second = await asks(world, claim.run_id, "second")
    assert (second.status, second.cancel_forced_at) == ("awaiting_retry", first.cancel_forced_at)
    assert world.run(claim.run_id).cancel_reason == "first"


# --- bad2: what a request does to a run that does not run
async def test_a_claimed_run_that_is_queued_is_cancelled_at_once(world: World) -> None:
    """cancel: a claimed run that is queued is cancelled at once"""
    claim = await claimed(world)
    world.elapse(IDLE_MS + 1_000)
    await world.recovers()
    assert (await asks(world, claim.run_id)).status == "queued"
    assert (await world.grant(claim.run_id, 2, "clm_2")).stop == "cancel"


@pytest.mark.parametrize("title", ["is cancelled at once", "request stands until it wakes"])
async def test_a_claimed_run_that_is_parked(world: World, title: str) -> None:
    """cancel: a claimed run that is parked is cancelled at once; request stands on a parked run until it wakes"""
    claim = await claimed(world)
    await world.park(claim, world.event(), world.sleep())
    assert (await asks(world, claim.run_id)).status == "queued", title
    grant = await world.grant(claim.run_id, 3, "clm_2")
    assert (grant.stop, len(grant.waits)) == ("cancel", 2)


@pytest.mark.parametrize("title", ["is cancelled at once", "request stands until somebody resumes"])
async def test_a_paused_run(world: World, title: str) -> None:
    """cancel: a paused run is cancelled at once; request stands on a paused run until somebody resumes"""
    claim = await claimed(world)
    await world.park(claim, world.event())
    await pause(world, claim.run_id)
    await world.send(claim.run_id)
    assert (await asks(world, claim.run_id)).status == "queued", title
    assert len(world.outcomes(claim.run_id)) == 1, "what was answered meanwhile is told"


async def test_cancel_over_a_pause_request(world: World) -> None:
    """cancel over a pause request: both stand, queued lands in paused"""
    claim = await claimed(world)
    await pause(world, claim.run_id)
    await asks(world, claim.run_id)
    await world.write(claim, ending=Release("pause"))
    assert world.status(claim.run_id) == ("queued", 2)


@pytest.mark.parametrize("where", ["running", "queued", "awaiting_retry"])
async def test_pause_over_a_cancel_request(world: World, where: str) -> None:
    """pause over a cancel request: accepted; replaces it"""
    claim = await claimed(world)
    await asks(world, claim.run_id)
    if where == "queued":
        await world.write(claim, ending=Release("handoff"))
    elif where == "awaiting_retry":
        await world.park(claim, world.retry(), told=True)
    with refused("cancel_requested"):
        await pause(world, claim.run_id)
    assert world.status(claim.run_id)[0] == where
    assert world.run(claim.run_id).stop == "cancel"


async def test_resume_withdraws_the_cancel(world: World) -> None:
    """resume of a running run withdraws the cancel; resume of a paused run withdraws it, or returns to its wait"""
    claim = await claimed(world)
    await asks(world, claim.run_id)
    with refused("illegal_transition"):
        await resume(world, claim.run_id)
    assert world.run(claim.run_id).stop == "cancel"


async def test_recovery_or_release_drops_the_request(world: World) -> None:
    """recovery or release drops the request"""
    claim = await claimed(world)
    await asks(world, claim.run_id)
    world.elapse(IDLE_MS + 1_000)
    await world.recovers()
    second = await world.claim(claim.run_id)
    await world.write(second, ending=Release("handoff"))
    await world.free((await world.claim(claim.run_id)).run_id)
    assert world.run(claim.run_id).stop == "cancel"


@pytest.mark.parametrize("title", ["a stall clears the cancel request", "a stall keeps the request"])
async def test_a_stall_under_a_cancel(world: World, title: str) -> None:
    """a stall clears the cancel request; a stall keeps the request, the grace does not look at stalled"""
    world.configure(stalling=Stalling(max_kills_without_progress=1))
    claim = await claimed(world)
    await asks(world, claim.run_id)
    world.elapse(IDLE_MS + 1_000)
    await world.recovers()
    run = world.run(claim.run_id)
    assert (run.status, run.reason) == ("cancelled", "crash_loop"), title


# --- bad2: the grace
@pytest.mark.parametrize("where", ["running", "queued", "awaiting_retry"])
async def test_the_grace_looks_at_running_runs_only(world: World, where: str) -> None:
    """the grace looks at running runs only; the grace ends the run without taking the claim"""
    claim = await claimed(world)
    await asks(world, claim.run_id, "no")
    if where == "queued":
        await world.write(claim, ending=Release("handoff"))
    elif where == "awaiting_retry":
        await world.park(claim, world.retry(), told=True)
    revision = world.run(claim.run_id).revision
    world.elapse(GRACE_MS - 1_000)
    assert (await world.timers.once())["forced"] == 0
    world.elapse(2_000)
    assert (await world.timers.once())["forced"] == 1
    assert world.status(claim.run_id) == ("cancelled", revision + 1)
    assert world.maybe_entry(claim.run_id) is None
    with refused("cancelled"):
        await world.write(claim, task("1"))
    last = world.history(claim.run_id)[-1]
    assert (last.reason, last.actor, details(last)["forced"]) == ("no", "timers", True)
    assert (await world.timers.once())["forced"] == 0


async def test_a_grace_that_ends_while_the_run_does(pair: Pair) -> None:
    """The force that waited for an ending finds the run ended, and forces nothing."""
    claim = await pair.one.claim(await pair.one.submit())
    await asks(pair.one, claim.run_id)
    pair.one.elapse(GRACE_MS + 1_000)
    done = await pair.begin(pair.one.write(claim, ending=Cancelled()))
    force = await pair.blocks(pair.other.timers.once())
    pair.commit()
    await done
    assert (await force)["forced"] == 0
    assert pair.one.history(claim.run_id)[-1].actor == "executor"


async def test_a_request_is_heard_by_the_timers(world: World) -> None:
    """The end of the grace is announced as every other moment is."""
    heard: list[str] = []
    world.store.listen("timed", heard.append)
    claim = await claimed(world)
    await asks(world, claim.run_id)
    assert heard == [str(world.run(claim.run_id).cancel_forced_at)]
