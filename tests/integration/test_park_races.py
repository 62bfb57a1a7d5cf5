"""Races of a park: whatever lands at any point of it, on either side of its lock, is seen once (I9).

Two sessions of PostgreSQL; on SQLite one thread does everything, so that every order is one of these.
"""

import asyncio
import contextlib

import pytest
from msgspec import Raw

from dispatcher import control, errors
from endpoint_sdk.wire.messages import Complete, Release
from endpoint_sdk.wire.operating import Nothing
from tests.integration.sessions import Pair
from tests.integration.world import HOUR_MS, IDLE_MS, NAMESPACE, Claim, World, refused, task


async def test_four_senders_to_one_parked_run(pair: Pair) -> None:
    """Senders queue on the run's row, none is refused: four at once to a parked run are all stored, one wakes it."""
    claim = await pair.one.claim(await pair.one.submit())
    await pair.one.park(claim, pair.one.event())
    first = await pair.begin(pair.one.send(claim.run_id, value=b"0"))
    others = [asyncio.create_task(pair.other.send(claim.run_id, value=b"%d" % number)) for number in (1, 2, 3)]
    last = await pair.blocks(pair.other.send(claim.run_id, value=b"4"))
    pair.commit()
    assert all(sent.stored for sent in await asyncio.gather(first, last, *others))
    mailbox = pair.one.mailbox(claim.run_id)
    assert [event.number for event in mailbox] == [1, 2, 3, 4, 5]
    assert [event.consumed for event in mailbox] == [1, None, None, None, None]
    assert pair.one.status(claim.run_id) == ("queued", 3)


async def test_one_event_sent_twice_at_once(pair: Pair) -> None:
    """I6: a copy of an event that waited for the first finds it."""
    run_id = await pair.one.submit()
    first = await pair.begin(pair.one.send(run_id, event_id="e"))
    second = await pair.blocks(pair.other.send(run_id, event_id="e"))
    pair.commit()
    assert ((await first).stored, (await second).stored) == (True, False)
    assert len(pair.one.mailbox(run_id)) == 1


async def test_a_timer_leaves_out_a_run_that_an_event_wakes(pair: Pair) -> None:
    """A run whose deadline came while an event wakes it has the outcome of the event, and is queued once."""
    claim = await pair.one.claim(await pair.one.submit())
    await pair.one.park(claim, pair.one.event(within_ms=HOUR_MS), pair.one.sleep(1_000))
    pair.one.elapse(2_000)
    event = await pair.begin(pair.one.send(claim.run_id))
    assert await pair.other.fires() == 0
    pair.commit()
    await event
    assert await pair.other.fires() == 0
    assert pair.one.status(claim.run_id) == ("queued", 3)
    assert [kind for kind, *_ in pair.one.outcomes(claim.run_id)] == ["sleep", "event"]


async def test_an_event_that_waits_for_a_timer_is_stored(pair: Pair) -> None:
    """An event that ran into the timeout of its wait finds the run queued, and stays for the next wait."""
    claim = await pair.one.claim(await pair.one.submit())
    await pair.one.park(claim, pair.one.event(within_ms=1_000))
    pair.one.elapse(2_000)
    fired = await pair.begin(pair.one.timers.once())
    event = await pair.blocks(pair.other.send(claim.run_id))
    pair.commit()
    assert (await fired)["fired"] == 1
    assert (await event).stored
    assert [state for *_, state, _ in pair.one.outcomes(claim.run_id)] == ["failed"]
    assert [event.consumed for event in pair.one.mailbox(claim.run_id)] == [None]
    grant = await pair.other.grant(claim.run_id, 3, "clm_2")
    assert grant.signal_seq == 1


async def test_a_deadline_that_passes_during_a_park(pair: Pair) -> None:
    """A park that commits after its deadline is fired by the next tick, once."""
    claim = await pair.one.claim(await pair.one.submit())
    park = await pair.begin(pair.one.park(claim, pair.one.sleep(1_000)))
    pair.other.elapse(2_000)
    assert await pair.other.fires() == 0
    pair.commit()
    assert (await park).parked
    assert await pair.other.fires() == 1
    assert pair.one.status(claim.run_id) == ("queued", 3)


async def test_a_pause_that_waits_for_a_park(pair: Pair) -> None:
    """A pause that ran into a park finds no entry and a parked run; asked again it pauses that."""
    claim = await pair.one.claim(await pair.one.submit())
    park = await pair.begin(pair.one.park(claim, pair.one.event()))
    world = pair.other
    pause = await pair.blocks(
        control.pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    )
    pair.commit()
    assert (await park).parked
    assert (await pause).status == "paused"
    assert pair.one.run(claim.run_id).parked_as == "awaiting_event"


