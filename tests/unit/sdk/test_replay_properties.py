"""Random workflows under random completion orders, batched acknowledgements and crashes: replay repeats what was."""

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endpoint_sdk import Retry, Run, TaskFailed, Workflow, task, workflow
from endpoint_sdk.replay import Completed
from tests.unit.sdk.replay_lab import Lab, plain

# ("task", name, dependent) | ("fail", name) | ("pause", turns) | ("seq", [part, …]) | (combinator, [branch, …])
Program = tuple[Any, ...]
COMBINATORS = ["gather", "as_completed", "first", "first_cancel", "group"]

_leaf = st.one_of(
    st.tuples(st.just("task"), st.sampled_from("abx"), st.booleans()),
    st.tuples(st.just("fail"), st.sampled_from("ef")),
    st.tuples(st.just("pause"), st.integers(1, 7)),
)
_programs = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.tuples(st.just("seq"), st.lists(inner, min_size=2, max_size=3)),
        st.tuples(st.sampled_from(COMBINATORS), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=7,
)


class Interpreter:
    """A workflow that runs *program* and notes in `trace` what its code sees, in the order it sees it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.trace: list[str] = []
        self.lab = Lab(self._workflow())
        self._fresh = 0

    def _workflow(self) -> Workflow[None, list[Any]]:
        @task(name="step", retry=Retry.never())
        async def step(name: str, after: Any) -> str:
            del after
            await self.lab.body(name)
            self._fresh += 1
            if name in "ef":
                raise ValueError(f"{name}{self._fresh}")
            return f"{name}{self._fresh}"

        async def one(run: Run, name: str, after: Any) -> str:
            try:
                seen = await run.task(step, name, after)
            except TaskFailed as failure:
                seen = f"!{failure.error_type} {failure.message}"
                self.trace.append(seen)
                raise
            self.trace.append(seen)
            return seen

        @workflow("lab")
        async def handler(run: Run) -> list[Any]:
            self.trace = []
            result = await self._run(lambda name, after: one(run, name, after), self.program, None)
            return [result, self.trace, run.uuid().hex, run.now().isoformat()]

        return handler

    async def _run(self, one: Callable[[str, Any], Any], program: Program, last: Any) -> Any:
        match program:
            case ("task", name, dependent):
                return await one(name, last if dependent else None)
            case ("fail", name):
                try:
                    return await one(name, None)
                except TaskFailed as failure:
                    return failure.message
            case ("pause", turns):
                for _ in range(turns):
                    await asyncio.sleep(0)
                return last
            case ("seq", parts):
                for part in parts:
                    last = await self._run(one, part, last)
                return last
            case (combinator, branches):
                return await self._together(one, combinator, branches, last)

    async def _together(self, one: Callable[[str, Any], Any], combinator: str, branches: list[Any], last: Any) -> Any:
        coroutines = [self._run(one, branch, last) for branch in branches]
        if combinator == "gather":
            return await asyncio.gather(*coroutines)
        if combinator == "as_completed":
            # Tasks, not coroutines: as_completed puts what it gets into a set, and would start branches in any order.
            return [await each for each in asyncio.as_completed([asyncio.ensure_future(each) for each in coroutines])]
        if combinator == "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(each) for each in coroutines]
            return [each.result() for each in tasks]
        tasks = [asyncio.ensure_future(each) for each in coroutines]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if combinator == "first_cancel":
            for each in pending:
                each.cancel()
        winner = min(tasks.index(each) for each in done)
        return await one("d", [winner, tasks[winner].result()])


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


@given(program=_programs, data=st.data())
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
