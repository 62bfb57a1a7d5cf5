"""Doing it again: the next attempt of a run keeps what succeeded, its next generation keeps nothing."""

from typing import Any

import pytest
from msgspec import Raw

from dispatcher import control
from dispatcher.settings import Stalling
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import Cancelled, Complete, ErrorObject, RecordIn, Restart, Retry
from endpoint_sdk.wire.operating import Nothing
from tests.integration.world import NAMESPACE, Claim, World, details, failed, refused, started, task

BOOM = ErrorObject("Boom", "no", traceback="secret path")


async def _retried(world: World, *written: RecordIn, delay_ms: int = 5_000, **fields: Any) -> str:
    claim = await world.claim(await world.submit(**fields))
    await world.write(claim, *written, ending=Retry(BOOM, delay_ms))
    return claim.run_id


async def test_a_retry_waits_and_is_the_next_attempt(world: World) -> None:
    """The run awaits its retry with its error to be seen, then is queued at attempt 2 without one, and can complete."""
    run_id = await _retried(world, task())
    waiting = world.run(run_id)
    assert (waiting.status, waiting.reason, waiting.attempt) == ("awaiting_retry", "Boom", 1)
    assert waiting.error is not None
    assert b"secret path" not in waiting.error
    assert details(world.history(run_id)[-1])["attempt"] == 1
    assert await world.fires() == 0
    world.check()
    world.elapse(5_001)
    assert await world.fires() == 1
    queued = world.run(run_id)
    assert (queued.status, queued.attempt, queued.error, world.entry(run_id).attempt) == ("queued", 2, None, 2)
    grant = await world.grant(run_id, queued.revision, "clm_second")
    assert (grant.run.attempt, [record.name for record in grant.records], grant.waits) == (2, ["charge"], [])
    await world.write(Claim(run_id, grant.revision, grant.claim_id, grant.token), ending=Complete(Raw(b"1")))
    assert world.status(run_id)[0] == "completed"


async def test_a_retry_forgets_what_failed_and_keeps_what_succeeded(world: World) -> None:
    """Gone are the attempts of calls that failed; kept are successes, their failed attempts, and at-most-once tasks."""
    run_id = await _retried(
        world,
        task("kept"),
        failed("mended", next_attempt_at="2026-01-01T00:00:00Z"),
        task("mended", attempt=2),
        failed("broken", next_attempt_at="2026-01-01T00:00:00Z"),
        RecordIn("task", "broken", "abc", 0, "ended", "failed", 2, error=BOOM),
        started("pay"),
        failed("pay"),
        RecordIn("cancel", "kept", "abc", 1, "ended", "completed", 1, value=Raw(b"{}")),
    )
    kept = [(row.kind, row.name, row.attempt, row.phase) for row in world.records(run_id)]
    assert kept == [
        ("task", "kept", 1, "ended"),
        ("task", "mended", 1, "ended"),
        ("task", "mended", 2, "ended"),
        ("task", "pay", 1, "started"),
        ("task", "pay", 1, "ended"),
        ("cancel", "kept", 1, "ended"),
    ]
    assert details(world.history(run_id)[-1])["forgotten"] == 2


async def test_a_retry_is_paused_and_resumed_without_losing_its_time(world: World) -> None:
    """Paused before its time it waits on after it is resumed; paused over its time it is queued then, once."""
    run_id = await _retried(world)
    for elapsed, status, attempt in ((1_000, "awaiting_retry", 1), (5_000, "queued", 2)):
        await control.pause(world.store, world.settings, NAMESPACE, run_id, Nothing(), "x")
        world.check()
        assert world.run(run_id).error is not None
        world.elapse(elapsed)
        await control.resume(world.store, world.settings, NAMESPACE, run_id, Nothing(), "x")
        world.check()
        assert (world.run(run_id).status, world.run(run_id).attempt) == (status, attempt)
    assert world.waits(run_id) == []


async def test_a_retry_can_be_woken(world: World) -> None:
    """An operator wakes a run that awaits its retry: it is the next attempt, and nothing is left to wait for."""
    run_id = await _retried(world)
    await control.wake(world.store, world.settings, NAMESPACE, run_id, Nothing(), "x")
    assert (world.run(run_id).status, world.run(run_id).attempt, world.waits(run_id)) == ("queued", 2, [])


async def test_a_retry_under_a_pause_is_paused(world: World) -> None:
    """A request to pause is met by the retry: the run is paused, and waits for its attempt once it is resumed."""
    claim = await world.claim(await world.submit())
    await control.pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "x")
    await world.write(claim, ending=Retry(BOOM, 5_000))
    assert (world.run(claim.run_id).status, world.run(claim.run_id).parked_as) == ("paused", "awaiting_retry")
    await control.resume(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "x")
    assert world.status(claim.run_id)[0] == "awaiting_retry"


