"""An order as a saga: what was done is undone in reverse order when a later step fails, or when somebody cancels.

order_saga.handler       AWS Lambda behind a function URL; POINTSMAN_SIGNING_SECRET in its environment
"""

from dataclasses import dataclass

from endpoint_sdk import CancelRequested, Endpoint, NonRetryableError, Run, TaskFailed, task, task_context, workflow


class CardDeclined(NonRetryableError):
    """No further attempt will help."""


class Undeliverable(NonRetryableError):
    """Nobody delivers there."""


@dataclass
class Order:
    id: str
    item: str
    cents: int
    card: str
    address: str


@dataclass
class Placed:
    status: str
    parcel: str | None = None


@task
def reserve(order_id: str, item: str) -> str:
    """Takes the item from stock; the key makes a second attempt find the first one's reservation."""
    return f"reservation of {item} for {order_id}"


@task
def release(reservation: str) -> None:
    """Puts it back."""


@task
def charge(order_id: str, cents: int, card: str) -> str:
    if card.endswith("0002"):
        raise CardDeclined(f"the card ending {card[-4:]} was declined", details={"order": order_id, "cents": cents})
    return f"receipt {task_context().idempotency_key}"


@task
def refund(receipt: str) -> None:
    """Pays back what the receipt says."""


@task
async def ship(order_id: str, address: str) -> str:
    if not address:
        raise Undeliverable(f"order {order_id} has no address")
    return f"parcel {order_id}"


@workflow("order-saga", version="1.0.0")
async def place_order(run: Run, order: Order) -> Placed:
    try:
        reservation = await run.task(reserve, order.id, order.item)
        run.undo(release, reservation)
        receipt = await run.task(charge, order.id, order.cents, order.card)
        run.undo(refund, receipt)
        run.set_note("paid, waiting for the warehouse")
        packed = await run.wait_event("packed")
        parcel = await run.task(ship, order.id, order.address)
    except (TaskFailed, CancelRequested) as failure:
        await run.compensate()
        if isinstance(failure, CancelRequested):
            raise
        if failure.is_(CardDeclined):
            return Placed("declined")
        return Placed("undeliverable")
    run.logger.info("shipped", extra={"packed": packed})
    return Placed("shipped", parcel)


endpoint = Endpoint([place_order])
handler = endpoint.lambda_handler
