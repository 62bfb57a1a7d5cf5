"""Runs that take longer than their workflow declares, and timers that fail."""

from typing import Any

import pytest

from dispatcher import cancelling, control, timers
from dispatcher.store import Session
from endpoint_sdk.wire.messages import Cancelled
from endpoint_sdk.wire.operating import Nothing
from tests.integration.world import HOUR_MS, NAMESPACE, World


async def _expiring(world: World, **fields: Any) -> str:
    run_id = await world.submit(**fields)
    world.set_run(run_id, expires_at=world.now() + 1_000)
    return run_id


async def test_a_run_nobody_claimed_is_cancelled_when_its_time_is_up(world: World) -> None:
    """Queued or scheduled, a run never claimed is cancelled at once, and not a moment before its time."""
    queued, scheduled = await _expiring(world), await _expiring(world, delay_ms=HOUR_MS)
    tick = await world.timers.once()
    assert (tick["expired"], 0 < tick["dueInMs"] <= 1_000) == (0, True)
    world.elapse(1_001)
    assert (await world.timers.once())["expired"] == 2
    for run_id in (queued, scheduled):
        run = world.run(run_id)
        assert (run.status, run.reason, run.expires_at) == ("cancelled", "timed_out", None)
    assert (await world.timers.once())["expired"] == 0


async def test_a_claimed_run_is_asked_to_cancel_itself(world: World) -> None:
    """A running run is told to stop and can compensate: it ends cancelled, reason timed_out, forced after its grace."""
    claim = await world.claim(await _expiring(world))
    world.elapse(1_001)
    assert (await world.timers.once())["expired"] == 1
    asked = world.run(claim.run_id)
    assert (asked.status, asked.stop, asked.cancel_reason) == ("running", "cancel", "timed_out")
    assert (asked.cancel_forced_at or 0) > world.now()
    await world.write(claim, ending=Cancelled())
    assert (world.run(claim.run_id).status, world.run(claim.run_id).reason) == ("cancelled", "timed_out")


async def test_the_time_goes_on_while_a_run_waits_or_is_paused(world: World) -> None:
    """Parked or paused, a run whose time is up is queued under the request, so that it can compensate."""
    for paused in (False, True):
        claim = await world.claim(await _expiring(world))
        await world.park(claim, world.sleep())
        if paused:
            await control.pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "x")
        world.elapse(1_001)
        assert (await world.timers.once())["expired"] == 1
        assert (world.run(claim.run_id).status, world.run(claim.run_id).stop) == ("queued", "cancel")


async def test_a_request_to_cancel_stands_when_the_time_is_up(world: World) -> None:
    """The time of a run that is being cancelled changes neither the reason nor the grace."""
    claim = await world.claim(await _expiring(world))
    await world.cancel(claim.run_id, now=False, reason="mine")
    before = world.run(claim.run_id)
    world.elapse(1_001)
    assert (await world.timers.once())["expired"] == 0
    after = world.run(claim.run_id)
    assert (after.cancel_reason, after.cancel_forced_at, after.expires_at) == ("mine", before.cancel_forced_at, None)


async def test_an_ended_run_has_no_time_to_be_up(world: World) -> None:
    """The end of a run takes it off the clock."""
    run_id = await _expiring(world)
    await world.cancel(run_id)
    assert world.run(run_id).expires_at is None


async def test_one_failing_run_does_not_keep_the_others_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose timer raises is left for a minute; all others of its batch start, and then it is tried again."""
    ids = [await world.submit(delay_ms=1_000) for _ in range(3)]
    world.elapse(1_001)
    real = timers.fire

    def fire(session: Session, run_id: str, now: int) -> bool:
        if run_id == ids[1]:
            raise RuntimeError("a mistake of ours")
        return real(session, run_id, now)

    with monkeypatch.context() as patched:
        patched.setattr(timers, "fire", fire)
        tick = await world.timers.once()
    assert tick["fired"] == 2
    assert tick["dueInMs"] > 1_000
    assert [world.status(run_id)[0] for run_id in ids] == ["queued", "scheduled", "queued"]
    world.elapse(61_000)
    assert await world.fires() == 1


async def test_a_failing_timeout_is_tried_once_a_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout that raises is logged and tried again in a second, not at once, and keeps nobody else up."""
    bad, good = await _expiring(world), await _expiring(world)
    world.elapse(1_001)
    real = cancelling.expire

    def expire(session: Session, run_id: str, **fields: Any) -> bool:
        if run_id == bad:
            raise RuntimeError("a mistake of ours")
        return real(session, run_id, **fields)

    with monkeypatch.context() as patched:
        patched.setattr(cancelling, "expire", expire)
        tick = await world.timers.once()
    assert (tick["expired"], tick["dueInMs"]) == (1, 1_000)
    assert (world.status(bad)[0], world.status(good)[0]) == ("queued", "cancelled")
    assert (await world.timers.once())["expired"] == 1
