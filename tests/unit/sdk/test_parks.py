"""Parking: nothing goes on beside it, and a refusal is no end."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import Retry, Run, task, workflow
from endpoint_sdk.parking import Parking
from endpoint_sdk.replay import Completed, Engine, Lost, Parked, RecordRefused, Suspended
from tests.unit.sdk.replay_lab import Lab, MemoryPort, answered, execute, grant, plain, stored
from tests.unit.sdk.wait_lab import WaitLab

HOUR = timedelta(hours=1)


@task
async def _echo(value: Any) -> Any:
    return value


async def test_a_park_waits_for_the_task_beside_it() -> None:
    """While a body runs nothing is parked; its record is written, and the park follows."""
    port = MemoryPort()

    @task
    async def busy() -> int:
        for _ in range(50):
            await asyncio.sleep(0)
        assert port.parks == []
        return 1

    @workflow("w")
    async def handler(run: Run) -> None:
        await asyncio.gather(run.sleep("s", HOUR), run.task(busy))

    ended, records = await execute(handler, port=port)

    assert ended == Parked()
    assert [record.name for record in records] == [busy.name]
    assert len(port.parks) == 1


async def test_a_refused_park_hands_out_what_it_brought_and_goes_on() -> None:
    """C62: what landed while the run parked is seen at once, in the order of its records."""
    seen: list[str] = []

    @workflow("w")
    async def handler(run: Run) -> list[str]:
        async def one(name: str) -> None:
            seen.append(await run.wait_event(name))
            seen.append(await run.task(_echo, f"{name} done"))

        await asyncio.gather(one("a"), one("b"), run.sleep("s", HOUR))
        return seen

    port = MemoryPort()
    signals = stored([answered("event", "b", "B"), answered("event", "a", "A"), answered("sleep", "s", "woken")])
    port.refusals.append(signals)
    ended, records = await execute(handler, port=port)

    assert plain(ended) == ["B", "A", "b done", "a done"]
    again, new = await execute(
        handler, [answered("event", "b", "B"), answered("event", "a", "A"), *records, answered("sleep", "s", "woken")]
    )
    assert (plain(again)[-4:], new) == (["B", "A", "b done", "a done"], [])


async def test_an_outcome_brought_early_waits_for_its_call() -> None:
    """A wait that is asked for only after its record has come takes it at once, without another park."""

    @workflow("w")
    async def handler(run: Run) -> list[str]:
        return [await run.wait_event("a"), await run.wait_event("b")]

    port = MemoryPort()
    port.refusals.append(stored([answered("event", "a", "A"), answered("event", "b", "B")]))
    ended, records = await execute(handler, port=port)

    assert plain(ended) == ["A", "B"]
    assert (len(port.parks), records) == (1, [])


async def test_a_refusal_that_brings_nothing_is_followed_by_another_park() -> None:
    """An event nobody waits for refuses a park too; the run parks again with what it has learned."""

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.wait_event("e")

    port = MemoryPort()
    port.refusals += [[], [], []]
    ended, _ = await execute(handler, port=port)

    assert ended == Parked()
    assert len(port.parks) == 4


async def test_a_park_the_dispatcher_will_never_take_fails_the_run() -> None:
    """A definite refusal of an ending ends the run with its code."""

    async def refuse() -> None:
        raise RecordRefused("malformed", "too many waits")

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.wait_event("e")

    port = MemoryPort()
    port.on_park = refuse
    ended, _ = await execute(handler, port=port)

    assert plain(ended) == "malformed"


async def test_a_park_without_an_answer_ends_lost() -> None:
    """When the outcome of a park is never known, recovery decides."""

    async def silence() -> None:
        raise ConnectionError

    @workflow("w")
    async def handler(run: Run) -> None:
        try:
            await run.wait_event("e")
        except BaseException:
            await run.task(_echo, 1)

    port = MemoryPort()
    port.on_park = silence
    ended, records = await execute(handler, port=port)

    assert ended == Lost()
    assert records == []


async def test_nothing_starts_while_a_park_is_on_its_way() -> None:
    """A call the workflow makes on a timer of its own while the park is asked for runs only once that is refused."""
    port = MemoryPort()
    asked = asyncio.Event()
    ran: list[int] = []

    @task
    async def step() -> None:
        ran.append(len(port.refusals))

    async def slow() -> None:
        asked.set()
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert ran == []

    @workflow("w")
    async def handler(run: Run) -> None:
        async def aside() -> None:
            await asked.wait()
            await run.task(step)

        side = asyncio.ensure_future(aside())
        await run.wait_event("e")
        await side

    port.on_park = slow
    port.refusals.append(stored([answered("event", "e")]))
    ended, records = await execute(handler, port=port)

    assert isinstance(ended, Completed)
    assert [record.name for record in records] == [step.name]
    assert ran == [0]


async def test_nothing_is_recorded_while_a_park_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleep that ends and a deadline worth noting wait for the park's answer: it may have given the claim up."""
    monkeypatch.setattr("endpoint_sdk.waiter._NOTED_AFTER", 0.01)
    port = MemoryPort()

    async def slow() -> None:
        port.on_park = None
        await asyncio.sleep(0.1)
        assert port.records == []

    @workflow("w")
    async def handler(run: Run) -> None:
        await asyncio.gather(
            run.wait_event("e"), run.sleep("short", timedelta(milliseconds=20)), run.sleep("long", HOUR)
        )

    port.on_park = slow
    port.refusals.append([])
    ended, records = await execute(handler, port=port)

    assert ended == Parked()
    assert sorted((record.name, record.phase) for record in records) == [("long", "started"), ("short", "ended")]
    assert [wait.name for wait in port.parks[-1]] == ["e", "long"]