async def test_a_park_that_waits_for_a_pause(pair: Pair) -> None:
    """A park that ran into a pause of its run lands in paused, its waits kept."""
    claim = await pair.one.claim(await pair.one.submit())
    world = pair.one
    pause = await pair.begin(control.pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator"))
    park = await pair.blocks(pair.other.park(claim, world.event()))
    pair.commit()
    assert (await pause).stop == "pause"
    assert (await park).parked
    assert pair.one.status(claim.run_id) == ("paused", 2)
    assert len(pair.one.waits(claim.run_id)) == 1


async def test_a_cancel_that_waits_for_a_park(pair: Pair) -> None:
    """Cancel-now that ran into a park ends the parked run, and no timer fires it."""
    claim = await pair.one.claim(await pair.one.submit())
    park = await pair.begin(pair.one.park(claim, pair.one.sleep(1_000)))
    cancel = await pair.blocks(pair.other.cancel(claim.run_id))
    pair.commit()
    assert (await park).parked
    assert (await cancel).status == "cancelled"
    pair.one.elapse(2_000)
    assert await pair.one.fires() == 0


async def test_a_wake_and_an_event_at_once(pair: Pair) -> None:
    """Whoever comes second to a parked run finds it queued: the outcome of the first stands."""
    claim = await pair.one.claim(await pair.one.submit())
    await pair.one.park(claim, pair.one.event())
    world = pair.other
    event = await pair.begin(pair.one.send(claim.run_id))
    wake = await pair.blocks(control.wake(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator"))
    pair.commit()
    await event
    with refused("illegal_transition"):
        await wake
    assert [state for *_, state, _ in pair.one.outcomes(claim.run_id)] == ["completed"]


class Journey:
    """A run driven to its end: claimed, one task recorded, parked for an event, completed, one step a turn."""

    def __init__(self, world: World, run_id: str) -> None:
        self.world = world
        self.run_id = run_id
        self.claim: Claim | None = None
        self.seen = 0
        self.sent = 0

    async def sends(self) -> None:
        self.sent += (await self.world.send(self.run_id, value=b"7")).stored

    async def operate(self, verb: str) -> None:
        """What an operator does; where it makes no sense it is refused, which is right too."""
        operation = {"pause": control.pause, "resume": control.resume, "wake": control.wake}[verb]
        with contextlib.suppress(errors.Conflict):
            await operation(self.world.store, self.world.settings, NAMESPACE, self.run_id, Nothing(), "operator")

    async def lands(self, what: str) -> None:
        if what == "event":
            await self.sends()
        elif what == "timeout":
            self.world.elapse(2 * HOUR_MS)
            await self.world.fires()
        elif what == "recovery":
            self.world.elapse(IDLE_MS + 1_000)
            await self.world.recovers()
        elif what == "cancel":
            await self.world.cancel(self.run_id)
        else:
            await self.operate(what)

    async def turn(self) -> None:
        """The next step of whoever has to take one."""
        status = self.world.run(self.run_id).status
        if status == "paused":
            await self.operate("resume")
        elif status == "queued":
            self.claim = await self.world.claim(self.run_id)
            self.seen = self.world.run(self.run_id).signal_seq
        elif status == "awaiting_event":
            await self.sends()
        elif status == "running" and self.claim is not None:
            await self._executes(self.claim)

    async def _executes(self, claim: Claim) -> None:
        records = self.world.records(self.run_id)
        if self.world.run(self.run_id).stop == "pause":
            await self.world.write(claim, ending=Release("pause"))
        elif not any(row.kind == "task" for row in records):
            await self.world.write(claim, task())
        elif any(row.kind == "event" for row in records):
            await self.world.write(claim, ending=Complete(Raw(b"1")))
        else:
            answer = await self.world.park(claim, self.world.event(within_ms=HOUR_MS), signal_seq=self.seen)
            self.seen = answer.signal_seq


LANDING = ("event", "timeout", "recovery", "pause", "resume", "wake", "cancel")


@pytest.mark.parametrize("point", range(6))
@pytest.mark.parametrize("what", LANDING)
async def test_landing_at_every_point_of_a_park(world: World, what: str, point: int) -> None:
    """Whatever lands before any step of a run that parks: it comes to its end, no outcome or event lost or doubled."""
    journey = Journey(world, await world.submit())
    for turn in range(12):
        if turn == point:
            await journey.lands(what)
        await journey.turn()
    status, _ = world.status(journey.run_id)
    ended = world.history(journey.run_id)[-1]
    assert status == ("cancelled" if ended.actor == "operator" else "completed")
    outcomes = len(world.outcomes(journey.run_id))
    assert outcomes == 1 or (outcomes == 0 and status == "cancelled")
    assert len([row for row in world.records(journey.run_id) if row.kind == "task"]) <= 1
    mailbox = world.mailbox(journey.run_id)
    assert len(mailbox) == journey.sent
    assert [event.consumed is not None for event in mailbox] == sorted(
        (event.consumed is not None for event in mailbox), reverse=True
    )
