"""Children: started once by the claim holder of their parent, and their end told to it (infra/docs/protocol.md, I9)."""

import msgspec

from endpoint_sdk.wire.messages import ErrorObject
from tests.integration.families import (
    RESIZE,
    SHIP,
    child,
    completes,
    fails,
    many,
    outcome,
    parked,
    start,
    started,
    wait_for,
)
from tests.integration.world import World


async def test_a_child_is_born_ends_and_wakes_its_parent(world: World) -> None:
    """A child is queued at its start, its start recorded; its result wakes the parent that waits for it."""
    claim = await world.claim(await world.submit("family", pool="big", priority=7, tags={"a": "b"}))
    [ship] = await started(world, claim, child())
    row = world.run(ship)
    assert (row.status, row.parent_id, row.pool, row.priority, row.tags) == (
        "queued",
        claim.run_id,
        "big",
        7,
        '{"a":"b"}',
    )
    [record] = world.records(claim.run_id)
    assert (record.kind, record.name, record.phase, record.claim_id) == ("child", "ship", "started", claim.id)
    assert msgspec.json.decode(record.value or b"") == {"id": ship}
    assert (await world.park(claim, wait_for(SHIP))).parked
    assert world.status(claim.run_id) == ("awaiting_child", 2)
    await completes(world, ship, b'{"ok":1}')
    assert world.status(claim.run_id) == ("queued", 3)
    assert outcome(world, claim.run_id) == {"ok": 1}
    assert world.waits(claim.run_id) == []


async def test_c63_a_child_that_failed_is_told(world: World) -> None:
    """C63: a child that fails while its parent awaits its completion wakes the parent with that failure."""
    claim, [ship] = await parked(world, child())
    await fails(world, ship)
    assert world.status(claim.run_id) == ("queued", 3)
    told = outcome(world, claim.run_id)
    assert isinstance(told, ErrorObject)
    assert (told.type, told.message, told.retryable) == ("ChildFailed", "no", False)
    assert told.details["runId"] == ship
    assert (told.details["status"], told.details["type"], told.details["details"]) == ("failed", "Boom", {"a": 1})


async def test_the_last_of_many_wakes_the_parent_once(world: World) -> None:
    """Children that are waited for together wake their parent when the last has ended, and not before."""
    claim, ids = await parked(world, *many(3), waits=[RESIZE])
    assert world.waits(claim.run_id)[0].open == 3
    for number, run_id in enumerate(ids):
        assert world.status(claim.run_id) == ("awaiting_child", 2)
        assert world.waits(claim.run_id)[0].open == 3 - number
        await completes(world, run_id)
    assert world.status(claim.run_id) == ("queued", 3)
    assert outcome(world, claim.run_id, RESIZE) == {"total": 3}


async def test_a_repeat_starts_nothing_twice(world: World) -> None:
    """I6: the same children again are answered with the ids they have, and their call has one record."""
    claim = await world.claim(await world.submit("family"))
    first = await start(world, claim, child(), *many(2))
    again = await start(world, claim, child(), *many(2))
    assert [one.id for one in again.children] == [one.id for one in first.children]
    assert [one.created for one in first.children] == [True] * 3
    assert [one.created for one in again.children] == [False] * 3
    assert world.run(claim.run_id).children == 3
    assert [(row.kind, row.seq) for row in world.records(claim.run_id)] == [("child", 1), ("children", 2)]
