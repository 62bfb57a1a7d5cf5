"""The traps of parking: shortest traces by which other readings of it break, followed step by step.

Each test is named by the reading that fails; here the step at which it would fail is refused.
"""

import pytest

from dispatcher import control
from endpoint_sdk.wire.messages import Park, Progressed, Release
from endpoint_sdk.wire.operating import Nothing
from tests.integration.sessions import Pair
from tests.integration.world import HOUR_MS, IDLE_MS, NAMESPACE, Claim, World, refused, started, task


async def pause(world: World, run_id: str) -> None:
    await control.pause(world.store, world.settings, NAMESPACE, run_id, Nothing(), "operator")


async def resume(world: World, run_id: str) -> None:
    await control.resume(world.store, world.settings, NAMESPACE, run_id, Nothing(), "operator")


async def claimed(world: World, *before: str) -> Claim:
    """A claim with task 0 recorded, of a run that was sent the events *before* it was claimed."""
    run_id = await world.submit()
    for name in before:
        await world.send(run_id, name)
    claim = await world.claim(run_id)
    await world.write(claim, task("0"))
    return claim


# --- the first model
async def test_applied_park_refused_on_retry(world: World) -> None:
    """applied transition refused on retry (no request id)"""
    claim = await claimed(world)
    first = await world.park(claim, world.event("X"), request_id="req_p")
    assert await world.park(claim, world.event("X"), request_id="req_p") == first


async def test_park_mailbox_read_in_the_statements_snapshot(pair: Pair) -> None:
    """park: mailbox read in the statement's snapshot"""
    claim = await claimed(pair.one)
    event = await pair.begin(pair.one.send(claim.run_id, "X"))
    park = await pair.blocks(pair.other.park(claim, pair.other.event("X")))
    pair.commit()
    assert (await event).stored
    answer = await park
    assert answer.parked is False
    assert [signal.name for signal in answer.signals] == ["X"]


async def test_park_mailbox_read_in_the_statements_snapshot_won_by_the_park(pair: Pair) -> None:
    """park: mailbox read in the statement's snapshot: the event waits for the park, and wakes what it parked"""
    claim = await claimed(pair.one)
    park = await pair.begin(pair.one.park(claim, pair.one.event("X")))
    event = await pair.blocks(pair.other.send(claim.run_id, "X"))
    pair.commit()
    assert (await park).parked
    assert (await event).stored
    assert pair.one.status(claim.run_id) == ("queued", 3)
    assert [name for _, name, *_ in pair.one.outcomes(claim.run_id)] == ["X"]


async def test_park_no_re_check(world: World) -> None:
    """park: no re-check"""
    claim = await claimed(world)
    await world.send(claim.run_id, "X")
    assert (await world.park(claim, world.event("X"))).parked is False
    assert world.status(claim.run_id) == ("running", 1)


async def test_resume_without_re_evaluation(world: World) -> None:
    """resume without re-evaluation"""
    claim = await claimed(world)
    await pause(world, claim.run_id)
    assert (await world.park(claim, world.event("X"))).parked
    assert world.status(claim.run_id) == ("paused", 2)
    await world.send(claim.run_id, "X")
    assert world.status(claim.run_id) == ("paused", 2)
    await resume(world, claim.run_id)
    assert world.status(claim.run_id) == ("queued", 3)
    assert [name for _, name, *_ in world.outcomes(claim.run_id)] == ["X"]


async def test_pause_fences_at_once_resume_queues_at_once(world: World) -> None:
    """pause fences at once, resume queues at once"""
    run_id = await world.submit()
    claim = await world.claim(run_id)
    await pause(world, run_id)
    await resume(world, run_id)
    assert world.status(run_id) == ("running", 1)
    assert await world.is_held(claim)
    with refused("already_claimed"):
        await world.claim(run_id, 0)


# --- the second model: pause
async def test_resume_does_not_re_read_the_mailbox(world: World) -> None:
    """resume does not re-read the mailbox"""
    claim = await claimed(world)
    assert (await world.park(claim, world.event("X"))).parked
    await pause(world, claim.run_id)
    await world.send(claim.run_id, "X")
    await resume(world, claim.run_id)
    assert world.status(claim.run_id)[0] == "queued"


