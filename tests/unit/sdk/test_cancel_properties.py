"""Random workflows that are cancelled at a random point: replay tells them at the same place, and undoes each once."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endpoint_sdk import CancelRequested, Retry, Run, Workflow, monotonic, task, workflow
from endpoint_sdk.wire import limits
from tests.unit.sdk.programs import CHILDREN, TASKS, WAITS, Interpreter, Program, programs
from tests.unit.sdk.test_wait_properties import Life
from tests.unit.sdk.wait_lab import WaitLab


class _Cancelled(Interpreter):
    """Registers an undo for every leaf, and compensates at the end, told or not."""

    register: Callable[[int], None]

    def _workflow(self) -> Workflow[None, list[Any]]:
        forward = super()._workflow()
        self.registered = 0

        @task(name="undo", retry=Retry.never())
        async def undo(number: int) -> None:
            await self.lab.body(f"undo {number}")

        @workflow("lab")
        async def handler(run: Run) -> list[Any]:
            self.registered = 0

            def register(number: int) -> None:
                run.undo(undo, number)

            self.register = register
            result: Any = None
            try:
                result = await forward.fn(run)
            except* CancelRequested:
                self.trace.append("told")
            try:
                await run.compensate()
            except CancelRequested:
                self.trace.append("told late")
            return [result, self.trace, run.uuid().hex, run.now().isoformat()]

        return handler

    async def _leaf(self, one: Any, program: Program, last: Any) -> Any:
        self.registered += 1
        self.register(self.registered)
        return await super()._leaf(one, program, last)


class _CancelledLife(Life):
    """Somebody cancels the run at some point, and the executor hears of it at some later one."""

    async def _step(self) -> None:
        if not self.lab.stop and self.pick(5) == 4:
            self.lab.stop = True
        elif self.lab.stop and self.pick(4) == 3:
            self.lab.refresh()
            await self.lab.rest()
        else:
            await super()._step()

    async def _again(self) -> None:
        if self.lab.room.parked and not self.lab.stop and self.pick(2) == 1:
            self.lab.stop = True
            self.lab.room.cancel()
        await super()._again()


@given(program=programs(*TASKS, *WAITS, *CHILDREN), data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_replay_repeats_a_cancel_and_its_compensation(program: Program, data: Any) -> None:
    """Any program, order, park, crash and cancel: what was seen is seen again, told at most once, undone once."""

    async def scenario() -> None:
        interpreter = _Cancelled(program, WaitLab)
        lab = interpreter.lab
        assert isinstance(lab, WaitLab)
        async with asyncio.timeout(60):
            result = await _CancelledLife(interpreter, lambda count: data.draw(st.integers(0, count - 1))).through()
        assert sum(seen.startswith("told") for seen in result[1]) <= 1
        undone = Counter(record.args_hash for record in lab.records if (record.kind, record.name) == ("task", "undo"))
        assert set(undone.values()) <= {1}
        bodies = len(lab.started)
        await lab.start()
        again = await lab.ended()
        assert hasattr(again, "result"), again
        assert len(lab.started) == bodies

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monotonic, "now", lambda: 0.0)
        patch.setattr(limits, "MAX_BATCH", 2)
        asyncio.run(scenario())
