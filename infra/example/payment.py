"""A payment at most once: killed in the middle of the call, it is not made again; the provider is asked instead.

pointsman worker payment:worker     with POINTSMAN_URL, POINTSMAN_API_KEY and PROVIDER_URL

For a provider that does not know idempotency keys. One that does needs no more than `@task` and the key.
"""

import json
import os
from dataclasses import dataclass
from datetime import timedelta
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from endpoint_sdk import OutcomeUnknown, Retry, Run, Worker, task, task_context, workflow

PROVIDER = os.environ["PROVIDER_URL"]
# How long a request may be on its way to the provider after its sender has died.
SETTLES_WITHIN = timedelta(seconds=float(os.environ.get("PROVIDER_SETTLE_SECONDS", "120")))


@dataclass
class Payment:
    account: str
    cents: int


@dataclass
class Receipt:
    id: str
    cents: int


@task(at_most_once=True, timeout=timedelta(seconds=30))
def pay(payment: Payment) -> Receipt:
    """Its start is recorded before this runs; whatever becomes of this process, it does not run again."""
    body = {"account": payment.account, "cents": payment.cents, "reference": task_context().idempotency_key}
    request = Request(  # noqa: S310 - the provider's address is ours to choose
        f"{PROVIDER}/payments", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urlopen(request, timeout=25) as answer:  # noqa: S310
        return Receipt(json.load(answer)["id"], payment.cents)


@task(retry=Retry.exponential(max_attempts=10))
def find_payment(reference: str) -> Receipt | None:
    """Only looks, so it may be tried again."""
    try:
        with urlopen(f"{PROVIDER}/payments/{quote(reference)}", timeout=25) as answer:  # noqa: S310
            found = json.load(answer)
    except HTTPError as error:
        if error.code == 404:
            return None
        raise
    return Receipt(found["id"], found["cents"])


@workflow("payment", version="1.0.0")
async def pay_once(run: Run, payment: Payment) -> Receipt:
    try:
        return await run.task(pay, payment)
    except OutcomeUnknown as unknown:
        await run.sleep("until it is settled", SETTLES_WITHIN)
        # The key the task saw: under it the provider has booked the payment, or has never heard of it.
        receipt = await run.task(find_payment, unknown.idempotency_key)
        if receipt is None:
            # A call of its own, with a key of its own; never made while the first may still arrive.
            receipt = await run.task(pay, payment)
        return receipt


worker = Worker([pay_once])
