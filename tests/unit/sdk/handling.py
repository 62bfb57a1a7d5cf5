"""One execution against the in-memory dispatcher, and the workflows its tests run."""

import asyncio
from datetime import timedelta
from typing import Any

from endpoint_sdk import refresher
from endpoint_sdk.exchange import Exchange, Times
from endpoint_sdk.execution import Conclusion, Context, Execution
from endpoint_sdk.run import Run
from endpoint_sdk.tasks import task
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import Registry, Workflow, workflow
from tests.unit.sdk.dispatcher_double import (
    URL,
    BlockingDouble,
    DispatcherDouble,
    FakeClock,
    Fault,
    reply_lost,
    status,
    unreachable,
)

UNKNOWN: list[Fault] = [reply_lost, unreachable, status(500), status(503), status(408), status(429), status(200, b"{")]

bodies: list[str] = []


@task
async def one(value: str) -> str:
    bodies.append("one")
    return value + "1"


@task
def two(value: str) -> str:
    bodies.append("two")
    return value + "2"


@task(at_most_once=True)
async def pay(value: str) -> str:
    bodies.append("pay")
    return value + "p"


@workflow("order")
async def order(run: Run, value: str) -> str:
    return await run.task(two, await run.task(one, value))


@workflow("payment")
async def payment(run: Run, value: str) -> str:
    return await run.task(pay, value)


class ByHand(refresher.Refresher):
    """Refreshes only when the test says `once`: a real thread beside a clock the test moves would be a race."""

    def _start(self) -> None:
        pass


class Handling:
    """One execution against the double; the host's time left is what the test sets."""

    def __init__(
        self,
        served: Workflow[Any, Any] = order,
        dispatcher: DispatcherDouble | None = None,
        refreshing: type[refresher.Refresher] = ByHand,
    ) -> None:
        self.clock = FakeClock()
        self.dispatcher = dispatcher or DispatcherDouble(served.name, served.version)
        self.left: timedelta | None = None
        self.refresher = refreshing(lambda: BlockingDouble(self.dispatcher), now=self.clock.now)
        times = Times(self.clock.now, self.clock.sleep, lambda low, high: (low + high) / 2)
        self.context = Context(
            Exchange(self.dispatcher, URL, times),
            self.refresher,
            Registry([served]),
            messages.ExecutorInfo("me"),
            30_000,
        )
        self.execution = Execution(self.context, self.dispatcher.delivery(), lambda: self.left)

    async def run(self) -> Conclusion:
        """The conclusion, and a check that nothing is left running."""
        before = asyncio.all_tasks()
        try:
            return await asyncio.wait_for(self.execution.run(), 10)
        finally:
            assert self.refresher.close()
            assert asyncio.all_tasks() <= before

    def refresh(self) -> int:
        return self.refresher.once(BlockingDouble(self.dispatcher))

    @property
    def ending(self) -> str | None:
        return None if self.dispatcher.ending is None else type(self.dispatcher.ending).__name__
