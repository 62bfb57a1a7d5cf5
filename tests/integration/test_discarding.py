"""Requeueing a diverged run on another version, and without the records its code does not ask for."""

import json
from typing import Any

import pytest

from endpoint_sdk.wire.messages import RecordIn, Stall
from tests.integration.world import Claim, World, details, failed, refused, task


def _diverged(*numbers: int, **more: Any) -> Stall:
    recorded = [{"kind": "task", "name": "x", "ordinal": 0, "preview": None, "seq": number} for number in numbers]
    return Stall("divergence", {"recorded": recorded, "new": [], "message": "", **more})


async def _stalled(world: World, stall: Stall, *written: RecordIn) -> Claim:
    claim = await world.claim(await world.submit())
    await world.write(claim, *written, ending=stall)
    return claim


async def test_what_was_not_asked_for_is_discarded(world: World) -> None:
    """Listed records are gone, each with the attempts of its call; the others stay, and the history says how many."""
    claim = await _stalled(
        world,
        _diverged(4),
        task("kept"),
        failed("kept", ordinal=1, next_attempt_at="2026-01-01T00:00:00Z"),
        failed("gone", next_attempt_at="2026-01-01T00:00:00Z"),
        task("gone", attempt=2),
    )
    await world.requeue(claim.run_id, discard_unconsumed=True)
    assert [(row.name, row.ordinal) for row in world.records(claim.run_id)] == [("kept", 0), ("kept", 1)]
    assert details(world.history(claim.run_id)[-1]) == {"discarded": 2}
    assert world.status(claim.run_id)[0] == "queued"


async def test_more_than_the_stall_shows_is_discarded(world: World) -> None:
    """A stall that lists all numbers beside the first few it shows has all of them discarded."""
    claim = await _stalled(world, _diverged(1, unconsumed=[1, 3]), task("a"), task("b"), task("c"))
    await world.requeue(claim.run_id, discard_unconsumed=True)
    assert [row.name for row in world.records(claim.run_id)] == ["b"]


async def test_a_discarded_event_waits_in_the_mailbox_again(world: World) -> None:
    """The record of a received event is discarded, not the event: another wait for one of its name gets it."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.event("go"))
    await world.send(claim.run_id, "go", b"7")
    claim = await world.claim(claim.run_id)
    await world.write(claim, ending=_diverged(1))
    await world.requeue(claim.run_id, discard_unconsumed=True)
    assert [(event.name, event.consumed) for event in world.mailbox(claim.run_id)] == [("go", None)]
    assert world.records(claim.run_id) == []
    claim = await world.claim(claim.run_id)
    answer = await world.park(claim, world.event("go", 0), signal_seq=world.run(claim.run_id).signal_seq)
    assert [(signal.name, bytes(signal.value)) for signal in answer.signals] == [("go", b"7")]  # type: ignore[arg-type]


@pytest.mark.parametrize("listed", ["[]", '"text"', '[{"seq": "1"}, {"seq": true}, {"seq": -1}, 7]', "null"])
async def test_nothing_is_discarded_where_nothing_is_listed(world: World, listed: str) -> None:
    """Without numbers of records in its stall, whatever else stands there, a run is not requeued by this."""
    claim = await _stalled(world, Stall("divergence", {"recorded": json.loads(listed)}), task())
    with refused("nothing_to_discard"):
        await world.requeue(claim.run_id, discard_unconsumed=True)
    assert (world.status(claim.run_id)[0], len(world.records(claim.run_id))) == ("stalled", 1)


async def test_a_run_goes_on_with_another_version(world: World) -> None:
    """A requeue names the version the run goes on with: its queue is that version's, and the history tells of both."""
    claim = await _stalled(world, Stall("divergence"))
    await world.requeue(claim.run_id, version="2")
    assert world.run(claim.run_id).version == "2"
    assert world.entry(claim.run_id).queue == "default:order:2:default"
    assert details(world.history(claim.run_id)[-1]) == {"version": ["1", "2"]}


async def test_a_version_that_fits_in_no_queue_is_refused(world: World) -> None:
    """Names too long to be indexed together are refused, and the run stays stalled."""
    claim = await world.claim(await world.submit("\u00e9" * 200, pool="\u00e9" * 150))
    await world.write(claim, ending=Stall("divergence"))
    with refused("queue_too_long"):
        await world.requeue(claim.run_id, version="\u00e9" * 200)
    assert world.status(claim.run_id)[0] == "stalled"
