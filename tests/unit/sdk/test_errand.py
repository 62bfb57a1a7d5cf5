"""Blocking work in a thread: its result is taken once, or goes to whoever deals with what nobody wants."""

import asyncio
import threading

import pytest

from endpoint_sdk.subscribers.errand import Errand

DEADLINE = 30.0


async def test_the_result_is_what_the_work_returned() -> None:
    """It is handed over, and is not unwanted."""
    unwanted: list[int] = []
    errand = Errand("test", lambda: 7, unwanted.append)

    assert await errand.result() == 7
    await asyncio.wait_for(errand.ended.wait(), DEADLINE)
    assert unwanted == []


async def test_what_the_work_raises_is_raised() -> None:
    """An exception arrives where the result is awaited."""

    def work() -> int:
        raise OSError("gone")

    errand = Errand("test", work)

    with pytest.raises(OSError, match="gone"):
        await errand.result()
    await asyncio.wait_for(errand.ended.wait(), DEADLINE)


@pytest.mark.parametrize("finished", [False, True])
async def test_an_abandoned_result_is_unwanted(finished: bool) -> None:
    """Cancelled before or after the work ended: what it brings goes to *unwanted*, exactly once."""
    go, unwanted = threading.Event(), list[int]()

    def work() -> int:
        go.wait(DEADLINE)
        return 7

    errand = Errand("test", work, unwanted.append)
    waiting = asyncio.create_task(errand.result())
    await asyncio.sleep(0)
    if finished:
        go.set()
        # The result is there, and the task that waits for it has not run yet: that is when it is cancelled.
        while not errand._future.done():  # noqa: ASYNC110
            await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    go.set()
    await asyncio.wait_for(errand.ended.wait(), DEADLINE)

    assert waiting.cancelled()
    assert unwanted == [7]


async def test_the_failure_of_an_abandoned_errand_is_nobodys_news() -> None:
    """It is neither raised nor complained about when it is collected."""
    go = threading.Event()

    def work() -> int:
        go.wait(DEADLINE)
        raise OSError("gone")

    errand = Errand("test", work)
    errand.abandon()
    go.set()

    await asyncio.wait_for(errand.ended.wait(), DEADLINE)


def test_a_loop_that_is_gone_wants_nothing() -> None:
    """When the event loop was closed meanwhile, the result is unwanted too."""
    go, unwanted = threading.Event(), threading.Event()

    def work() -> int:
        go.wait(DEADLINE)
        return 7

    async def leave() -> None:
        Errand("test", work, lambda _: unwanted.set())

    asyncio.run(leave())
    go.set()

    assert unwanted.wait(DEADLINE)
