"""Runs beside an SQS handler that was there before: one queue, two kinds of messages.

beside.handler           AWS Lambda behind an SQS event source with ReportBatchItemFailures

Deliveries are executed by the endpoint and never reach the function below; it gets the messages that are its own, and
what it returns or raises is what Lambda sees. A batch of its own messages passes through untouched.
"""

import json
import logging
from typing import Any

import msgspec

from endpoint_sdk import Endpoint, Run, task, workflow

log = logging.getLogger(__name__)


class Invoice(msgspec.Struct, frozen=True):
    id: str
    address: str


@task
def render(invoice_id: str) -> str:
    return f"invoices/{invoice_id}.pdf"


@task
def mail(address: str, document: str) -> str:
    return f"{document} to {address}"


@workflow("invoice")
async def invoice(run: Run, request: Invoice) -> str:
    document = await run.task(render, request.id)
    return await run.task(mail, request.address, document)


endpoint = Endpoint([invoice])


@endpoint.lambda_handler
def handler(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """The handler as it was: takes its messages one by one and reports those it could not read."""
    failed: list[dict[str, str]] = []
    for record in event["Records"]:
        try:
            log.info("customer changed", extra={"customer": json.loads(record["body"])["customer"]})
        except (ValueError, KeyError):
            log.exception("not a change of a customer", extra={"message_id": record["messageId"]})
            failed.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failed}
