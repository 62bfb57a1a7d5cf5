"""Random workflows that wait: parks refused and accepted, events, timers, operators and crashes at every point."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endpoint_sdk import monotonic, parking, waiter
from endpoint_sdk.replay import Completed, Parked
from endpoint_sdk.wire import limits
from tests.unit.sdk.programs import CHILDREN, TASKS, WAITS, Interpreter, Program, programs
from tests.unit.sdk.replay_lab import plain
from tests.unit.sdk.wait_lab import WaitLab

Pick = Callable[[int], int]
_MOST_EVENTS = 12
_LONG_MS = 10_001  # beyond what is sat out: the clock of an executor stands still


class Life:
    """One run from its first claim to its end; *pick* chooses a number below the one given."""

    def __init__(self, interpreter: Interpreter, pick: Pick) -> None:
        assert isinstance(interpreter.lab, WaitLab)
        self.interpreter = interpreter
        self.lab = interpreter.lab
        self.pick = pick
        self.crashes = 0
        self.sent = 0
        self.seen: list[str] = []

    async def through(self) -> Any:
        """The run's result."""
        await self.lab.start()
        while True:
            while not self.lab.done:
                await self._step()
            ended = await self.lab.ended()
            self._check_seen()
            if isinstance(ended, Completed):
                return plain(ended)
            assert isinstance(ended, Parked), ended
            await self._again()

    async def _step(self) -> None:
        lab = self.lab
        steps = ["finish"] * len(lab.bodies) + ["store"] * (lab.on_the_way > 0) + ["park"] * lab.asks
        if not steps:
            # A pause between two parks: the only thing that takes real time here.
            await asyncio.sleep(0.001)
            return
        if self.crashes < 3 and self.pick(8) == 0:
            self.crashes += 1
            await lab.crash(self.pick(lab.on_the_way + 1), park_reached=bool(self.pick(2)))
            await self._again()
            return
        steps += ["child"] * min(len(lab.nursery.running), 3)
        steps += ["send", "tick"] + ["lose reply"] * (lab.on_the_way > 0) + ["late copy"] * lab.can_repeat
        match steps[self.pick(len(steps))]:
            case "finish":
                await lab.finish(self.pick(len(lab.bodies)))
            case "store":
                await lab.store(1 + self.pick(lab.on_the_way))
            case "park":
                await lab.answer_park()
            case step:
                self._elsewhere(step)

    def _elsewhere(self, step: str) -> None:
        lab = self.lab
        match step:
            case "send":
                self._send()
            case "child":
                self._end_child()
            case "tick":
                lab.room.now_ms += (_LONG_MS, 3_600_000)[self.pick(2)]
            case "lose reply":
                lab.lose_reply()
            case "late copy":
                lab.repeat_park()

    async def _again(self) -> None:
        """The run is woken, where it is parked, and claimed."""
        self._check_seen()
        self.seen = self.interpreter.trace
        while self.lab.room.parked:
            (self._send, self.lab.room.advance, self.lab.room.wake, self._end_child)[self.pick(4)]()
        await self.lab.start()

    def _send(self) -> None:
        if self.sent < _MOST_EVENTS:
            self.sent += 1
            self.lab.room.send("uvw"[self.pick(3)], self.sent)

    def _end_child(self) -> None:
        nursery = self.lab.nursery
        if not nursery.running:
            return
        child = nursery.running[self.pick(len(nursery.running))]
        name = msgspec.json.decode(child.start.input)
        if name == "c":
            nursery.complete(child, f"{name}{child.index} {len(nursery.running)}")
        elif name == "f":
            nursery.fail(child, "ValueError")
        else:
            nursery.cancel(child)
        self.lab.room.child_ended()

    def _check_seen(self) -> None:
        shorter = min(len(self.seen), len(self.interpreter.trace))
        assert self.interpreter.trace[:shorter] == self.seen[:shorter]


@pytest.mark.parametrize("noted_after", [0, 3_600])
@given(program=programs(*TASKS, *WAITS, *CHILDREN), data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_replay_repeats_what_a_run_saw_across_its_waits(noted_after: float, program: Program, data: Any) -> None:
    """Any program, order, park, wake-up and crash: what was seen is seen again, and nothing recorded runs twice.

    Time is the room's alone: an executor's clock stands where its claim was granted.
    """

    async def scenario() -> None:
        interpreter = Interpreter(program, WaitLab)
        async with asyncio.timeout(60):
            result = await Life(interpreter, lambda count: data.draw(st.integers(0, count - 1))).through()
        lab = interpreter.lab
        bodies, children = len(lab.started), len(lab.nursery.children)
        assert len({child.call for child in lab.nursery.children}) <= interpreter.starts
        await lab.start()
        again = await lab.ended()
        assert plain(again) == result
        assert (len(lab.started), len(lab.nursery.children)) == (bodies, children)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiter, "_NOTED_AFTER", noted_after)
        patch.setattr(monotonic, "now", lambda: 0.0)
        patch.setattr(limits, "MAX_BATCH", 2)
        patch.setattr(parking, "_FIRST_PAUSE", 0.001)
        patch.setattr(parking, "_LONGEST_PAUSE", 0.001)
        asyncio.run(scenario())