async def test_a_park_under_a_pause_lands_whatever_the_mailbox(world: World) -> None:
    """a park under a pause lands whatever the mailbox (late copy of a refused park)"""
    claim = await claimed(world, "X")
    assert (await world.park(claim, world.event("X"), request_id="req_p")).parked is False
    await pause(world, claim.run_id)
    late = await world.park(claim, world.event("X"), request_id="req_p")
    assert (late.parked, late.stop) == (False, "pause")
    await world.write(claim, ending=Release("pause"))
    assert world.status(claim.run_id) == ("paused", 2)


async def test_a_park_drops_the_pause_request(world: World) -> None:
    """a park drops the pause request"""
    claim = await claimed(world)
    await pause(world, claim.run_id)
    await world.park(claim, world.event("X"))
    assert world.status(claim.run_id) == ("paused", 2)
    assert world.run(claim.run_id).stop is None


async def test_a_park_under_a_pause_parks_the_request_stands(world: World) -> None:
    """a park under a pause parks, the request stands"""
    claim = await claimed(world)
    await pause(world, claim.run_id)
    await world.park(claim, world.sleep())
    assert (world.status(claim.run_id)[0], world.run(claim.run_id).parked_as) == ("paused", "sleeping")
    assert len(world.waits(claim.run_id)) == 1
    await resume(world, claim.run_id)
    assert world.status(claim.run_id) == ("sleeping", 3)


async def test_a_stall_keeps_the_pause_request(world: World) -> None:
    """a stall keeps the pause request"""
    run_id = await world.submit()
    for kills in (1, 2, 3):
        claim = await world.claim(run_id)
        if kills == 3:
            await pause(world, run_id)
        world.elapse(IDLE_MS + 1_000)
        await world.recovers()
    assert world.status(run_id)[0] == "stalled"
    assert world.run(run_id).stop is None
    with refused("revision_conflict"):
        await world.write(claim)


async def test_recovery_under_a_pause_lands_in_paused(world: World) -> None:
    """pause: whatever returns a run to the queue pauses it while the request stands"""
    claim = await claimed(world)
    await pause(world, claim.run_id)
    world.elapse(IDLE_MS + 1_000)
    await world.recovers()
    assert world.status(claim.run_id) == ("paused", 2)
    await resume(world, claim.run_id)
    assert world.status(claim.run_id) == ("queued", 3)


# --- the second model: cancel requests
async def test_an_untold_park_under_a_cancel_is_accepted(world: World) -> None:
    """an untold park under a cancel is accepted"""
    claim = await claimed(world)
    world.set_run(claim.run_id, stop="cancel")
    answer = await world.park(claim, world.event("X"))
    assert (answer.parked, answer.stop) == (False, "cancel")
    assert world.status(claim.run_id) == ("running", 1)


async def test_an_untold_park_under_a_cancel_is_queued_without_the_park_check(world: World) -> None:
    """an untold park under a cancel is queued without the park check (late copy of a refused park)"""
    claim = await claimed(world, "X")
    assert (await world.park(claim, world.event("X"), request_id="req_p")).parked is False
    world.set_run(claim.run_id, stop="cancel")
    await world.write(claim, started("1"))
    assert (await world.park(claim, world.event("X"), request_id="req_p")).parked is False
    assert world.status(claim.run_id) == ("running", 1)
    assert await world.is_held(claim)


@pytest.mark.parametrize("title", ["is queued at once", "is refused"])
async def test_a_told_park(world: World, title: str) -> None:
    """a told park (compensation retry) is queued at once; a told park (compensation retry) is refused"""
    claim = await claimed(world)
    await world.send(claim.run_id, "noise")
    world.set_run(claim.run_id, stop="cancel")
    assert (await world.park(claim, world.retry(HOUR_MS), told=True)).parked, title
    assert world.status(claim.run_id) == ("awaiting_retry", 2)
    await world.send(claim.run_id, "noise")
    assert await world.fires() == 0
    world.elapse(HOUR_MS + 1)
    assert await world.fires() == 1
    grant = await world.grant(claim.run_id, 3, "clm_2")
    assert grant.stop == "cancel"


# --- the second model: refused parks
async def test_park_compares_signal_seq_alone(world: World) -> None:
    """park compares signalSeq alone (grant's number)"""
    claim = await claimed(world, "X")
    seen = world.run(claim.run_id).signal_seq
    answer = await world.park(claim, world.event("X"), signal_seq=seen)
    assert (answer.parked, len(answer.signals)) == (False, 1)


