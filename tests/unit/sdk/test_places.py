"""endpoint_sdk.places: no place is given twice and none is lost, whoever is cancelled when."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from endpoint_sdk.places import Places


async def test_who_asked_first_gets_the_next_place() -> None:
    """A loop that always wants many does not starve one that wants a single place."""
    places = Places(4)
    assert await places.reserve(10) == 4
    first = asyncio.create_task(places.reserve(1))
    second = asyncio.create_task(places.reserve(10))
    await asyncio.sleep(0)
    places.give_back(1)
    assert await first == 1
    places.give_back(3)

    assert await second == 3
    assert places.free == 0


async def test_a_place_granted_to_somebody_cancelled_meanwhile_is_free_again() -> None:
    """The grant and the cancellation may come in the same turn of the loop."""
    places = Places(1)
    await places.reserve(1)
    waiting = asyncio.create_task(places.reserve(1))
    await asyncio.sleep(0)
    places.give_back(1)
    waiting.cancel()
    await asyncio.wait([waiting])

    assert places.free == 1
    assert await places.reserve(1) == 1


@settings(max_examples=60, deadline=None)
@given(total=st.integers(1, 5), wanted=st.lists(st.integers(1, 6), max_size=8), cancelled=st.sets(st.integers(0, 7)))
def test_places_are_conserved(total: int, wanted: list[int], cancelled: set[int]) -> None:
    """Free and reserved places add up to the total after any mixture of reserving, cancelling and giving back."""

    async def scenario() -> None:
        places = Places(total)
        tasks = [asyncio.create_task(places.reserve(most)) for most in wanted]
        for _ in range(len(tasks) + 1):
            await asyncio.sleep(0)
            for index in cancelled:
                if index < len(tasks):
                    tasks[index].cancel()
            await asyncio.sleep(0)
            held = sum(task.result() for task in tasks if task.done() and not task.cancelled())
            assert places.free + held == total
            for index, task in list(enumerate(tasks)):
                if task.done() and not task.cancelled() and task.result():
                    places.give_back(task.result())
                    tasks[index] = asyncio.create_task(asyncio.sleep(0, 0))
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                places.give_back(task.result())
        assert places.free == total

    asyncio.run(scenario())
