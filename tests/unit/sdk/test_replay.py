"""Replay: every completion order of small workflows with crashes, and what does not fit the records."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from endpoint_sdk import ConfigurationError, Run, TaskFailed, Workflow, task, workflow
from endpoint_sdk.replay import Completed, Diverged
from tests.unit.sdk.replay_lab import Lab, MemoryPort, execute, plain

Step = Callable[..., Coroutine[Any, Any, str]]


async def _chain(step: Step, *names: str) -> str:
    last = ""
    for name in names:
        last = await step(name.replace("?", last))
    return last


async def _race(step: Step) -> str:
    branches = [asyncio.ensure_future(step(name)) for name in ("a", "b")]
    done, _ = await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
    return await step(f"d({branches.index(done.pop())})")


PROGRAMS: dict[str, Callable[[Step], Coroutine[Any, Any, Any]]] = {
    "gather(x, x)": lambda step: asyncio.gather(step("x"), step("x")),  # type: ignore[dict-item,return-value]
    "gather(x>y, x>z)": lambda step: _both(_chain(step, "x", "y"), _chain(step, "x", "z")),
    "gather(a>x>f(x), b>x>g(x))": lambda step: _both(_chain(step, "a", "x", "f(?)"), _chain(step, "b", "x", "g(?)")),
    "first of (a, b), then d(winner)": _race,
    "gather(a, b, c) C60": lambda step: _both(step("a"), step("b"), step("c")),
}


async def _both(*branches: Coroutine[Any, Any, str]) -> list[str]:
    return list(await asyncio.gather(*branches))


def _program(name: str) -> tuple[Lab, list[str]]:
    """A lab for the program, and the list of what its code sees, in order, in the latest execution."""
    seen: list[str] = []
    fresh = itertools.count()

    @task(name="step")
    async def body(name: str) -> str:
        await lab.body(name)
        return f"{name}#{next(fresh)}"

    @workflow("lab")
    async def handler(run: Run) -> Any:
        seen.clear()

        async def step(name: str) -> str:
            seen.append(await run.task(body, name))
            return seen[-1]

        return await PROGRAMS[name](step)

    lab = Lab(handler)
    return lab, seen


class _Choices:
    """Walks every sequence of choices once: an odometer whose wheels grow as the run asks."""

    def __init__(self) -> None:
        self._wheels: list[list[int]] = []
        self._at = 0

    def __iter__(self) -> Iterator[Callable[[int], int]]:
        while True:
            self._at = 0
            yield self.pick
            while self._wheels and self._wheels[-1][0] + 1 == self._wheels[-1][1]:
                self._wheels.pop()
            if not self._wheels:
                return
            self._wheels[-1][0] += 1

    def pick(self, count: int) -> int:
        """A number below *count*, another one each time round."""
        if self._at == len(self._wheels):
            self._wheels.append([0, count])
        self._at += 1
        return self._wheels[self._at - 1][0]


@pytest.mark.parametrize("name", PROGRAMS)
async def test_every_order_with_a_crash_anywhere_replays_exactly(name: str) -> None:
    """Whatever order tasks end in and wherever one crash falls, the workflow sees again what it saw before."""
    for pick in _Choices():
        lab, seen = _program(name)
        await lab.start()
        before: list[str] = []
        crashed = False
        while not lab.done:
            assert lab.bodies, await lab.ended()
            choice = pick(len(lab.bodies) + (not crashed and bool(lab.records)))
            if choice < len(lab.bodies):
                await lab.finish(choice)
                await lab.store(1)
                continue
            crashed, before = True, list(seen)
            await lab.crash()
            await lab.start()
            assert seen[: len(before)] == before
        assert seen[: len(before)] == before
        result = plain(await lab.ended())
        await lab.start()
        assert plain(await lab.ended()) == result


@pytest.mark.parametrize("kept", [*itertools.chain(*(itertools.combinations("abc", n) for n in range(4)))])
async def test_c60_any_subset_recorded_resumes(kept: tuple[str, ...]) -> None:
    """C60: gather(a, b, c) with any subset of its records resumes and runs only what is missing."""
    ran: list[str] = []

    @task
    async def step(name: str) -> str:
        ran.append(name)
        return name.upper()

    @workflow("c60")
    async def handler(run: Run) -> list[str]:
        return list(await asyncio.gather(*(run.task(step, name) for name in "abc")))

    _, records = await execute(handler)
    ran.clear()
    ended, _ = await execute(handler, [record for record in records if plain_value(record) in kept])

    assert plain(ended) == ["A", "B", "C"]
    assert sorted(ran) == sorted(set("abc") - set(kept))


def plain_value(record: Any) -> str:
    """The lower-case name in a record's value."""
    return bytes(record.value).decode().strip('"').lower()


@task
async def _echo(value: Any) -> Any:
    return value


@task
async def _other(value: Any) -> Any:
    return value


def _calls(*calls: tuple[Any, Any]) -> Workflow[None, list[Any]]:
    @workflow("calls")
    async def handler(run: Run) -> list[Any]:
        return [await run.task(fn, value) for fn, value in calls]

    return handler


async def test_reordered_calls_match() -> None:
    """Code that makes the recorded calls in another order completes from the records."""
    _, records = await execute(_calls((_echo, 1), (_other, 2), (_echo, 3)))

    ended, new = await execute(_calls((_echo, 3), (_echo, 1), (_other, 2)), records)

    assert plain(ended) == [3, 1, 2]
    assert new == []