async def test_park_compares_signal_seq_alone_two_waits(world: World) -> None:
    """park compares signalSeq alone (first park sends 0), two waits"""
    claim = await claimed(world, "X", "Y")
    first = await world.park(claim, world.event("X"))
    assert first.parked is False
    second = await world.park(claim, world.event("Y"), signal_seq=first.signal_seq)
    assert [signal.name for signal in second.signals] == ["X", "Y"]


async def test_park_looks_for_unanswered_mailbox_entries(world: World) -> None:
    """park looks for unanswered mailbox entries, not for outcome records (retry of a refused park)"""
    claim = await claimed(world, "X")
    first = await world.park(claim, world.event("X"), request_id="req_p")
    again = await world.park(claim, world.event("X"), request_id="req_p")
    assert (first.parked, again.parked) == (False, False)
    assert again.signals == first.signals


async def test_park_looks_for_unanswered_mailbox_entries_with_signal_seq(world: World) -> None:
    """same, with signalSeq beside it"""
    claim = await claimed(world, "X")
    for _ in range(2):
        answer = await world.park(claim, world.event("X"), request_id="req_p", signal_seq=1)
        assert (answer.parked, len(answer.signals)) == (False, 1)


async def test_a_refused_park_drops_the_records_sent_with_it(world: World) -> None:
    """a refused park drops the records sent with it"""
    run_id = await world.submit()
    await world.send(run_id, "X")
    claim = await world.claim(run_id)
    await world.write(claim, task("0"), ending=Park([world.event("X")]))
    await world.write(claim, task("1"))
    assert [row.name for row in world.records(run_id)] == ["0", "X", "1"]


async def test_a_refused_park_writes_no_outcome_record(world: World) -> None:
    """a refused park writes no outcome record"""
    claim = await claimed(world, "X")
    await world.park(claim, world.event("X"))
    await world.write(claim, task("1"))
    assert [row.name for row in world.records(claim.run_id)] == ["0", "X", "1"]


async def test_a_refused_park_moves_the_revision(world: World) -> None:
    """a refused park moves the revision"""
    claim = await claimed(world, "X")
    assert (await world.park(claim, world.event("X"))).revision == claim.revision
    assert (await world.write(claim, started("1"))).revision == claim.revision


async def test_a_refused_park_returns_only_what_this_call_wrote(world: World) -> None:
    """a refused park returns only what this call wrote"""
    claim = await claimed(world, "X")
    await world.park(claim, world.event("X"), request_id="req_p")
    await world.park(claim, world.event("X"), request_id="req_p")
    answer = await world.park(claim, world.event("X"), request_id="req_q")
    assert [signal.name for signal in answer.signals] == ["X"]


async def test_only_a_refused_park_returns_outcome_records(world: World) -> None:
    """only a refused park returns outcome records (late copy of a refused park), gather"""
    claim = await claimed(world, "Y")
    both = (world.event("X"), world.event("Y"))
    first = await world.park(claim, *both, request_id="req_p")
    assert [signal.name for signal in first.signals] == ["Y"]
    await world.send(claim.run_id, "X")
    await world.write(claim, started("1"), signals_after=first.signals[-1].seq)
    await world.park(claim, *both, request_id="req_p")
    answer = await world.write(claim, task("1"), signals_after=first.signals[-1].seq)
    assert [signal.name for signal in answer.signals] == ["X"]
    ended = {row.name: row.seq for row in world.records(claim.run_id) if row.phase == "ended"}
    assert ended["X"] < ended["1"], "the handler is handed X first, as replay will"


# --- the second model: repeats
async def test_request_id_of_the_last_transition_only(world: World) -> None:
    """request id of the last transition only"""
    claim = await claimed(world)
    park = Park([world.event("X")])
    await world.write(claim, task("1"), ending=park, request_id="req_p")
    await world.send(claim.run_id, "X")
    assert await world.write(claim, task("1"), ending=park, request_id="req_p") == Progressed(2, parked=True)


async def test_no_request_id_on_the_ending(world: World) -> None:
    """no request id on the ending; fence first, request id after"""
    claim = await claimed(world)
    for _ in range(2):
        assert await world.park(claim, world.event("X"), request_id="req_p") == Progressed(2, parked=True)
    with refused("revision_conflict"):
        await world.park(claim, world.event("X"), request_id="req_q")


async def test_records_not_keyed_by_address(world: World) -> None:
    """records not keyed by address"""
    claim = await claimed(world)
    await world.write(claim, task("0"))
    await world.write(claim, task("0"), ending=Park([world.event("X")]))
    assert [row.name for row in world.records(claim.run_id)] == ["0"]
