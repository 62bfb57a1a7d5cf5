"""Recovery: what goes stale and what does not, and what becomes of it."""

import pytest
from msgspec import Raw

from dispatcher.settings import Stalling
from endpoint_sdk.wire.messages import Complete, RecordIn
from tests.integration.world import HOUR_MS, IDLE_MS, World, claims, details, failed, refused, started, task


async def test_a_silent_claim_is_released(world: World) -> None:
    """A claim silent for the idle timeout is queued again, one revision on, deliverable at once, and says why."""
    [claim] = await claims(world, 1)
    world.elapse(IDLE_MS + 1_000)
    assert await world.recovers() == {"released": 1, "stalled": 0, "redelivered": 0, "more": 0}
    entry = world.entry(claim.run_id)
    last = world.history(claim.run_id)[-1]
    assert world.status(claim.run_id) == ("queued", 2)
    assert (entry.status, entry.kills, entry.endings, entry.claim_id, entry.publisher) == ("pending", 1, 1, None, None)
    assert entry.next_publish_at <= world.now()
    assert (last.reason, last.actor) == ("claim_stale", "recovery")
    assert details(last)["kills"] == 1


async def test_kills_back_off(world: World) -> None:
    """I10: redelivery after a kill comes after 0, 5 s, 10 s, 20 s …, each within ten percent."""
    world.configure(stalling=Stalling(max_kills_without_progress=20, max_endings_without_progress=20))
    run_id = await world.submit()
    for expected in (0, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000):
        await world.claim(run_id)
        world.elapse(IDLE_MS + 1_000)
        assert (await world.recovers())["released"] == 1
        entry = world.entry(run_id)
        assert entry.next_publish_at - entry.queued_at == pytest.approx(expected, rel=0.1, abs=500)
        world.elapse(10_000)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (("transcode", "transcode", "transcode"), "killed_at_step"),
        (("transcode", "thumbnail", "transcode"), "crash_loop"),
        (("thumbnail", "transcode", "transcode"), "crash_loop"),
        ((None, "transcode", "transcode"), "crash_loop"),
        ((None, None, None), "crash_loop"),
    ],
)
async def test_three_kills_at_the_same_step_stall(world: World, steps: tuple[str | None, ...], reason: str) -> None:
    """C20: a step longer than its host allows kills three claims, then the run stalls and says where.

    Where the executor told what it was in, and it was the same task each time, that is the reason.
    """
    run_id = await world.submit()
    claim = await world.claim(run_id)
    await world.write(claim, task("reserve"))
    for killed, step in enumerate(steps):
        assert world.status(run_id)[0] == "running", killed
        if step is not None:
            assert (await world.refresh(claim, step=step)).held
        world.elapse(IDLE_MS + 1_000)
        await world.recovers()
        if killed < 2:
            claim = await world.claim(run_id)
    assert world.status(run_id) == ("stalled", 6)
    assert world.run(run_id).reason == reason
    told = details(world.history(run_id)[-1])
    assert told["lastRecord"]["name"] == "reserve"
    assert (told["killed"]["step"], told["killed"]["cause"]) == (steps[-1], "claim_stale")
    assert told["killed"]["heldMs"] >= IDLE_MS


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (started("pay"), "killed_at_step"),
        (failed("pay", next_attempt_at="2026-01-01T00:00:00Z"), "killed_at_step"),
        (failed("pay"), "crash_loop"),
        (task("pay"), "crash_loop"),
    ],
)
async def test_kills_at_a_step_that_was_started_or_next(world: World, record: RecordIn, reason: str) -> None:
    """C20: also without a word of the executor, a task that was started, or was to be tried again, is known."""
    run_id = await world.submit()
    await world.write(await world.claim(run_id), record)
    for killed in range(3):
        world.elapse(IDLE_MS + 1_000)
        await world.recovers()
        if killed < 2:
            await world.claim(run_id)
    assert (world.run(run_id).status, world.run(run_id).reason) == ("stalled", reason)


async def test_progress_between_kills_clears_them(world: World) -> None:
    """I10: a claim that records something new starts the count of kills again; it is killed once, not thrice."""
    run_id = await world.submit()
    for number in range(5):
        claim = await world.claim(run_id)
        await world.write(claim, task("step", number))
        world.elapse(IDLE_MS + 1_000)
        assert (await world.recovers())["released"] == 1
        assert world.entry(run_id).kills == 1


async def test_a_refreshed_claim_stays(world: World) -> None:
    """I4: a claim refreshed within the idle timeout is not released, however long it runs."""
    claim, idle = await claims(world, 2)
    for _ in range(10):
        world.elapse(60_000)
        assert await world.is_held(claim)
        await world.recovers()
    assert world.status(claim.run_id) == ("running", 1)
    assert world.status(idle.run_id) == ("queued", 2)


async def test_claim_lost_while_a_task_runs(world: World) -> None:
    """C10: lost at 90 s, the task done at 120 s: its write is refused, and the run has one result."""
    [old] = await claims(world, 1)
    world.elapse(IDLE_MS + 1_000)
    await world.recovers()
    new = await world.claim(old.run_id)
    world.elapse(30_000)
    with refused("revision_conflict"):
        await world.write(old, task("charge", value=b'"old"'), ending=Complete(Raw(b'"old"')))
    await world.write(new, task("charge", value=b'"new"'), ending=Complete(Raw(b'"new"')))
    assert [row.value for row in world.records(old.run_id)] == [b'"new"']
    assert world.run(old.run_id).result == b'"new"'


