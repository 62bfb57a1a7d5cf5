"""Workflows that wait, on a real dispatcher and a real worker: parked, woken by events and timers, replayed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest

from endpoint_sdk import (
    AsyncClient,
    Conflict,
    Event,
    Retry,
    Run,
    SyncRun,
    WaitTimeout,
    Worker,
    subscribers,
    task,
    task_context,
    workflow,
)
from tests.faults import rig

SECONDS = 60.0


class Decision(msgspec.Struct):
    approved: bool
    by: str = ""


DECISION = Event[Decision]("decision")
bodies: list[str] = []


@task
async def note(text: str) -> str:
    bodies.append(text)
    return text


@workflow("approval")
async def approval(run: Run, name: str) -> list[str]:
    await run.task(note, f"asked {name}")
    first, second = await asyncio.gather(run.wait_event(DECISION), run.wait_event(DECISION))
    await run.task(note, f"decided {name}")
    return [first.by, second.by]


@workflow("reminder")
async def reminder(run: Run, name: str) -> str:
    waits = {
        asyncio.ensure_future(run.wait_event("answer")): "answer",
        asyncio.ensure_future(run.sleep("remind", timedelta(milliseconds=300))): "remind",
    }
    while True:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            if waits.pop(each) == "answer":
                return str(each.result())
            await run.task(note, f"reminded {name}")


@workflow("blocking")
def blocking(run: SyncRun, name: str) -> str:
    pending = run.submit(note, f"beside {name}")
    try:
        run.wait_event("never", timeout=timedelta(milliseconds=200))
    except WaitTimeout:
        return f"{pending.result()}, then late"
    return "answered"


@task(retry=Retry.fixed(max_attempts=2, delay=timedelta(hours=1)))
def flaky() -> str:
    bodies.append(f"attempt {task_context().attempt}")
    if task_context().attempt == 1:
        raise ValueError("not yet")
    return "done"


@workflow("patient")
async def patient(run: Run) -> str:
    result, _ = await asyncio.gather(run.task(flaky), run.sleep("beside", timedelta(hours=2)))
    return result


@pytest.fixture(autouse=True)
def _no_bodies() -> None:
    bodies.clear()


@pytest.fixture
def http(database_url: str) -> Iterator[httpx.Client]:
    """A dispatcher, for what the SDK's clients do not do."""
    with rig.dispatcher(database_url) as client:
        yield client


@pytest.fixture
async def client(http: httpx.Client) -> AsyncIterator[AsyncClient]:
    """A client of the dispatcher, whose runs a worker executes."""
    url = str(http.base_url).rstrip("/")
    made = await asyncio.to_thread(http.post, "/v1/keys", json={"name": "worker", "scopes": ["execute"]})
    key = made.json()["key"]
    worker = Worker([approval, reminder, blocking, patient], subscriber=subscribers.poll(), url=url, api_key=key)
    serving = asyncio.create_task(worker.serve())
    async with AsyncClient(url, api_key=rig.ADMIN_KEY) as connected:
        yield connected
    worker.stop()
    await serving


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Returns once *check* says yes; fails after a minute."""
    async with asyncio.timeout(SECONDS):
        while not await check():  # noqa: ASYNC110 - another process's doing: nothing here can tell
            await asyncio.sleep(0.02)


async def waits(client: AsyncClient, run_id: str, status: str = "awaiting_event") -> None:
    """Returns once the run is parked with *status*."""
    handle = await client.get(run_id)

    async def parked() -> bool:
        return (await handle.state()).status == status

    await until(parked)


async def test_events_before_and_after_the_park_are_handed_out_in_order(client: AsyncClient) -> None:
    """Two waits of one name take two events in the order they were sent, once each."""
    run = await client.start(approval, "ana")
    await run.send(DECISION, Decision(True, "early"), event_id="e1")
    await run.send(DECISION, Decision(True, "early again"), event_id="e1")
    await waits(client, run.id)
    await run.send(DECISION, Decision(False, "late"))

    assert await run.result(timeout=SECONDS) == ["early", "late"]
    assert bodies == ["asked ana", "decided ana"]
    with pytest.raises(Conflict):
        await run.send(DECISION, Decision(True))


async def test_a_timer_fires_beside_a_wait_that_goes_on(client: AsyncClient) -> None:
    """The reminder goes out once, and the answer still finds the run waiting."""
    run = await client.start(reminder, "ben")

    async def reminded() -> bool:
        return bodies == ["reminded ben"]

    await until(reminded)
    await waits(client, run.id)
    await run.send("answer", "at last")

    assert await run.result(timeout=SECONDS) == "at last"
    assert bodies == ["reminded ben"]


async def test_a_def_workflow_waits_too(client: AsyncClient) -> None:
    """A timeout of the dispatcher's raises at the blocking call, with a submitted task's result kept."""
    run = await client.start(blocking, "cy")

    assert await run.result(timeout=SECONDS) == "beside cy, then late"
    assert bodies == ["beside cy"]


async def test_many_runs_wait_and_are_answered(client: AsyncClient) -> None:
    """Events sent at any moment, while runs are queued, running, parking or parked, are all seen."""
    runs = [await client.start(approval, f"n{number}") for number in range(20)]

    async def decide(handle: Any, number: int) -> list[str]:
        await asyncio.sleep(number % 7 * 0.02)
        await handle.send(DECISION, Decision(True, "a"))
        await asyncio.sleep(number % 5 * 0.02)
        await handle.send(DECISION, Decision(True, "b"))
        found: list[str] = await handle.result(timeout=SECONDS)
        return found

    assert await asyncio.gather(*(decide(run, number) for number, run in enumerate(runs))) == [["a", "b"]] * 20
    assert len(bodies) == 40


async def test_an_operator_wakes_a_run_before_its_time(client: AsyncClient, http: httpx.Client) -> None:
    """The attempt is made now and the sleep is over, hours early."""
    run = await client.start(patient)
    await waits(client, run.id, "awaiting_retry")
    answer = await asyncio.to_thread(http.post, f"/v1/runs/{run.id}/wake", json={})

    assert answer.status_code == 200
    assert await run.result(timeout=SECONDS) == "done"
    assert bodies == ["attempt 1", "attempt 2"]
