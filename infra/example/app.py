"""An order, charged and shipped: the quick start's workflow, and what template.yaml deploys.

uvicorn app:app          any ASGI host
app.handler              AWS Lambda behind a function URL, API Gateway, a load balancer or an SQS event source
"""

# boto3 has no types of its own.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import os
from datetime import timedelta

import msgspec

from endpoint_sdk import Endpoint, Retry, Run, task, task_context, workflow


class OrderRequest(msgspec.Struct, frozen=True):
    id: str
    cents: int


class OrderResult(msgspec.Struct, frozen=True):
    receipt: str
    tracking: str


@task(retry=Retry.exponential(max_attempts=5))
def charge(order_id: str, cents: int) -> str:
    """Charges once however often it is tried: the provider knows the idempotency key."""
    task_context().logger.info("charging", extra={"order": order_id, "cents": cents})
    return f"receipt-{task_context().idempotency_key}"


@task(timeout=timedelta(seconds=20))
async def ship(order_id: str) -> str:
    return f"parcel-{order_id}"


@workflow("order", version="1.0.0")
async def order(run: Run, request: OrderRequest) -> OrderResult:
    """Killed between the two tasks it goes on elsewhere, and the order is not charged again."""
    receipt = await run.task(charge, request.id, request.cents)
    return OrderResult(receipt, await run.task(ship, request.id))


def signing_secrets() -> list[str]:
    """The secret named by SIGNING_SECRET_ARN, and the one before it while a rotation is under way."""
    import boto3
    from botocore.config import Config

    # Short: left to itself boto3 waits longer for an answer than most functions live.
    config = Config(connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 2})
    client = boto3.client("secretsmanager", config=config)
    found: list[str] = []
    for stage in ("AWSCURRENT", "AWSPREVIOUS"):
        try:
            answer = client.get_secret_value(SecretId=os.environ["SIGNING_SECRET_ARN"], VersionStage=stage)
        except client.exceptions.ResourceNotFoundException:
            continue
        found.append(answer["SecretString"])
    return found


# Without an ARN the endpoint reads POINTSMAN_SIGNING_SECRET.
endpoint = Endpoint([order], secret=signing_secrets if "SIGNING_SECRET_ARN" in os.environ else None)
handler = endpoint.lambda_handler
app = endpoint.asgi