async def test_a_retry_under_a_cancel_fails(world: World) -> None:
    """A run that is to be cancelled tries nothing again: its failure is its end."""
    claim = await world.claim(await world.submit())
    await world.cancel(claim.run_id, now=False)
    await world.write(claim, ending=Retry(BOOM, 5_000))
    assert world.status(claim.run_id)[0] == "failed"


async def test_a_cancel_ends_the_wait_for_a_retry(world: World) -> None:
    """A run that awaits its retry is queued by a request to cancel, so that it can compensate, and can end."""
    run_id = await _retried(world)
    await world.cancel(run_id, now=False)
    claim = await world.claim(run_id)
    await world.write(claim, ending=Cancelled())
    assert (world.status(run_id)[0], world.waits(run_id)) == ("cancelled", [])


async def test_a_repeated_retry_and_restart_change_nothing(world: World) -> None:
    """A lost answer does no harm: the repeat of either ending is answered as before."""
    for ending in (Retry(BOOM, 0), Restart(Raw(b"2"))):
        claim = await world.claim(await world.submit())
        first = await world.write(claim, task(), ending=ending, request_id="req_1")
        before = (world.run(claim.run_id), world.records(claim.run_id))
        assert await world.write(claim, task(), ending=ending, request_id="req_1") == first
        assert (world.run(claim.run_id), world.records(claim.run_id)) == before


async def test_a_restart_begins_anew_under_the_same_id(world: World) -> None:
    """Input replaced, generation one on, attempt 1, no record or wait; unread events stay, consumed ones are gone."""
    run_id = await _retried(world, delay_ms=0)
    await world.fires()
    claim = await world.claim(run_id)
    await world.send(run_id, "go", b"1")
    await world.park(claim, world.event("go"))
    await world.send(run_id, "later", b"2")
    held = world.run(run_id).signal_seq
    await world.write(claim, task(), signal_seq=held, ending=Restart(Raw(b'{"round":2}')))
    run = world.run(run_id)
    assert (run.status, run.reason, run.generation, run.attempt) == ("queued", "restarted", 1, 1)
    assert (run.input, world.records(run_id), world.waits(run_id)) == (b'{"round":2}', [], [])
    assert [event.name for event in world.mailbox(run_id)] == ["later"]
    grant = await world.grant(run_id, run.revision, "clm_next")
    assert (grant.run.generation, bytes(grant.run.input), grant.records) == (1, b'{"round":2}', [])


async def test_a_restart_starts_with_fresh_counters(world: World) -> None:
    """What was counted against the generation before is not counted against the next."""
    world.configure(stalling=Stalling(max_kills_without_progress=9))
    run_id = await world.submit()
    world.set_entry(run_id, kills=2, endings=5)
    await world.write(await world.claim(run_id), ending=Restart(Raw(b"2")))
    entry = world.entry(run_id)
    assert (entry.kills, entry.endings, entry.attempt) == (0, 0, 1)


async def test_a_restart_under_a_cancel_is_the_end(world: World) -> None:
    """A run that is to be cancelled begins no generation: it is cancelled at the end of this one."""
    claim = await world.claim(await world.submit())
    await world.cancel(claim.run_id, now=False, reason="enough")
    await world.write(claim, ending=Restart(Raw(b"2")))
    assert (world.run(claim.run_id).status, world.run(claim.run_id).reason) == ("cancelled", "enough")


async def test_a_restart_under_a_pause_is_paused(world: World) -> None:
    """A request to pause is met by the restart: the next generation begins when the run is resumed."""
    claim = await world.claim(await world.submit())
    await control.pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "x")
    await world.write(claim, ending=Restart(Raw(b"2")))
    assert (world.run(claim.run_id).status, world.run(claim.run_id).generation) == ("paused", 1)


@pytest.mark.parametrize("size", [limits.MAX_PAYLOAD, limits.MAX_PAYLOAD + 1])
async def test_a_restart_carries_as_much_as_a_submit(world: World, size: int) -> None:
    """The next input is bounded like the first, and what is too large leaves the claim as it is."""
    claim = await world.claim(await world.submit())
    ending = Restart(Raw(b'"' + b"x" * (size - 2) + b'"'))
    if size > limits.MAX_PAYLOAD:
        with refused("payload_too_large"):
            await world.write(claim, ending=ending)
        assert await world.is_held(claim)
    else:
        await world.write(claim, ending=ending)
        assert len(world.run(claim.run_id).input) == size
