"""Programs a user would write; never run, only checked by `mypy --strict`: typed through tasks and gather, no casts.

Each `type: ignore` is a planted mistake: the checker must see it, or `warn_unused_ignores` fails the check.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from endpoint_sdk import (
    AsyncHandle,
    AsyncTask,
    CancelRequested,
    Child,
    ChildFailed,
    Concurrency,
    Cron,
    Event,
    EventInvalid,
    Handle,
    Interval,
    OutcomeUnknown,
    Retry,
    RetryAfterError,
    Run,
    Subscriber,
    SyncChild,
    SyncRun,
    Task,
    TaskFailed,
    TaskFuture,
    WaitTimeout,
    Worker,
    Workflow,
    subscribers,
    task,
    task_context,
    workflow,
)
from endpoint_sdk.subscribers.base import Claim, Message, Setup


@dataclass
class OrderRequest:
    id: str
    cents: int


@dataclass
class Receipt:
    number: str


@dataclass
class OrderResult:
    status: str
    receipt: Receipt | None = None


class CardDeclined(Exception):
    pass


@dataclass
class Decision:
    approved: bool


DECISION = Event[Decision]("decision")
assert_type(DECISION, Event[Decision])


# --- tasks -----------------------------------------------------------------------------------------------------------
@task(retry=Retry.exponential(max_attempts=5, give_up_on=CardDeclined))
def charge(order_id: str, cents: int, currency: str = "EUR") -> Receipt:
    context = task_context()
    context.logger.info("charging %s %s", cents, currency)
    if context.cancelled:
        raise RetryAfterError(timedelta(seconds=5), "told to stop")
    return Receipt(f"{order_id}/{context.idempotency_key}/{context.attempt}")


@task
async def ship(order_id: str) -> str:
    await asyncio.sleep(0)
    return order_id


@task(at_most_once=True, timeout=timedelta(seconds=30))
async def pay_out(cents: int) -> None: ...


@task(name="square", retry=Retry.fixed(delay=timedelta(seconds=1), max_attempts=2))
def square(value: int) -> int:
    return value * value


assert_type(charge("o1", 5), Receipt)
assert_type(charge.name, str)
fast_ship: AsyncTask[[str], str] = ship.with_options(name="ship-fast", retry=Retry.never())
timed_square: Task[[int], int] = square.with_options(timeout=timedelta(seconds=1))
task(at_most_once=True, retry=Retry.never())  # type: ignore[call-overload]


# --- async workflows -------------------------------------------------------------------------------------------------
@workflow("order", version="1.1.0", accepts=["1.0.0"])
async def order(run: Run, request: OrderRequest) -> OrderResult:
    try:
        receipt = await run.task(charge, request.id, cents=request.cents)
    except TaskFailed as failure:
        if failure.is_(CardDeclined):
            return OrderResult("declined")
        raise
    assert_type(receipt, Receipt)
    shipped = await run.task(ship, request.id)
    assert_type(shipped, str)
    return OrderResult(shipped, receipt)


@workflow("fan-out")
async def fan_out(run: Run, values: list[int]) -> int:
    receipt, shipped = await asyncio.gather(run.task(charge, "o1", 5), run.task(ship, "o1"))
    assert_type(receipt, Receipt)
    assert_type(shipped, str)
    async with asyncio.TaskGroup() as group:
        branch = group.create_task(run.task(square, 2))
    assert_type(branch.result(), int)
    for each in asyncio.as_completed([run.task(square, value) for value in values]):
        assert_type(await each, int)
    squares = await run.map(square, values, limit=10)
    assert_type(squares, list[int])
    return sum(squares)


@workflow("tick")
async def tick(run: Run) -> None:
    assert_type(run.now(), datetime)
    assert_type(run.uuid(), UUID)
    assert_type(run.random.random(), float)
    assert_type(run.info.tags, dict[str, str])
    run.set_note("ticking")
    run.logger.info("tick %s", run.id)
    try:
        await run.task(pay_out, 5)
    except OutcomeUnknown as unknown:
        run.logger.warning("ask with %s", unknown.idempotency_key)


@workflow("approval")
async def approval(run: Run, request: OrderRequest) -> str:
    await run.sleep("cool-off", timedelta(hours=1))
    await run.sleep_until("monday", run.now() + timedelta(days=3))
    assert_type(await run.wait_event(DECISION), Decision)
    assert_type(await run.wait_event(DECISION, timeout=timedelta(days=14), default=None), Decision | None)
    assert_type(await run.wait_event("note"), Any)
    try:
        decision = await run.wait_event(DECISION, timeout=timedelta(days=14))
    except (WaitTimeout, EventInvalid):
        return "nobody"
    receipt, either, _ = await asyncio.gather(
        run.task(charge, request.id, 5), run.wait_event(Event[int | str]("either")), run.sleep("s", timedelta(days=1))
    )
    assert_type(receipt, Receipt)
    assert_type(either, int | str)
    async with asyncio.TaskGroup() as group:
        group.create_task(run.sleep("t", timedelta(days=1)))
        waiting = group.create_task(run.wait_event(DECISION))
    assert_type(waiting.result(), Decision)
    await run.sleep(timedelta(hours=1))  # type: ignore[call-arg,arg-type]
    await run.wait_event(DECISION, default=None)  # type: ignore[call-overload]
    return "yes" if decision.approved else "no"


@workflow("parent")
async def parent(run: Run, requests: list[OrderRequest]) -> int:
    child = await run.start_child(order, requests[0], idempotency_key="o1", pool="slow", tags={"team": "a"})
    assert_type(child, Child[OrderResult])
    assert_type(child.id, str)
    assert_type(await child.result(), OrderResult)
    assert_type(await run.start_child(tick), Child[None])
    assert_type(await run.child(fan_out, [1, 2]), int)
    assert_type(await run.map(order, requests, limit=100), list[OrderResult])
    try:
        result, total, receipt = await asyncio.gather(
            child.result(), run.child(fan_out, [1]), run.task(charge, "o1", 5)
        )
    except ChildFailed as failure:
        run.logger.info("%s %s %s %s", failure.run_id, failure.error_type, failure.message, failure.details)
        raise
    assert_type(result, OrderResult)
    assert_type(receipt, Receipt)
    async with asyncio.TaskGroup() as group:
        branch = group.create_task(run.child(order, requests[0]))
    assert_type(branch.result(), OrderResult)
    await run.child(order)  # type: ignore[arg-type]
    await run.child(order, "o1")  # type: ignore[misc]
    await run.start_child(charge, "o1")  # type: ignore[call-overload]
    await run.map(order, ["o1"])  # type: ignore[misc]
    wrong: Child[int] = await run.start_child(order, requests[0])  # type: ignore[arg-type]
    del wrong
    return total


@workflow("planted")
async def planted(run: Run) -> None:
    await run.task(charge, "o1")  # type: ignore[call-arg]
    await run.task(charge, "o1", "5")  # type: ignore[arg-type]
    await run.task(charge, "o1", 5, amount=1)  # type: ignore[call-arg]
    await run.map(charge, ["o1"])  # type: ignore[arg-type]
    await run.task(lambda: 1)  # type: ignore[arg-type]
    number: int = await run.task(ship, "o1")  # type: ignore[arg-type]
    del number


# --- def workflows ---------------------------------------------------------------------------------------------------
@workflow("sync")
def sync(run: SyncRun, ids: Sequence[str]) -> list[str]:
    future = run.submit(charge, "o1", 5)
    assert_type(future, TaskFuture[Receipt])
    assert_type(run.task(ship, "o1"), str)
    assert_type(run.map(square, [1, 2]), list[int])
    run.sleep("s", timedelta(hours=1))
    run.sleep_until("t", run.now())
    assert_type(run.wait_event(DECISION), Decision)
    assert_type(run.wait_event(DECISION, timeout=timedelta(days=1), default="none"), Decision | str)
    child = run.start_child(order, OrderRequest("o1", 5), pool="slow")
    assert_type(child, SyncChild[OrderResult])
    assert_type(child.result(), OrderResult)
    assert_type(run.child(tick), None)
    assert_type(run.map(fan_out, [[1], [2]]), list[int])
    run.child(order, 5)  # type: ignore[misc]
    return [future.result().number, *run.map(ship, ids)]


assert_type(order, Workflow[OrderRequest, OrderResult])
assert_type(fan_out, Workflow[list[int], int])
assert_type(tick, Workflow[None, None])
assert_type(sync, Workflow[Sequence[str], list[str]])
assert_type(order.decode_result(b"{}"), OrderResult)


# --- cancelling, compensating, options -------------------------------------------------------------------------------
@workflow("apology")
async def apology(run: Run, failure: dict[str, Any]) -> None: ...


@workflow(
    "saga",
    retry=Retry.fixed(max_attempts=3, delay=timedelta(minutes=1)),
    timeout=timedelta(days=1),
    schedule=Cron("0 4 * * *", timezone="Europe/Berlin", overlap="cancel_previous", catch_up=3),
    concurrency=Concurrency(5, key="customer"),
    on_failure=apology,
)
async def saga(run: Run) -> str:
    run.undo(charge, "o1", cents=5)
    run.undo(ship, 1)  # type: ignore[arg-type]
    try:
        return await run.task(ship, "o1")
    except CancelRequested as cancel:
        assert_type(cancel.reason, str)
        await run.compensate()
        raise


@workflow("loop", schedule=Interval(timedelta(minutes=5), jitter=timedelta(seconds=10)))
def loop(run: SyncRun, number: int) -> str:
    run.undo(square, 2)
    if number < 3:
        run.restart(number + 1)
    run.compensate()
    return "enough"


Cron("0 4 * * *", overlap="queue")  # type: ignore[arg-type]
Interval(5)  # type: ignore[arg-type]
workflow("w", timeout=5)  # type: ignore[arg-type]
workflow("w", schedule="0 4 * * *")  # type: ignore[arg-type]
assert_type(saga, Workflow[None, str])
assert_type(loop, Workflow[int, str])


# --- events ----------------------------------------------------------------------------------------------------------
async def decide(handle: Handle[str], elsewhere: AsyncHandle[str]) -> None:
    handle.send(DECISION, Decision(True), event_id="e1")
    handle.send("note", {"any": "thing"})
    await elsewhere.send(DECISION, Decision(False))
    handle.send(DECISION, True)  # type: ignore[misc]
    await elsewhere.send(DECISION, "yes")  # type: ignore[misc]


# --- workers ---------------------------------------------------------------------------------------------------------
class Mailbox:
    """A subscriber of the user's own."""

    pools: Sequence[str] = ("default",)

    async def open(self, setup: Setup) -> None: ...
    async def receive(self, limit: int) -> list[Message | Claim]:
        return [Message({"webhook-id": "run_1_0"}, b"{}", receipt=limit)]

    async def done(self, item: Message | Claim) -> None: ...
    async def back(self, item: Message | Claim, delay: float = 0) -> None: ...
    def held_for(self, item: Message | Claim) -> float | None:
        return None

    async def close(self, timeout: float) -> None: ...


def deploy(queue_url: str, redis_url: str) -> None:
    polling = subscribers.poll(pools=["default", "slow"], wait=timedelta(seconds=5))
    assert_type(polling, Subscriber)
    assert_type(subscribers.redis(redis_url), Subscriber)
    queue = subscribers.sqs(queue_url, visibility_timeout=timedelta(minutes=2))
    Worker([order], subscriber=Mailbox(), secret=lambda: ["whsec_…"])
    Worker([order], subscriber=queue, secret="whsec_…", name="orders-queue")
    worker = Worker([order, sync], subscriber=polling, max_concurrent_runs=20, drain_timeout=timedelta(seconds=50))
    for run_id, refreshed, transport in worker.holding:
        assert_type(run_id, str)
        assert_type(refreshed, float)
        assert_type(transport, float | None)
    worker.run()


async def serve(worker: Worker) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.serve())
    worker.stop()


Worker([ship])  # type: ignore[list-item]
Worker([order], subscriber="poll")  # type: ignore[arg-type]
Worker([order], drain_timeout=25)  # type: ignore[arg-type]
subscribers.redis()  # type: ignore[call-arg]
