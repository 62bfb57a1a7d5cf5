"""Workflows that wait at a gate, workers of them on a subscriber in memory, and the dispatcher they talk to."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import Run, SyncRun, Worker, execution, intake, task, workflow
from tests.unit.sdk.fleet_double import SECRET, URL, Fleet, MemorySubscriber


class Gate:
    """Counts the bodies inside and holds them until it is opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.open, self.inside, self.most = threading.Event(), 0, 0

    def enter(self, by: int) -> None:
        with self._lock:
            self.inside += by
            self.most = max(self.most, self.inside)


gate = Gate()


@task
async def hold(value: str) -> str:
    gate.enter(1)
    try:
        while not gate.open.is_set():  # noqa: ASYNC110 - opened from any thread
            await asyncio.sleep(0.005)
    finally:
        gate.enter(-1)
    return value


@task
def block(value: str) -> str:
    gate.enter(1)
    gate.open.wait(20)
    gate.enter(-1)
    return value


@workflow("order", accepts=["0"])
async def order(run: Run, value: str) -> str:
    return value


@workflow("gated")
async def gated(run: Run, value: str) -> str:
    return await run.task(hold, value) + await run.task(hold, value)


@workflow("blocked")
def blocked(run: SyncRun, value: str) -> str:
    return run.task(block, value)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """The dispatcher of every worker made by the test; a claim without an answer is given up soon.

    The gate is closed when the test begins, and opened when it ends.
    """
    gate.reset()
    monkeypatch.setattr(execution, "_CLAIM_PATIENCE", 0.2)
    monkeypatch.setattr(intake, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(intake, "_LONGEST_PAUSE", 0.02)
    yield Fleet().install(monkeypatch)
    gate.open.set()


def made(subscriber: MemorySubscriber, **options: Any) -> Worker:
    options = {"url": URL, "secret": SECRET, "drain_timeout": timedelta(seconds=10), **options}
    return Worker([order, gated, blocked], subscriber=subscriber, **options)
