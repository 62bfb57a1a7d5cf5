"""Tests a user would write with the kit; never run, only checked by `mypy --strict`: typed through stubs and runs.

Each `type: ignore` is a planted mistake: the checker must see it, or `warn_unused_ignores` fails the check.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import assert_type

from endpoint_sdk import Client, Endpoint, Event, Run, SyncRun, TaskContext, task, workflow
from endpoint_sdk.testing import Calls, Replayed, Step, WorkflowTester, lambda_event, local_dispatcher, task_env


@dataclass
class Receipt:
    number: str


class CardDeclined(Exception):
    pass


DECISION = Event[bool]("decision")


@task
def charge(order_id: str, cents: int) -> Receipt:
    return Receipt(f"{order_id}/{cents}")


@task
async def ship(order_id: str) -> str:
    return order_id


@workflow("order")
async def order(run: Run, order_id: str) -> Receipt:
    return await run.task(charge, order_id, 5)


@workflow("tick")
def tick(run: SyncRun) -> int:
    return 1


# --- workflows in memory ---------------------------------------------------------------------------------------------
def in_memory(t: WorkflowTester, path: Path) -> None:
    charged = t.stub(charge, Receipt("r1"))
    assert_type(charged.count, int)
    assert_type(charged.called_with("o1", cents=5), bool)
    t.stub(charge, CardDeclined("no"))
    t.stub(charge, lambda order_id, cents: Receipt(order_id))
    t.stub(charge, [CardDeclined("no"), Receipt("r1")])
    t.stub(ship, "parcel")
    t.stub(charge, "r1")  # type: ignore[arg-type]
    t.stub(charge, Receipt)  # type: ignore[arg-type]
    t.stub(order, Receipt("r1"))  # type: ignore[arg-type]
    charged.called_with("o1")  # type: ignore[call-arg]
    t.crash_after(charge)
    t.crash_after(ship, recorded=True)
    t.crash_after(order)  # type: ignore[arg-type]
    assert_type(t.stub_child(order, Receipt("r1")), Calls[[str]])
    t.stub_child(order, Receipt)
    t.stub_child(order, "r1")  # type: ignore[arg-type]

    assert_type(t.run(order, "o1"), Receipt)
    assert_type(t.run(tick), int)
    t.run(order)  # type: ignore[arg-type]
    t.run(order, 5)  # type: ignore[misc]
    run = t.start(order, "o1")
    assert_type(run.result(), Receipt)
    assert_type(run.status, str)
    assert_type(run.history, Sequence[Step])
    assert_type(run.waiting_for, frozenset[str])
    assert_type(run.error, Exception | None)
    run.advance(timedelta(days=14))
    run.advance(14)  # type: ignore[arg-type]
    run.send(DECISION, True)
    run.send("note", {"any": "thing"})
    run.send(DECISION, "yes")  # type: ignore[misc]
    run.cancel("changed my mind")
    assert_type(t.replay(order, path), Replayed)
    t.replay(order, "run_01.json")
    WorkflowTester(replay="always")  # type: ignore[arg-type]


# --- bodies, dispatchers, events -------------------------------------------------------------------------------------
def around(endpoint: Endpoint, elsewhere: Endpoint) -> None:
    with task_env(attempt=2, remaining=timedelta(seconds=5), cancelled=True) as context:
        assert_type(context, TaskContext)
        assert_type(charge("o1", 5), Receipt)
    with local_dispatcher(endpoint, elsewhere) as client:
        assert_type(client, Client)
        assert_type(client.start(order, "o1").result(timeout=5), Receipt)
    endpoint.lambda_handler(lambda_event("sqs", endpoint, order, "o1"), None)
    lambda_event("sqs", endpoint, order, 5)  # type: ignore[misc]
    lambda_event("sns", endpoint, order, "o1")  # type: ignore[arg-type]
