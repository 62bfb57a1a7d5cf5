"""Random workflows: a small language of tasks, waits and asyncio's combinators, and what runs it."""

import asyncio
import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from endpoint_sdk import ChildFailed, Retry, Run, TaskFailed, WaitTimeout, Workflow, task, task_context, workflow
from tests.unit.sdk.replay_lab import Lab

# One of: task(name, dependent), fail(name), retry(name), sleep(name, hours), event(name, hours or None), pause(turns),
# child(name), twice(name), map(names), seq([part, …]), combinator([branch, …])
Program = tuple[Any, ...]
COMBINATORS = ["gather", "as_completed", "first", "first_cancel", "group"]

TASKS = (
    st.tuples(st.just("task"), st.sampled_from("abx"), st.booleans()),
    st.tuples(st.just("fail"), st.sampled_from("ef")),
    st.tuples(st.just("pause"), st.integers(1, 7)),
)
WAITS = (
    st.tuples(st.just("sleep"), st.sampled_from("st"), st.sampled_from([0, 1, 2])),
    st.tuples(st.just("event"), st.sampled_from("uv"), st.sampled_from([None, 0, 1])),
    st.tuples(st.just("retry"), st.sampled_from("gh")),
)
# c completes, f fails, x is cancelled; "twice" asks for the outcome of one child in two branches.
CHILDREN = (
    st.tuples(st.just("child"), st.sampled_from("cfx")),
    st.tuples(st.just("twice"), st.sampled_from("cf")),
    st.tuples(st.just("map"), st.sampled_from(["", "c", "ccc", "ccccc", "cfc", "cxf"])),
)


@workflow("kid")
async def kid(run: Run, name: str) -> str:
    """What the programs start; the nursery decides what becomes of it."""
    del run
    return name


def programs(*leaves: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
    """Programs of these *leaves*."""
    return st.recursive(
        st.one_of(*leaves),
        lambda inner: st.one_of(
            st.tuples(st.just("seq"), st.lists(inner, min_size=2, max_size=3)),
            st.tuples(st.sampled_from(COMBINATORS), st.lists(inner, min_size=2, max_size=3)),
        ),
        max_leaves=7,
    )


class Interpreter:
    """A workflow that runs *program* and notes in `trace` what its code sees, in the order it sees it."""

    def __init__(self, program: Program, lab: type[Lab] = Lab) -> None:
        self.program = program
        self.trace: list[str] = []
        self.starts = 0
        self.lab = lab(self._workflow())
        self._fresh = 0

    def _workflow(self) -> Workflow[None, list[Any]]:
        @task(name="step", retry=Retry.never())
        async def step(name: str, after: Any) -> str:
            del after
            await self.lab.body(name)
            self._fresh += 1
            if name in "ef" or (name in "gh" and task_context().attempt == 1):
                raise ValueError(f"{name}{self._fresh}")
            return f"{name}{self._fresh}"

        patient = step.with_options(retry=Retry.fixed(max_attempts=2, delay=timedelta(hours=1)))

        async def one(run: Run, name: str, after: Any) -> str:
            try:
                seen = await run.task(patient if name in "gh" else step, name, after)
            except TaskFailed as failure:
                seen = f"!{failure.error_type} {failure.message}"
                self.trace.append(seen)
                raise
            self.trace.append(seen)
            return seen

        async def wait(run: Run, kind: str, name: str, hours: int | None) -> Any:
            if kind == "sleep":
                await run.sleep(name, timedelta(hours=hours or 0))
                seen = None
            else:
                try:
                    seen = await run.wait_event(name, timeout=None if hours is None else timedelta(hours=hours))
                except WaitTimeout:
                    seen = "late"
            self.trace.append(f"{kind} {name} {seen} {run.now()}")
            return seen

        @workflow("lab")
        async def handler(run: Run) -> list[Any]:
            self.trace = []
            self.starts = 0
            self._children = functools.partial(self._family, run)
            self._wait = functools.partial(wait, run)
            result = await self._run(lambda name, after: one(run, name, after), self.program, None)
            return [result, self.trace, run.uuid().hex, run.now().isoformat()]

        return handler

    async def _family(self, run: Run, how: str, names: str) -> Any:
        self.starts += 1
        try:
            if how == "map":
                seen: Any = await run.map(kid, names)
                assert [each[1] for each in seen] == [str(index) for index in range(len(names))]
            elif how == "child":
                seen = await run.child(kid, names)
            else:
                child = await run.start_child(kid, names)
                self.trace.append(f"started {child.id}")
                seen = await asyncio.gather(child.result(), child.result())
        except ChildFailed as failure:
            seen = f"!{failure.run_id} {failure.error_type} {failure.details}"
        self.trace.append(f"{how} {names} {seen} {run.now()}")
        return seen

    async def _run(self, one: Callable[[str, Any], Any], program: Program, last: Any) -> Any:
        match program:
            case ("seq", parts):
                for part in parts:
                    last = await self._run(one, part, last)
                return last
            case (combinator, [*branches]):
                return await self._together(one, combinator, branches, last)
        return await self._leaf(one, program, last)

    async def _leaf(self, one: Callable[[str, Any], Any], program: Program, last: Any) -> Any:
        match program:
            case ("task", name, dependent):
                return await one(name, last if dependent else None)
            case ("fail" | "retry", name):
                try:
                    return await one(name, None)
                except TaskFailed as failure:
                    return failure.message
            case ("child" | "twice" | "map" as how, names):
                return await self._children(how, names)
            case (kind, name, hours):
                return await self._wait(kind, name, hours)
            case ("pause", turns):
                for _ in range(turns):
                    await asyncio.sleep(0)
        return last

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