async def test_a_changed_argument_diverges_and_is_named() -> None:
    """A recorded call that is not made while a new one is: the run diverges, naming both and the argument."""
    _, records = await execute(_calls((_echo, 500)))

    ended, new = await execute(_calls((_echo, 550)), records)

    assert isinstance(ended, Diverged)
    assert ended.details["recorded"][0]["preview"] == '{"value":500}'
    assert ended.details["new"][0]["preview"] == '{"value":550}'
    assert ended.details["changed"] == ["value"]
    assert new == []


async def test_a_new_call_beside_a_recorded_one_waits_for_it() -> None:
    """A call without a record starts once every record is consumed, and not before."""
    _, records = await execute(_calls((_echo, 1), (_echo, 2)))

    ended, new = await execute(_calls((_echo, 1), (_echo, 2), (_echo, 3)), records)

    assert plain(ended) == [1, 2, 3]
    assert len(new) == 1


async def test_a_recorded_call_no_longer_made_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Code that drops a recorded call and makes no new one completes, and says so in the log."""
    _, records = await execute(_calls((_echo, 1), (_echo, 2)))

    ended, _ = await execute(_calls((_echo, 1)), records)

    assert plain(ended) == [1]
    assert 'recorded task _echo {"value":2} was never asked for' in caplog.text


async def test_a_dropped_call_with_a_new_one_diverges_even_if_the_handler_returns() -> None:
    """A new call made on the side of a handler that returns is still a divergence, not a warning."""
    _, records = await execute(_calls((_echo, 1), (_echo, 2)))

    @workflow("calls")
    async def handler(run: Run) -> None:
        side = asyncio.ensure_future(run.task(_other, 9))
        await run.task(_echo, 1)
        side.add_done_callback(lambda _: None)

    ended, _ = await execute(handler, records)

    assert isinstance(ended, Diverged)


async def test_a_record_that_no_longer_fits_its_annotation_diverges() -> None:
    """A recorded value the new return annotation refuses stalls the run; it is not the task's failure."""

    @task(name="count")
    async def words() -> str:
        return "three"

    @task(name="count")
    async def number() -> int:
        return 3

    @workflow("w")
    async def before(run: Run) -> Any:
        return await run.task(words)

    @workflow("w")
    async def after(run: Run) -> Any:
        return await run.task(number)

    _, records = await execute(before)
    ended, _ = await execute(after, records)

    assert isinstance(ended, Diverged)
    assert "cannot be read" in ended.details["message"]


async def test_two_functions_under_one_name_are_refused() -> None:
    """The second function under a task name in one run is a configuration error that names both places."""

    def made(value: int) -> Any:
        @task(name="same")
        async def same() -> int:
            return value

        return same

    @workflow("w")
    async def handler(run: Run) -> str:
        await run.task(made(1))
        with pytest.raises(ConfigurationError, match=r"two functions .*test_replay\.py:\d+ and .*test_replay\.py:\d+"):
            await run.task(made(2))
        return "refused"

    ended, records = await execute(handler)

    assert plain(ended) == "refused"
    assert len(records) == 1


async def test_results_acknowledged_together_are_seen_one_at_a_time() -> None:
    """Two records acknowledged in one answer reach the code in their order, the first settled before the second."""
    seen: list[str] = []

    @task
    async def step(name: str) -> str:
        await lab.body(name)
        return name

    @workflow("w")
    async def handler(run: Run) -> None:
        async def branch(name: str, turns: int) -> None:
            await run.task(step, name)
            for _ in range(turns):
                await asyncio.sleep(0)
            seen.append(name)

        await asyncio.gather(branch("slow", 9), branch("quick", 0))

    lab = Lab(handler)
    await lab.start()
    await lab.finish(0)
    await lab.finish(0)
    await lab.store(2)

    assert isinstance(await lab.ended(), Completed)
    assert seen == ["slow", "quick"]


async def test_a_result_is_seen_only_when_its_record_is_acknowledged() -> None:
    """While a record is on its way the workflow does not have the result."""
    seen: list[int] = []

    @task
    async def one() -> int:
        return 1

    @workflow("w")
    async def handler(run: Run) -> None:
        seen.append(await run.task(one))

    lab = Lab(handler)
    await lab.start()
    assert (lab.on_the_way, seen) == (1, [])
    await lab.store(1)

    assert seen == [1]


async def test_a_cancelled_sibling_whose_record_was_written_does_not_block_replay() -> None:
    """A TaskGroup's failure cancels a sibling; the sibling's late record is used up by its cancelled call."""

    @task(name="good")
    async def good() -> str:
        await lab.body("good")
        return "good"

    @task(name="bad")
    async def bad() -> str:
        await lab.body("bad")
        raise ValueError("no")

    @workflow("w")
    async def handler(run: Run) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run.task(bad.with_options(retry=_never())))
                group.create_task(run.task(good))
        except* TaskFailed:
            pass
        return str(await run.task(_echo, "after"))

    lab = Lab(handler)
    await lab.start()
    await lab.finish(0)
    await lab.finish(0)
    await lab.store(1)
    await lab.crash(1)
    await lab.start()
    await lab.store(1)

    assert plain(await lab.ended()) == "after"
    assert [record.name for record in lab.records] == ["bad", "good", "_echo"]


def _never() -> Any:
    from endpoint_sdk import Retry

    return Retry.never()


async def test_as_completed_and_map_replay_without_running_anything() -> None:
    """A finished run replays to the same result and starts no body."""

    @workflow("w")
    async def handler(run: Run) -> list[Any]:
        seen = [await each for each in asyncio.as_completed([run.task(_echo, n) for n in range(5)])]
        return [sorted(seen), await run.map(_echo, range(7), limit=2)]

    ended, records = await execute(handler)
    port = MemoryPort()
    again, _ = await execute(handler, records, port=port)

    assert plain(again) == plain(ended) == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]]
    assert port.records == []
