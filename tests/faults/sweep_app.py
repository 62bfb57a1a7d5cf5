"""The endpoint the faults happen to: three recorded tasks, the middle one at most once; each body leaves a line."""

import os
from pathlib import Path

from endpoint_sdk import Endpoint, OutcomeUnknown, Run, task, task_context, workflow

_LOG = Path(os.environ.get("BODY_LOG", os.devnull))


def _note(name: str) -> None:
    with _LOG.open("a") as log:
        log.write(f"{task_context().run_id} {name}\n")


@task
def reserve(order: str) -> str:
    _note("reserve")
    return f"reserved {order}"


@task(at_most_once=True)
def pay(order: str) -> str:
    _note("pay")
    return f"paid {order}"


@task
async def ship(order: str) -> str:
    _note("ship")
    return f"shipped {order}"


@workflow("sweep", version="1")
async def sweep(run: Run, order: str) -> list[str]:
    done = [await run.task(reserve, order)]
    try:
        done.append(await run.task(pay, order))
    except OutcomeUnknown:
        done.append("payment unknown")
    done.append(await run.task(ship, order))
    return done


endpoint = Endpoint(workflows=[sweep])
app = endpoint.asgi
