"""A parent and its child driven to their ends, with everything that can land landing at every point between (I9)."""

import contextlib

import pytest
from msgspec import Raw

from dispatcher import control, errors, lifecycle
from dispatcher.cascade import CancelChildren
from endpoint_sdk.wire.messages import Cancelled, Complete, ErrorObject, Fail, Release
from endpoint_sdk.wire.operating import Nothing
from tests.integration.families import RESIZE, SHIP, child, many, outcome, start, wait_for
from tests.integration.world import IDLE_MS, NAMESPACE, Claim, World

LANDING = (
    "child",
    "failure",
    "child cancelled",
    "last child cancelled",
    "recovery",
    "pause",
    "wake",
    "cancel",
    "cancel now",
)

POINTS = 7
STEPS = 24


class Family:
    """A parent that starts two children together and one alone, waits for both calls, and completes."""

    def __init__(self, world: World, run_id: str) -> None:
        self.world = world
        self.run_id = run_id
        self.claim: Claim | None = None
        self.stop: str | None = None
        self.ids: list[str] = []
        self.cascade = CancelChildren(world.store, world.settings)

    async def goes(self, what: str, point: int) -> None:
        """To the end, *what* landing before step number *point*."""
        for number in range(STEPS):
            if number == point:
                await self.lands(what)
            if self.world.run(self.run_id).status in lifecycle.TERMINAL and number > point:
                break
            await self.turn(number)
        await self.cascade.once()

    async def lands(self, what: str) -> None:
        """Something happens from outside; where it makes no sense it is refused, which is right too."""
        world = self.world
        with contextlib.suppress(errors.Conflict):
            if what in {"child", "failure"}:
                for run_id in self.ids[:1]:
                    await self.ends(run_id, failing=what == "failure")
            elif what == "child cancelled":
                for run_id in self.ids[1:2]:
                    await world.cancel(run_id)
            elif what == "last child cancelled":
                for run_id in self.ids[2:]:
                    await world.cancel(run_id, now=False)
            elif what == "recovery":
                world.elapse(IDLE_MS + 1_000)
                await world.recovers()
            elif what in {"pause", "wake"}:
                operation = {"pause": control.pause, "wake": control.wake}[what]
                await operation(world.store, world.settings, NAMESPACE, self.run_id, Nothing(), "operator")
            else:
                await world.cancel(self.run_id, now=what == "cancel now")

    async def ends(self, run_id: str, *, failing: bool = False) -> None:
        """The child ends, if it has not and can."""
        if self.world.run(run_id).status == "queued":
            ending = Fail(ErrorObject("Boom", "no")) if failing else Complete(Raw(b"2"))
            await self.world.write(await self.world.claim(run_id), ending=ending)

    async def turn(self, number: int) -> None:
        """The next step of whoever has to take one."""
        status = self.world.run(self.run_id).status
        if status == "queued":
            grant = await self.world.grant(self.run_id, self.world.run(self.run_id).revision, f"clm_{number}")
            self.claim, self.stop = Claim(self.run_id, grant.revision, grant.claim_id, grant.token), grant.stop
        elif status == "running" and self.claim is not None:
            await self._executes(self.claim)
        elif status == "paused":
            await control.resume(self.world.store, self.world.settings, NAMESPACE, self.run_id, Nothing(), "operator")
        elif status == "awaiting_child" and number % 2:
            self.world.elapse(2_000)
            await self.world.fires()
        elif status == "awaiting_child":
            for run_id in self.ids:
                await self.ends(run_id)

    async def _executes(self, claim: Claim) -> None:
        stop = self.world.run(self.run_id).stop
        left = [address for address in (SHIP, RESIZE) if outcome(self.world, self.run_id, address) is None]
        if stop == "cancel":
            await self.world.write(claim, ending=Cancelled())
        elif stop == "pause":
            await self.world.write(claim, ending=Release("pause"))
        elif not self.ids:
            answer = await start(self.world, claim, child(), *many(2))
            self.ids = [item.id for item in answer.children if item.id is not None]
        elif left:
            await self.world.park(claim, *map(wait_for, left), told=stop is not None)
        else:
            await self.world.write(claim, ending=Complete(Raw(b"1")))


@pytest.mark.parametrize("what", LANDING)
async def test_landing_at_every_point(world: World, what: str) -> None:
    """Whatever lands before any step: the parent comes to its end, told once of each call, and no child is lost."""
    # The order of steps is one on both databases: on the slower one, every third point.
    for point in range(0, POINTS, 1 if world.store.dialect == "sqlite" else 3):
        family = Family(world, await world.submit("family"))
        await family.goes(what, point)
        status = world.run(family.run_id).status
        assert status == ("cancelled" if what in {"cancel", "cancel now"} else "completed"), point
        outcomes = [kind for kind, *_ in world.outcomes(family.run_id)]
        assert len(outcomes) == len(set(outcomes)), point
        if status == "completed":
            assert sorted(outcomes) == ["child", "children"], point
        else:
            assert {world.run(run_id).status for run_id in family.ids} <= {"cancelled", "completed"}, point
