"""Whatever a backlog looks like, a poll takes what is due, the first first, and leaves every queue its share."""

from collections import Counter
from typing import NamedTuple

import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.store import Statement, schema
from tests.integration.pollers import DEADLINE_MS, Poller, ids, publish
from tests.integration.world import World

WORKFLOWS = ("a", "b", "c")
DUE = ("pending", "lost")


class Item(NamedTuple):
    """A queued run: its workflow, how it ranks, and whether a poller may have it."""

    workflow: str
    rank: int
    state: str


ITEMS = st.lists(
    st.builds(
        Item, st.sampled_from(WORKFLOWS), st.integers(0, 5), st.sampled_from(["pending", "delayed", "lost", "young"])
    ),
    max_size=14,
)


async def store(world: World, item: Item) -> str:
    """The id of a run that is as *item* says."""
    run_id, now = await world.submit(item.workflow), world.now()
    if item.state in ("lost", "young"):
        publish(world, run_id, now - DEADLINE_MS if item.state == "lost" else now)
    elif item.state == "delayed":
        world.set_entry(run_id, next_publish_at=now + 60_000)
    world.set_entry(run_id, rank=item.rank)
    return run_id


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(ITEMS, st.integers(1, 8), st.lists(st.sampled_from(WORKFLOWS), min_size=1, unique=True))
async def test_any_backlog(world: World, items: list[Item], limit: int, wanted: list[str]) -> None:
    """No poll takes what is not due or not asked for, or less than it could, or more than a queue's share from one."""
    world.store.transact_blocking(lambda session: session.run(Statement(sa.delete(schema.run))))
    known = {await store(world, item): item for item in items}
    eligible = {run_id for run_id, item in known.items() if item.state in DUE and item.workflow in wanted}
    taken = ids(await Poller(world)(limit, *wanted))

    assert len(taken) == len(set(taken)) == min(limit, len(eligible))
    assert set(taken) <= eligible
    left = eligible - set(taken)
    for run_id in taken:
        passed_over = [known[other] for other in left if known[other][::2] == known[run_id][::2]]
        assert all(known[run_id].rank <= item.rank for item in passed_over)
    share = limit // max(1, len({known[run_id].workflow for run_id in eligible}))
    got = Counter(known[run_id].workflow for run_id in taken)
    assert all(got[known[run_id].workflow] >= share for run_id in left)
