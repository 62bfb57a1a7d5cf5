"""Somebody has fourteen days to decide; the run costs nothing while it waits, and survives every deploy in between.

pointsman worker approval:worker     with POINTSMAN_URL and POINTSMAN_API_KEY

The one who decides:  client.get(approval, idempotency_key="expense-17").send(DECISION, Approved(by="ana"))
or from anywhere:     POST /v1/events {"name": "decision", "value": {"type": "Approved", "value": {"by": "ana"}}, ...}
"""

from dataclasses import dataclass
from datetime import timedelta

from endpoint_sdk import Event, Run, Worker, task, workflow


@dataclass
class Expense:
    id: str
    cents: int
    manager: str


@dataclass
class Approved:
    by: str


@dataclass
class Rejected:
    by: str
    reason: str


DECISION = Event[Approved | Rejected]("decision")


@task
def ask(manager: str, expense_id: str) -> None:
    """Sends the mail with the two links."""


@task
def pay(expense_id: str, cents: int) -> str:
    return f"transfer of {cents} for {expense_id}"


@workflow("expense-approval", version="1.0.0")
async def approval(run: Run, expense: Expense) -> str:
    await run.task(ask, expense.manager, expense.id)
    run.set_note(f"waiting for {expense.manager}")
    decision = await run.wait_event(
        DECISION, timeout=timedelta(days=14), default=Rejected("nobody", "no decision in 14 days")
    )
    match decision:
        case Approved(by):
            run.logger.info("approved", extra={"by": by})
            return await run.task(pay, expense.id, expense.cents)
        case Rejected(by, reason):
            return f"rejected by {by}: {reason}"


worker = Worker([approval])
