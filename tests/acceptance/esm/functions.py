"""Lambda functions behind an SQS event source, loaded by the real runtime client.

Bodies leave marks, `<run id> <body>`, in the file POINTSMAN_TEST_MARKS names, which outlives a killed sandbox.
"""

import os
import time
from pathlib import Path
from typing import Any

from endpoint_sdk import Endpoint, Run, task, workflow

MARKS = Path(os.environ["POINTSMAN_TEST_MARKS"])


def mark(text: str) -> None:
    with MARKS.open("a") as marks:
        marks.write(text + "\n")


@task(name="first")
def first(run_id: str) -> str:
    mark(f"{run_id} first")
    return "first"


@task(name="second")
async def second(run_id: str) -> str:
    mark(f"{run_id} second")
    return "second"


@task(name="hang")
def hang(run_id: str) -> str:
    """Outlives its function the first time; a second time it returns."""
    again = f"{run_id} hang" in MARKS.read_text()
    mark(f"{run_id} hang")
    while not again:
        time.sleep(0.05)
    return "hang"


@task(name="wait")
def wait(run_id: str) -> str:
    """Returns once the test has made the file POINTSMAN_TEST_MARKS with .go behind its name."""
    mark(f"{run_id} wait")
    while not MARKS.with_suffix(".go").exists():
        time.sleep(0.02)
    return "wait"


@task(name="pause")
def pause(run_id: str, number: int) -> int:
    mark(f"{run_id} pause")
    time.sleep(0.4)
    return number


@workflow("order")
async def order(run: Run, value: str) -> str:
    await run.task(first, run.id)
    return await run.task(second, run.id)


@workflow("endless")
async def endless(run: Run, value: str) -> str:
    await run.task(first, run.id)
    return await run.task(hang, run.id)


@workflow("waiting")
async def waiting(run: Run, value: str) -> str:
    return await run.task(wait, run.id)


@workflow("long")
async def long(run: Run, value: str) -> str:
    for number in range(8):
        await run.task(pause, run.id, number)
    return value


WORKFLOWS = [order, endless, waiting, long]

endpoint = Endpoint(WORKFLOWS)
handler = endpoint.lambda_handler

one_at_a_time = Endpoint(WORKFLOWS, max_concurrent_runs=1).lambda_handler


def no_secret() -> str:
    raise RuntimeError("the secret store is away")


without_secret = Endpoint(WORKFLOWS, secret=no_secret).lambda_handler


@endpoint.lambda_handler
def over(event: Any, context: Any) -> Any:
    """The user's own handler: what its messages say is what it does."""
    for record in event["Records"]:
        mark(f"theirs {record['body']}")
    bodies = [record["body"] for record in event["Records"]]
    if "raise" in bodies:
        raise ValueError("the user's own")
    if "done" in bodies:
        return "done"
    failed = [record["messageId"] for record in event["Records"] if record["body"] == "bad"]
    return {"batchItemFailures": [{"itemIdentifier": each} for each in failed]} if failed else None


@endpoint.lambda_handler
async def over_async(event: Any, context: Any) -> Any:
    for record in event["Records"]:
        mark(f"theirs {record['body']}")
    return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in event["Records"]]}
