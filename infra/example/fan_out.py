"""A thousand children and one parent: started in bulk, run wherever there is room; the last one done wakes the parent.

pointsman worker fan_out:worker     with POINTSMAN_URL and POINTSMAN_API_KEY
"""

from dataclasses import dataclass

from endpoint_sdk import ChildFailed, Run, Worker, task, workflow


@dataclass
class Batch:
    name: str
    invoices: int = 1_000


@dataclass
class Invoice:
    batch: str
    number: int


@dataclass
class Totals:
    invoices: int
    cents: int


@task
async def render(number: int) -> int:
    """The invoice's sum in cents."""
    return number * 100


@workflow("invoice-of-a-batch", version="1.0.0")
async def make_invoice(run: Run, invoice: Invoice) -> int:
    """A run of its own: with its own history, retries and place in the dashboard."""
    return await run.task(render, invoice.number)


@workflow("invoice-batch", version="1.0.0")
async def make_batch(run: Run, batch: Batch) -> Totals:
    invoices = [Invoice(batch.name, number) for number in range(batch.invoices)]
    run.set_note(f"{len(invoices)} invoices")
    try:
        # At most 100 at once; the parent holds nothing meanwhile, and has the results in the order of the invoices.
        cents = await run.map(make_invoice, invoices, limit=100)
    except ChildFailed as failure:
        run.logger.warning("an invoice failed", extra={"child": failure.run_id, "type": failure.error_type})
        raise
    return Totals(len(cents), sum(cents))


worker = Worker([make_batch, make_invoice], max_concurrent_runs=50)
