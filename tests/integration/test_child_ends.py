"""Every way a child can end is told to its parent, and a cancel goes down to the children (I9)."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from dispatcher import cancelling, control
from dispatcher.cascade import CancelChildren
from dispatcher.store import Session
from dispatcher.store.waits import Address
from endpoint_sdk.wire.messages import Cancelled, Stall
from endpoint_sdk.wire.operating import Nothing
from tests.integration.families import (
    RESIZE,
    SHIP,
    child,
    completes,
    fails,
    many,
    outcome,
    parked,
    ship,
    started,
    wait_for,
)
from tests.integration.world import NAMESPACE, World

End = Callable[[World, str], Awaitable[None]]


async def cancelled_unclaimed(world: World, run_id: str) -> None:
    await world.cancel(run_id, now=False, reason="enough")


async def cancelled_now(world: World, run_id: str) -> None:
    await world.claim(run_id)
    await world.cancel(run_id, reason="enough")


async def cancelled_by_force(world: World, run_id: str) -> None:
    await world.claim(run_id)
    await world.cancel(run_id, now=False, reason="enough")
    world.elapse(world.settings.runs.cancel_grace_ms + 1)
    await world.timers.once()


async def cancelled_by_itself(world: World, run_id: str) -> None:
    claim = await world.claim(run_id)
    await world.cancel(run_id, now=False, reason="enough")
    await world.write(claim, ending=Cancelled())


async def cancelled_while_parked(world: World, run_id: str) -> None:
    await world.park(await world.claim(run_id), world.event())
    await world.cancel(run_id, reason="enough")


async def stalled_under_a_cancel(world: World, run_id: str) -> None:
    claim = await world.claim(run_id)
    await world.cancel(run_id, now=False)
    await world.write(claim, ending=Stall("divergence"))


async def cancelled_when_stalled(world: World, run_id: str) -> None:
    await world.write(await world.claim(run_id), ending=Stall("divergence"))
    await world.cancel(run_id)


ENDS: list[tuple[End, str]] = [
    (fails, "no"),
    (cancelled_unclaimed, "enough"),
    (cancelled_now, "enough"),
    (cancelled_by_force, "enough"),
    (cancelled_by_itself, "enough"),
    (cancelled_while_parked, "enough"),
    (stalled_under_a_cancel, "divergence"),
    (cancelled_when_stalled, "divergence"),
]


@pytest.mark.parametrize("address", [SHIP, RESIZE], ids=["one", "many"])
@pytest.mark.parametrize(("end", "message"), ENDS, ids=[end.__name__ for end, _ in ENDS])
async def test_every_bad_end_is_told(world: World, end: End, message: str, address: Address) -> None:
    """C63: however a child ends, the parent that waits for it is queued with its failure; of many, at the first."""
    claim, ids = await parked(world, *([child()] if address == SHIP else many(3)), waits=[address])
    await end(world, ids[0])
    status = world.run(ids[0]).status
    assert status in {"failed", "cancelled"}
    assert world.status(claim.run_id) == ("queued", 3)
    told = outcome(world, claim.run_id, address)
    assert (told.type, told.message, told.details["runId"], told.details["status"]) == (
        "ChildFailed",
        message,
        ids[0],
        status,
    )
    assert all(world.run(run_id).status == "queued" for run_id in ids[1:])


async def test_a_stalled_child_is_waited_for(world: World) -> None:
    """A stalled child has not ended: its parent waits for what an operator makes of it."""
    claim, [run_id] = await parked(world, child())
    await world.write(await world.claim(run_id), ending=Stall("divergence"))
    assert world.status(claim.run_id) == ("awaiting_child", 2)
    await world.requeue(run_id)
    await completes(world, run_id)
    assert outcome(world, claim.run_id) == 2


async def test_children_that_end_while_their_parent_runs(world: World) -> None:
    """What has ended by the park refuses it, and its outcome comes with the answer; the rest is parked for."""
    claim = await world.claim(await world.submit("family"))
    one, other = await started(world, claim, child(0), child(1))
    await completes(world, one)
    answer = await world.park(claim, wait_for(ship(0)), wait_for(ship(1)))
    assert answer.parked is False
    assert [(signal.kind, signal.ordinal) for signal in answer.signals] == [("child", 0)]
    assert (await world.park(claim, wait_for(ship(1)), signals_after=answer.signals[0].seq)).parked
    await completes(world, other)
    assert world.status(claim.run_id) == ("queued", 3)


async def test_an_end_nobody_waits_for_moves_nothing(world: World) -> None:
    """A parent that waits for something else is not woken by a child, and is told once it asks."""
    claim = await world.claim(await world.submit("family"))
    ids = await started(world, claim, child(), *many(2))
    await world.park(claim, world.event())
    for run_id in ids:
        await completes(world, run_id)
    assert world.status(claim.run_id) == ("awaiting_event", 2)
    await world.send(claim.run_id)
    second = await world.claim(claim.run_id)
    answer = await world.park(second, wait_for(), wait_for(RESIZE), signal_seq=1)
    assert answer.parked is False
    assert outcome(world, claim.run_id) == 2
    assert outcome(world, claim.run_id, RESIZE) == {"total": 2}


async def test_separate_children_wake_their_parent_once_a_second(world: World) -> None:
    """The first end wakes at once, what ends in the second after that together, at its end."""
    claim, ids = await parked(world, *map(child, range(4)), waits=[*map(ship, range(4))])
    await completes(world, ids[0])
    assert world.status(claim.run_id) == ("queued", 3)
    second = await world.claim(claim.run_id)
    await world.park(second, *(wait_for(ship(number)) for number in (1, 2, 3)))
    await completes(world, ids[1])
    await completes(world, ids[2])
    assert world.status(claim.run_id) == ("awaiting_child", 5)
    world.check()
    assert await world.fires() == 0
    world.elapse(1_001)
    assert await world.fires() == 1
    assert world.status(claim.run_id) == ("queued", 6)
    assert [outcome(world, claim.run_id, ship(number)) for number in range(4)] == [2, 2, 2, None]
    third = await world.claim(claim.run_id)
    await world.park(third, wait_for(ship(3)))
    await completes(world, ids[3])
    assert world.status(claim.run_id) == ("awaiting_child", 8)
    world.elapse(1_001)
    assert await world.fires() == 1


async def test_one_child_after_the_other_is_not_held_up(world: World) -> None:
    """A parent that waits for one child at a time is woken by each at once: there is nothing to wait together for."""
    run_id = await world.submit("family")
    for number in range(3):
        claim = await world.claim(run_id)
        [made] = await started(world, claim, child(number))
        assert (await world.park(claim, wait_for(ship(number)))).parked
        await completes(world, made)
        assert world.run(run_id).status == "queued"


async def test_a_wait_for_a_child_may_have_a_deadline(world: World) -> None:
    """A child that ends after the deadline of its wait is too late, whenever that is noticed."""
    claim = await world.claim(await world.submit("family"))
    [run_id] = await started(world, claim, child())
    await world.park(claim, msgspec.structs.replace(wait_for(), deadline=world.sleep(1_000).deadline))
    world.elapse(2_000)
    await completes(world, run_id)
    await world.fires()
    assert outcome(world, claim.run_id).type == "WaitTimeout"


async def test_a_wait_for_a_child_that_timed_out_is_over(world: World) -> None:
    """What was told of a wait stands: a park that names it once more is refused, though the child runs."""
    claim = await world.claim(await world.submit("family"))
    await started(world, claim, child())
    await world.park(claim, msgspec.structs.replace(wait_for(), deadline=world.sleep(1_000).deadline))
    world.elapse(2_000)
    assert await world.fires() == 1
    assert (await world.park(await world.claim(claim.run_id), wait_for())).parked is False


async def test_children_are_counted_anew_at_every_park(world: World) -> None:
    """A parent that something else woke parks again with as many children open as run then."""
    claim, ids = await parked(world, *many(3), waits=[RESIZE])
    await control.wake(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    await completes(world, ids[0])
    assert (await world.park(await world.claim(claim.run_id), wait_for(RESIZE))).parked
    assert world.waits(claim.run_id)[0].open == 2
    await completes(world, ids[1])
    await completes(world, ids[2])
    assert world.run(claim.run_id).status == "queued"


async def test_an_operators_wake_up_ends_no_wait_for_a_child(world: World) -> None:
    """Woken early, the run finds its children still running and waits for them again."""
    claim, [run_id] = await parked(world, child())
    await control.wake(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert outcome(world, claim.run_id) is None
    assert (await world.park(await world.claim(claim.run_id), wait_for())).parked
    await completes(world, run_id)
    assert outcome(world, claim.run_id) == 2


async def test_children_that_end_while_their_parent_is_paused(world: World) -> None:
    """A paused parent stays paused, its children are counted; when it resumes it has the outcome."""
    claim, ids = await parked(world, *many(2), waits=[RESIZE])
    await control.pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    await completes(world, ids[0])
    await control.resume(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert world.status(claim.run_id) == ("awaiting_child", 4)
    world.check()
    await control.pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    await completes(world, ids[1])
    assert world.status(claim.run_id) == ("paused", 5)
    await control.resume(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert world.status(claim.run_id) == ("queued", 6)
    assert outcome(world, claim.run_id, RESIZE) == {"total": 2}


async def test_a_parent_that_is_to_cancel_itself_has_what_its_children_brought(world: World) -> None:
    """A graceful cancel queues the parent with every outcome there is, and a later end does nothing but that."""
    claim, ids = await parked(world, child(0), child(1), waits=[ship(0), ship(1)])
    await control.pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    await completes(world, ids[0])
    await world.cancel(claim.run_id, now=False)
    assert world.run(claim.run_id).status == "queued"
    assert outcome(world, claim.run_id, ship(0)) == 2
    await completes(world, ids[1])
    assert (await world.park(await world.claim(claim.run_id), wait_for(ship(1)), told=True)).parked is False
    assert outcome(world, claim.run_id, ship(1)) == 2


async def test_a_cancel_goes_down_to_the_children(world: World) -> None:
    """Children of a cancelled run that still run are cancelled, or asked to where they were claimed, and so on down."""
    claim = await world.claim(await world.submit("family"))
    queued, running, stalled, done = await started(world, claim, *map(child, range(4)))
    of_child = await world.claim(running)
    [grandchild] = await started(world, of_child, child())
    await world.write(await world.claim(stalled), ending=Stall("divergence"))
    await completes(world, done)
    await world.cancel(claim.run_id, now=False)
    cascade = CancelChildren(world.store, world.settings)
    assert await cascade.once() == {"cancelled": 0, "more": 0}
    await world.cancel(claim.run_id)
    assert (await cascade.once())["cancelled"] == 3
    assert [world.run(run_id).status for run_id in (queued, stalled, done)] == ["cancelled", "cancelled", "completed"]
    assert (world.run(queued).reason, world.run(running).stop, world.run(running).status) == (
        "parent_cancelled",
        "cancel",
        "running",
    )
    assert world.run(claim.run_id).cascade == 0
    await world.write(of_child, ending=Cancelled())
    assert world.run(running).reason == "parent_cancelled"
    assert (await cascade.once())["cancelled"] == 1
    assert world.run(grandchild).status == "cancelled"
    assert await cascade.once() == {"cancelled": 0, "more": 0}


@pytest.mark.parametrize("end", [completes, fails])
async def test_a_parent_that_ends_leaves_its_children(world: World, end: End) -> None:
    """Children of a run that completed or failed go on."""
    run_id = await world.submit("family")
    [made] = await started(world, await world.claim(run_id), child())
    await world.free(run_id)
    await end(world, run_id)
    assert (await CancelChildren(world.store, world.settings).once())["cancelled"] == 0
    assert world.run(made).status == "queued"


async def test_a_cascade_that_was_interrupted_goes_on(world: World) -> None:
    """A cancelled parent stays marked until no child is left to ask, whoever began with it."""
    claim = await world.claim(await world.submit("family"))
    ids = await started(world, claim, *many(3))
    await world.cancel(claim.run_id)
    await world.cancel(ids[1], reason="before")
    assert world.run(claim.run_id).cascade == 1
    assert (await CancelChildren(world.store, world.settings).once())["cancelled"] == 2
    assert [world.run(run_id).reason for run_id in ids] == ["parent_cancelled", "before", "parent_cancelled"]
    assert world.run(claim.run_id).cascade == 0


async def test_a_child_that_cannot_be_asked_keeps_nobody_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its siblings and the children of other parents are asked all the same, and it stays to be asked."""
    asked: list[str] = []
    parents = [await world.claim(await world.submit("family")) for _ in range(2)]
    ids = [run_id for claim in parents for run_id in await started(world, claim, child(0), child(1))]
    for claim in parents:
        await world.cancel(claim.run_id)

    def request(session: Session, run_id: str, reason: str, grace_ms: int, *, actor: str) -> bool:
        if run_id == ids[0]:
            raise ValueError("no")
        asked.append(run_id)
        return cancel(session, run_id, reason, grace_ms, actor=actor)

    cancel = cancelling.request
    monkeypatch.setattr(cancelling, "request", request)
    cascade = CancelChildren(world.store, world.settings)
    assert await cascade.once() == {"cancelled": 3, "more": 1}
    assert sorted(asked) == sorted(ids[1:])
    assert await cascade.once() == {"cancelled": 0, "more": 0}
    assert [world.run(claim.run_id).cascade for claim in parents] == [1, 0]
    monkeypatch.undo()
    assert (await cascade.once())["cancelled"] == 1


async def test_a_thousand_children_wake_their_parent_once(world: World) -> None:
    """However many children are waited for together, their parent has one park and one wake-up in its history."""
    count = 1_000 if world.store.dialect == "sqlite" else 120
    claim = await world.claim(await world.submit("family"))
    ids: list[str] = []
    for first in range(0, count, 500):
        ids += await started(world, claim, *many(count, first=first, count=min(500, count - first)))
    await world.park(claim, wait_for(RESIZE))
    for run_id in ids:
        await completes(world, run_id)
    assert [move.status for move in world.history(claim.run_id)] == ["queued", "running", "awaiting_child", "queued"]
    assert outcome(world, claim.run_id, RESIZE) == {"total": count}
