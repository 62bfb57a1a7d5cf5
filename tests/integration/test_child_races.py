"""Races of a child's end with its parent's park: whichever comes first, the parent goes on, once (I9).

Two sessions of PostgreSQL; on SQLite one thread does everything, so that every order is one of these.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec import Raw

from dispatcher import control
from dispatcher.store.waits import Address
from endpoint_sdk.wire.child_messages import ChildStart
from endpoint_sdk.wire.messages import Complete, Ending, ErrorObject, Fail, Progressed
from endpoint_sdk.wire.operating import Nothing
from tests.integration.families import RESIZE, SHIP, child, many, outcome, parked, start, started, wait_for
from tests.integration.sessions import Pair
from tests.integration.world import NAMESPACE, Claim, World

COMPLETE = Complete(Raw(b"2"))
FAIL = Fail(ErrorObject("Boom", "no"))
ONE: list[ChildStart] = [child()]
SHAPES: dict[str, tuple[Address, list[ChildStart], Ending]] = {
    "one": (SHIP, ONE, COMPLETE),
    "one that fails": (SHIP, ONE, FAIL),
    "many": (RESIZE, many(1), COMPLETE),
}


def ends(world: World, claim: Claim, ending: Ending) -> Coroutine[Any, Any, Progressed]:
    """The write with which a child's executor ends it."""
    return world.write(claim, ending=ending)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_child_that_ends_while_its_parent_parks(pair: Pair, shape: str) -> None:
    """C63: an end that waits for the park of its parent finds that parked, and wakes it."""
    address, starts, ending = SHAPES[shape]
    claim = await pair.one.claim(await pair.one.submit("family"))
    [run_id] = await started(pair.one, claim, *starts)
    of_child = await pair.one.claim(run_id)
    park = await pair.begin(pair.one.park(claim, wait_for(address)))
    end = await pair.blocks(ends(pair.other, of_child, ending))
    pair.commit()
    assert (await park).parked
    await end
    assert pair.one.status(claim.run_id) == ("queued", 3)
    assert outcome(pair.one, claim.run_id, address) is not None


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_parent_that_parks_while_its_child_ends(pair: Pair, shape: str) -> None:
    """C63: a park that waits for the end of a child is refused with its outcome, and so is every copy of it."""
    address, starts, ending = SHAPES[shape]
    claim = await pair.one.claim(await pair.one.submit("family"))
    [run_id] = await started(pair.one, claim, *starts)
    of_child = await pair.one.claim(run_id)
    end = await pair.begin(ends(pair.one, of_child, ending))
    park = await pair.blocks(pair.other.park(claim, wait_for(address)))
    pair.commit()
    await end
    answer = await park
    assert answer.parked is False
    assert [(signal.kind, signal.phase) for signal in answer.signals] == [(address.kind, "ended")]
    assert (await pair.other.park(claim, wait_for(address))).parked is False
    assert pair.one.status(claim.run_id) == ("running", 1)


@pytest.mark.parametrize("together", [True, False])
async def test_two_children_that_end_at_once(pair: Pair, together: bool) -> None:
    """The second to end waits for the first: waited for together they wake their parent once, with both counted."""
    starts = many(2) if together else [child(0), child(1)]
    waited: list[Address] = [RESIZE] if together else [SHIP, SHIP._replace(ordinal=1)]
    claim, ids = await parked(pair.one, *starts, waits=waited)
    first, second = [await pair.one.claim(run_id) for run_id in ids]
    one = await pair.begin(ends(pair.one, first, COMPLETE))
    other = await pair.blocks(ends(pair.other, second, COMPLETE))
    pair.commit()
    await asyncio.gather(one, other)
    assert pair.one.status(claim.run_id) == ("queued", 3)
    if together:
        assert outcome(pair.one, claim.run_id, RESIZE) == {"total": 2}
    else:
        assert [outcome(pair.one, claim.run_id, address) for address in waited] == [2, None]
        again = await pair.one.claim(claim.run_id)
        answer = await pair.one.park(again, wait_for(waited[1]))
        assert answer.parked is False
        assert outcome(pair.one, claim.run_id, waited[1]) == 2


async def test_a_start_that_is_sent_twice_at_once(pair: Pair) -> None:
    """I6: a copy of a start that waits for the first is answered with the same child."""
    claim = await pair.one.claim(await pair.one.submit("family"))
    one = await pair.begin(start(pair.one, claim, *many(3)))
    other = await pair.blocks(start(pair.other, claim, *many(3)))
    pair.commit()
    first, second = await asyncio.gather(one, other)
    assert [item.id for item in first.children] == [item.id for item in second.children]
    assert not any(item.created for item in second.children)


async def test_a_parent_cancelled_while_its_child_ends(pair: Pair) -> None:
    """An end that waits for the cancel of its parent finds that over, and does nothing to it."""
    claim, [run_id] = await parked(pair.one, child())
    of_child = await pair.one.claim(run_id)
    cancel = await pair.begin(pair.one.cancel(claim.run_id))
    end = await pair.blocks(ends(pair.other, of_child, COMPLETE))
    pair.commit()
    assert (await cancel).status == "cancelled"
    await end
    assert pair.one.status(run_id)[0] == "completed"
    assert pair.one.status(claim.run_id) == ("cancelled", 3)


@pytest.mark.parametrize("verb", ["pause", "wake"])
async def test_an_operator_and_a_child_at_once(pair: Pair, verb: str) -> None:
    """An end that waits for an operator's hand on its parent: what it brings is there when the parent goes on."""
    claim, [run_id] = await parked(pair.one, child())
    of_child = await pair.one.claim(run_id)
    operate: dict[str, Callable[..., Any]] = {"pause": control.pause, "wake": control.wake, "resume": control.resume}
    world = pair.one
    hand = await pair.begin(operate[verb](world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator"))
    end = await pair.blocks(ends(pair.other, of_child, COMPLETE))
    pair.commit()
    await asyncio.gather(hand, end)
    if verb == "pause":
        assert world.status(claim.run_id) == ("paused", 3)
        await control.resume(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
        assert outcome(world, claim.run_id) == 2
    else:
        again = await world.claim(claim.run_id)
        assert (await world.park(again, wait_for(SHIP))).parked is False
        assert outcome(world, claim.run_id) == 2
