"""A FastAPI application that starts workflows and serves them too; requests, inputs and results are pydantic models.

uvicorn fastapi_orders:app     with POINTSMAN_URL, POINTSMAN_API_KEY and POINTSMAN_SIGNING_SECRET
The dispatcher's endpoint is https://…/pointsman/, with the slash.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Annotated, Literal

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from endpoint_sdk import AsyncClient, Endpoint, PointsmanError, Run, task, workflow


class Line(BaseModel):
    sku: str
    count: int = Field(gt=0)
    price: Decimal


class Order(BaseModel):
    id: str
    lines: list[Line] = Field(min_length=1)


class Card(BaseModel):
    kind: Literal["card"] = "card"
    last4: str


class Invoice(BaseModel):
    kind: Literal["invoice"] = "invoice"
    days: int


# The discriminator says which it is, in the API's schema and in what the run records.
Payment = Annotated[Card | Invoice, Field(discriminator="kind")]


class Confirmation(BaseModel):
    order: str
    total: Decimal
    payment: Payment


class Accepted(BaseModel):
    run: str


class Progress(BaseModel):
    status: str
    confirmation: Confirmation | None = None


@task
def price(order: Order) -> Decimal:
    return sum((line.price * line.count for line in order.lines), Decimal())


@task
async def choose_payment(total: Decimal) -> Payment:
    return Invoice(days=14) if total >= 100 else Card(last4="4242")


@workflow("web-order", version="1.0.0")
async def web_order(run: Run, order: Order) -> Confirmation:
    total = await run.task(price, order)
    return Confirmation(order=order.id, total=total, payment=await run.task(choose_payment, total))


endpoint = Endpoint([web_order])


@asynccontextmanager
async def lifespan(application: FastAPI) -> AsyncGenerator[None]:
    async with AsyncClient() as client:
        application.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place(order: Order, request: Request) -> Accepted:
    """Sent twice, the order is placed once: its id is the idempotency key."""
    client: AsyncClient = request.app.state.client
    handle = await client.start(web_order, order, idempotency_key=order.id)
    return Accepted(run=handle.id)


@app.get("/orders/{order_id}")
async def progress(order_id: str, request: Request) -> Progress:
    client: AsyncClient = request.app.state.client
    try:
        handle = await client.get(web_order, idempotency_key=order_id)
    except PointsmanError as error:
        raise HTTPException(404, "no such order") from error
    state = await handle.state()
    confirmation = await handle.result() if state.status == "completed" else None
    return Progress(status=state.status, confirmation=confirmation)


app.mount("/pointsman", endpoint.asgi)
