"""The loop around every daemon: it wakes, goes on after errors, and shows when it does not."""

import asyncio
import logging

import pytest

from dispatcher import errors
from dispatcher.loop import Loop

AGES = 3_600_000


class Ticks:
    """A daemon that says what the test tells it to, and lets the test wait for its ticks."""

    name = "ticks"

    def __init__(self, *answers: dict[str, int] | Exception) -> None:
        self.answers = list(answers)
        self.count = 0
        self.ticked = asyncio.Event()
        self.hold: asyncio.Event | None = None

    async def once(self) -> dict[str, int]:
        self.count += 1
        self.ticked.set()
        if self.hold is not None:
            await self.hold.wait()
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def reach(self, count: int) -> None:
        """Returns when the daemon has ticked *count* times."""
        async with asyncio.timeout(10):
            while self.count < count:
                self.ticked.clear()
                await self.ticked.wait()


def _is_well(loop: Loop) -> bool:
    return loop.well


async def test_first_tick_comes_at_once() -> None:
    """A started loop ticks without waiting for its interval."""
    daemon = Ticks()
    loop = Loop(daemon, AGES)
    assert loop.name == "ticks"
    loop.start()
    await daemon.reach(1)
    await loop.stop()


async def test_interval_brings_the_next_tick() -> None:
    """Ticks repeat by themselves."""
    daemon = Ticks()
    loop = Loop(daemon, 1)
    loop.start()
    await daemon.reach(5)
    await loop.stop()


async def test_a_wake_brings_a_tick() -> None:
    """A wake ends the pause, whichever run it is for."""
    daemon = Ticks()
    loop = Loop(daemon, AGES)
    loop.start()
    for count in range(1, 4):
        await daemon.reach(count)
        await asyncio.sleep(0)
        loop.wake("run_1")
    await daemon.reach(4)
    await loop.stop()


async def test_wakes_during_a_tick_bring_one_more() -> None:
    """However many wakes arrive while a tick is under way, exactly one tick answers them."""
    daemon = Ticks()
    daemon.hold = asyncio.Event()
    loop = Loop(daemon, AGES)
    loop.start()
    await daemon.reach(1)
    for _ in range(5):
        loop.wake()
    daemon.hold.set()
    await daemon.reach(2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert daemon.count == 2
    await loop.stop()


async def test_more_brings_a_tick_soon() -> None:
    """A daemon with more to do is not kept waiting for its interval."""
    daemon = Ticks({"more": 1}, {"more": 1})
    loop = Loop(daemon, AGES)
    loop.start()
    await daemon.reach(3)
    await loop.stop()


async def test_an_error_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """A tick that raised is logged, and the next one comes."""
    daemon = Ticks(RuntimeError("boom"))
    loop = Loop(daemon, 1)
    with caplog.at_level(logging.ERROR):
        loop.start()
        await daemon.reach(3)
    await loop.stop()
    assert "daemon tick failed" in caplog.text


async def test_well_while_ticks_end_well() -> None:
    """A loop is well for five intervals, and half a minute at least, after its last good tick; then it is not."""
    now = [0.0]
    daemon = Ticks(*[RuntimeError("boom")] * 1_000)
    loop = Loop(daemon, 10_000, clock=lambda: now[0])
    loop.start()
    await daemon.reach(1)
    assert _is_well(loop)
    now[0] = 49.0
    assert _is_well(loop)
    now[0] = 51.0
    loop.wake()
    await daemon.reach(2)
    assert not _is_well(loop)
    daemon.answers.clear()
    loop.wake()
    await daemon.reach(3)
    await asyncio.sleep(0)
    assert _is_well(loop)
    await loop.stop()


async def test_a_short_interval_gets_half_a_minute() -> None:
    """A loop of one second is not unwell after five: half a minute is the least."""
    now = [0.0]
    loop = Loop(Ticks(), 1_000, clock=lambda: now[0])
    now[0] = 29.0
    assert _is_well(loop)
    now[0] = 31.0
    assert not _is_well(loop)


async def test_a_tick_that_hangs_is_not_well() -> None:
    """A loop whose tick never ends stops being well."""
    now = [0.0]
    daemon = Ticks()
    daemon.hold = asyncio.Event()
    loop = Loop(daemon, 1_000, clock=lambda: now[0])
    loop.start()
    await daemon.reach(1)
    now[0] = 31.0
    assert not loop.well
    await loop.stop()


async def test_stop_ends_a_tick_under_way() -> None:
    """Stopping does not wait for a tick that hangs; stopping twice, or what never ran, is nothing."""
    daemon = Ticks()
    daemon.hold = asyncio.Event()
    loop = Loop(daemon, 1_000)
    await loop.stop()
    loop.start()
    await daemon.reach(1)
    await loop.stop()
    await loop.stop()
    assert daemon.count == 1


async def test_a_paused_tick_is_no_progress(caplog: pytest.LogCaptureFixture) -> None:
    """A daemon that only pauses stops being well; a database away is one line of log, without a trace."""
    now = [0.0]
    daemon = Ticks(*[{"paused": 1}] * 2, errors.Unavailable("unavailable", "the database is away"))
    loop = Loop(daemon, 1_000, clock=lambda: now[0])
    loop.start()
    await daemon.reach(1)
    now[0] = 31.0
    loop.wake()
    await daemon.reach(2)
    await asyncio.sleep(0)
    assert not _is_well(loop)
    loop.wake()
    await daemon.reach(3)
    await asyncio.sleep(0)
    await loop.stop()
    assert "daemon tick failed" in caplog.text
    assert "Traceback" not in caplog.text
