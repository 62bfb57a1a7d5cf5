"""Deliveries that stay in the process: in order of rank, bounded, and waited for."""

import asyncio

from publishers.memory import MemoryPublisher
from tests.contract.publisher_rigs import KEYS, due, target


def publisher(capacity: int = 100) -> MemoryPublisher:
    """An empty one."""
    return MemoryPublisher(target("memory:", KEYS), capacity=capacity)


async def test_the_lowest_rank_is_taken_first() -> None:
    """What is taken is gone, the lowest rank first, of one queue when asked for."""
    made = publisher()
    sent = [due(rank=rank, workflow=name) for rank, name in ((3, "a"), (1, "b"), (2, "a"))]
    await made.publish(sent)
    queue = ("default", "a", "1", "default")
    assert [received.rank for received in made.take(10, queue)] == [2, 3]
    assert [received.rank for received in made.take(10)] == [1]
    assert made.take(10) == []
    assert [received.rank for received in made.received] == [3, 1, 2]


async def test_a_revision_waits_once() -> None:
    """A republish replaces the copy that waits."""
    made = publisher(capacity=1)
    sent = due()
    for _ in range(3):
        [outcome] = await made.publish([sent])
        assert outcome.row == "accepted"
    assert len(made.take(10)) == 1


async def test_what_does_not_fit_fails() -> None:
    """A full queue takes no more until something is taken, and remembers no more than its capacity."""
    made = publisher(capacity=2)
    outcomes = await made.publish([due() for _ in range(3)])
    assert [(outcome.kind, outcome.row) for outcome in outcomes] == [
        ("published", "accepted"),
        ("published", "accepted"),
        ("failed", "throttled"),
    ]
    made.take()
    assert [outcome.row for outcome in await made.publish([due()])] == ["accepted"]
    assert len(made.received) == 2


async def test_waiting() -> None:
    """Who waits is woken by a delivery, and by the end."""
    made = publisher()
    waiting = asyncio.create_task(made.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    await made.publish([due()])
    async with asyncio.timeout(10):
        await waiting
    made.take()
    waiting = asyncio.create_task(made.wait())
    await asyncio.sleep(0)
    await made.close()
    async with asyncio.timeout(10):
        await waiting
    assert (await made.check()).code == "closed"
