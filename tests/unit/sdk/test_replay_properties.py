"""Random workflows under random completion orders, batched acknowledgements and crashes: replay repeats what was."""

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endpoint_sdk.replay import Completed
from tests.unit.sdk.programs import TASKS, Interpreter, Program, programs
from tests.unit.sdk.replay_lab import plain


async def _live_through(interpreter: Interpreter, draw: Callable[[st.SearchStrategy[int]], int]) -> Any:
    lab, crashes, seen = interpreter.lab, 0, []
    await lab.start()
    while not lab.done:
        choices = len(lab.bodies) + (lab.on_the_way > 0)
        assert choices, f"stuck: {await lab.ended()}"
        if crashes < 3 and draw(st.integers(0, 5)) == 0:
            crashes += 1
            seen = interpreter.trace
            await lab.crash(draw(st.integers(0, lab.on_the_way)))
            await lab.start()
            assert interpreter.trace[: len(seen)] == seen
            continue
        choice = draw(st.integers(0, choices - 1))
        if choice < len(lab.bodies):
            await lab.finish(choice)
        else:
            await lab.store(draw(st.integers(1, lab.on_the_way)))
    ended = await lab.ended()
    assert isinstance(ended, Completed), ended
    assert interpreter.trace[: len(seen)] == seen
    return plain(ended)


@given(program=programs(*TASKS), data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_replay_repeats_what_the_first_run_saw(program: Program, data: st.DataObject) -> None:
    """Any program, any order, any crash: what was seen is seen again, no recorded body runs twice, nothing diverges."""

    async def scenario() -> None:
        interpreter = Interpreter(program)
        result = await _live_through(interpreter, data.draw)
        bodies = len(interpreter.lab.started)
        await interpreter.lab.start()
        again = plain(await interpreter.lab.ended())
        assert again == result
        assert len(interpreter.lab.started) == bodies

    asyncio.run(scenario())