async def test_an_answered_sleep_is_not_slept_on() -> None:
    """A refusal that brings the end of a sleep ends it here: its moment, when it comes, is not recorded again."""

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.sleep("s", HOUR)
        await run.wait_event("e")

    port = MemoryPort()
    port.refusals.append(stored([answered("sleep", "s", "woken")]))
    driving: list[int] = []
    engine = Engine(handler, grant(), port)

    async def look() -> None:
        driving.append(len(engine._driving))

    port.on_park = look

    assert await engine.run() == Parked()
    assert driving == [1, 1]


async def test_a_handler_that_returns_while_a_park_is_accepted_is_parked() -> None:
    """The claim is gone by then: the run goes on from its records when it is woken."""
    port = MemoryPort()
    asked = asyncio.Event()

    async def slow() -> None:
        asked.set()
        for _ in range(20):
            await asyncio.sleep(0.001)

    @workflow("w")
    async def handler(run: Run) -> str:
        side = asyncio.ensure_future(run.wait_event("e"))
        await asked.wait()
        side.cancel()
        return "returned"

    port.on_park = slow
    ended, _ = await execute(handler, port=port)
    assert ended == Parked()

    port.refusals.append([])
    asked.clear()
    ended, _ = await execute(handler, port=port)
    assert plain(ended) == "returned"


async def test_a_call_given_up_while_its_failure_is_written_waits_for_nothing() -> None:
    """The next attempt of a task nobody waits for any more does not hold up the end of the run."""

    @task(retry=Retry.fixed(delay=HOUR))
    async def flaky() -> None:
        raise ValueError

    @workflow("w")
    async def handler(run: Run) -> str:
        side = asyncio.ensure_future(run.task(flaky))
        await run.task(_echo, 1)
        side.cancel()
        return str(await run.task(_echo, 2))

    lab = Lab(handler)
    await lab.start()
    assert [getattr(sent, "name", None) for sent, _ in lab._sent] == [_echo.name, flaky.name]
    for _ in range(3):
        await lab.store(1)

    assert plain(await lab.ended()) == "2"


async def test_an_outcome_nobody_waits_for_any_more_is_used_up() -> None:
    """A late copy of a refused park records an event for a wait the code has given up: that holds nothing up."""

    @task
    async def step() -> None:
        await lab.body("step")

    @workflow("w")
    async def handler(run: Run) -> str:
        first, second = (asyncio.ensure_future(run.wait_event(name)) for name in "ab")
        seen = await first
        second.cancel()
        await run.task(step)
        await run.task(_echo, 1)
        return str(seen)

    lab = WaitLab(handler)
    await lab.start()
    lab.room.send("a", "A")
    await lab.answer_park()
    lab.room.send("b", "B")
    lab.repeat_park()
    await lab.finish(0)
    await lab.store(1)
    await lab.store(1)

    assert plain(await lab.ended()) == "A"
    assert [record.name for record in lab.records] == ["a", "b", step.name, "_echo"]
    await lab.start()
    assert plain(await lab.ended()) == "A"


async def test_no_park_is_asked_for_during_a_pause() -> None:
    """After two refusals that brought nothing the next park waits, whatever else asks for it."""
    port = MemoryPort()
    port.refusals += [[], []]
    heard: list[str] = []
    again = asyncio.Event()
    parking = Parking(
        port,
        parked=lambda: heard.append("parked"),
        refused=lambda signals: heard.append(f"refused {len(signals)}"),
        failed=lambda error: heard.append(repr(error)),
        again=again.set,
    )
    for _ in range(2):
        parking.park([])
        await parking.clear()
    parking.park([])
    paused = parking.under_way
    again.clear()
    await asyncio.wait_for(again.wait(), 10)
    parking.park([])
    await parking.clear()
    await parking.stop(at_once=False)

    assert not paused
    assert heard == ["refused 0", "refused 0", "parked"]


async def test_a_pause_ends_with_the_execution() -> None:
    """Nothing is called once the parking was stopped."""
    port = MemoryPort()
    port.refusals += [[], []]
    calls: list[str] = []
    parking = Parking(
        port,
        parked=lambda: calls.append("parked"),
        refused=lambda _: None,
        failed=lambda _: None,
        again=lambda: calls.append("again"),
    )
    for _ in range(2):
        parking.park([])
        await parking.clear()
    pause = parking._pause
    await parking.stop(at_once=True)

    assert calls == ["again"]
    assert pause is not None
    assert pause.cancelled()


@pytest.mark.parametrize("refused", [False, True])
async def test_leaving_at_once_hears_the_park_out(refused: bool) -> None:
    """What a park on its way comes to decides: parked if it is taken, else suspended here."""

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.wait_event("e")

    lab = WaitLab(handler)
    await lab.start()
    assert lab._engine is not None
    assert lab._running is not None
    lab._engine.leave_now()
    if refused:
        lab.room.send("e", 1)
    assert lab._asked is not None
    assert lab._answer is not None
    lab._answer.set_result(None if lab.room.park(*lab._asked[:2]) else lab.room.lacking(0))

    assert await lab.ended() == (Suspended() if refused else Parked())
    assert lab._engine._hand_out.active is False


async def test_a_claim_lost_during_a_park_is_lost() -> None:
    """The host ends, or a refresh says so: the answer is not waited for."""

    @workflow("w")
    async def handler(run: Run) -> None:
        await run.wait_event("e")

    lab = WaitLab(handler)
    await lab.start()
    assert lab.asks
    assert lab._engine is not None
    lab._engine.lose()

    assert await lab.ended() == Lost()
