"""How fast the fleet releases: never more in a second than configured, wherever the second begins."""

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import recovery
from dispatcher.store import fleet
from tests.integration.world import HOUR_MS, IDLE_MS, World, claims


async def test_five_hundred_stale_claims_are_released_at_the_pace(world: World) -> None:
    """C30: in no second, wherever it begins, are more than 100 claims released, by two replicas together."""
    stale = await claims(world, 500)
    other = recovery.RecoverOverdueOutboxEntries(
        world.store, world.settings.recovery, world.settings.publishing, world.settings.stalling
    )
    world.elapse(IDLE_MS + 20_000)
    released, gaps = 0, itertools.cycle((15, 40, 100))
    while released < 500:
        released += (await world.recovers())["released"]
        released += (await other.once())["released"]
        world.elapse(next(gaps))
    at = sorted(world.history(claim.run_id)[-1].at for claim in stale)
    assert all(later - earlier >= 1_000 for earlier, later in zip(at, at[100:], strict=False))
    assert at[-1] - at[0] < 10_000


@settings(max_examples=300, deadline=None)
@given(
    per_second=st.sampled_from([1, 2, 7, 10, 19, 20, 100, 3_000]),
    gaps=st.lists(st.integers(0, 400), min_size=1, max_size=60),
)
def test_no_second_sees_more_than_the_pace(per_second: int, gaps: list[int]) -> None:
    """I11: however ticks fall, no second holds more releases than configured, and a waiting fleet gets room."""
    now, slot = 1_000_000, 0
    released: list[int] = []
    for gap in gaps:
        now += gap
        allowed, start, step_ms = recovery._slots(slot, now, per_second)
        slot = math.ceil(start + max(allowed, 0) * step_ms)
        released += [now] * max(allowed, 0)
    assert all(later - earlier >= 1_000 for earlier, later in zip(released, released[per_second:], strict=False))
    assert recovery._slots(slot, now + 2_000, per_second)[0] >= 1


async def test_the_pace_survives_a_clock_stepped_back(world: World) -> None:
    """A slot far in the future, left by a clock since stepped back, does not hold recovery up."""
    [claim] = await claims(world, 1)
    world.elapse(IDLE_MS + 1_000)
    world.store.transact_blocking(lambda session: fleet.take_slots(session, session.now() + HOUR_MS))
    assert (await world.recovers())["released"] == 1
    assert world.status(claim.run_id) == ("queued", 2)