async def test_endpoint_paused_for_a_minute_is_left_alone(world: World) -> None:
    """C19: 60 s of silence is nothing, 100 s is a kill, and the woken executor is fenced."""
    [claim] = await claims(world, 1)
    for _ in range(6):
        world.elapse(10_000)
        assert (await world.recovers())["released"] == 0
    assert await world.is_held(claim)
    released = 0
    for _ in range(10):
        world.elapse(10_000)
        released += (await world.recovers())["released"]
    assert released == 1
    assert not await world.is_held(claim)
    with refused("revision_conflict"):
        await world.write(claim, task())


async def test_a_killed_executor_is_replaced_within_the_idle_timeout(world: World) -> None:
    """C21: the claim of a dead executor is taken again one tick after its idle timeout."""
    [claim] = await claims(world, 1)
    waited = 0
    while world.status(claim.run_id)[0] == "running":
        waited += 10_000
        world.elapse(10_000)
        await world.recovers()
    assert IDLE_MS <= waited <= IDLE_MS + 10_000
    assert (await world.claim(claim.run_id)).revision == 3


async def test_a_thawed_executor_is_refused(world: World) -> None:
    """C22: frozen five minutes, whatever the executor does first is refused: a write, a refresh, its claim again."""
    [claim] = await claims(world, 1)
    for _ in range(30):
        world.elapse(10_000)
        await world.recovers()
    with refused("stale_delivery"):
        await world.claim(claim.run_id, 0, claim.id)
    with refused("revision_conflict"):
        await world.write(claim, task())
    assert not await world.is_held(claim)


async def test_a_long_run_that_crashes_is_redelivered(world: World) -> None:
    """C24: a run that executed for longer than the stall age and then crashed is delivered again, not stalled."""
    [claim] = await claims(world, 1)
    for _ in range(26):
        world.elapse(HOUR_MS)
        world.set_entry(claim.run_id, refreshed_at=world.now(), recorded_at=world.now())
    world.elapse(IDLE_MS + 1_000)
    assert (await world.recovers())["released"] == 1
    assert (await world.stalling.once())["stalled"] == 0
    assert world.status(claim.run_id) == ("queued", 2)


async def test_a_crash_is_never_the_users_failure(world: World) -> None:
    """C25: a run whose executor crashed in a task goes on: nothing failed, no attempt of the task is spent."""
    [claim] = await claims(world, 1)
    await world.write(claim, task("reserve"))
    world.elapse(IDLE_MS + 1_000)
    await world.recovers()
    grant = await world.grant(claim.run_id, 2, "clm_b")
    assert [record.name for record in grant.records] == ["reserve"]
    assert grant.run.attempt == 1
    assert world.run(claim.run_id).error is None


async def test_a_claim_without_a_record_for_a_day_is_a_kill(world: World) -> None:
    """Refreshing for ever is not living: no new record for `maxSilenceMs` ends the claim."""
    silent, busy = await claims(world, 2)
    for hour in range(25):
        world.elapse(HOUR_MS)
        await world.refresh(silent, busy)
        await world.write(busy, task("step", hour))
        await world.recovers()
    assert world.status(silent.run_id) == ("queued", 2)
    assert world.entry(silent.run_id).kills == 1
    assert world.status(busy.run_id) == ("running", 1)


async def test_overdue_deliveries_are_counted_and_redelivered(world: World) -> None:
    """A push unclaimed at its deadline is a counted ending, pushed again after a backoff."""
    run_id = await world.submit()
    world.publish(run_id)
    world.elapse(29_000)
    assert (await world.recovers())["redelivered"] == 0
    world.elapse(2_000)
    assert (await world.recovers())["redelivered"] == 1
    entry = world.entry(run_id)
    assert (entry.status, entry.endings, entry.failures, entry.publisher) == ("pending", 1, 1, None)
    assert world.status(run_id) == ("queued", 0)
    assert 0 < entry.next_publish_at - world.now() <= 5_000


async def test_overdue_deliveries_stall_at_the_limit(world: World) -> None:
    """I10: the tenth delivery nobody claimed stalls the run."""
    run_id = await world.submit()
    world.publish(run_id, push_number=10, due_in_ms=-1, endings=9)
    assert (await world.recovers())["redelivered"] == 1
    assert world.status(run_id) == ("stalled", 1)
    assert world.run(run_id).reason == "undeliverable"
    assert world.run(run_id).deliveries == 10
    assert details(world.history(run_id)[-1])["lastOutcome"] == "unclaimed"


async def test_more_is_asked_for_while_work_is_left(world: World) -> None:
    """A tick that ended for its pace asks for another, one that ended for lack of work does not."""
    await claims(world, 12)
    world.elapse(IDLE_MS + 1_000)
    counts = await world.recovers()
    assert (counts["released"], counts["more"]) == (10, 1)
    released = 10
    while counts["more"]:
        world.elapse(100)
        counts = await world.recovers()
        released += counts["released"]
    assert released == 12
