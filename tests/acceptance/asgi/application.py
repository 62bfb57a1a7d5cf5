"""An application as a user serves it with uvicorn."""

import os
import time
from pathlib import Path

from endpoint_sdk.endpoint import Endpoint
from endpoint_sdk.run import Run
from endpoint_sdk.tasks import task
from endpoint_sdk.workflow import workflow


@task(name="slow")
def slow(value: str) -> str:
    """Runs until the test makes the file it waits for."""
    Path(os.environ["POINTSMAN_TEST_ENTERED"]).touch()
    while not Path(os.environ["POINTSMAN_TEST_OPEN"]).exists():
        time.sleep(0.01)
    return value


@task(name="after")
async def after(value: str) -> str:
    return value


@workflow("slowly")
async def slowly(run: Run, value: str) -> str:
    return await run.task(after, await run.task(slow, value))


app = Endpoint([slowly]).asgi
