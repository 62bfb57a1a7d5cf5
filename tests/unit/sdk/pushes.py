"""An endpoint whose calls reach the in-memory dispatcher, and signed pushes for it."""

import time
from typing import Any

import msgspec

from endpoint_sdk.answers import HttpAnswer
from endpoint_sdk.endpoint import Endpoint
from endpoint_sdk.run import Run
from endpoint_sdk.tasks import task
from endpoint_sdk.wire import signature
from endpoint_sdk.workflow import workflow
from tests.unit.sdk.dispatcher_double import RUN_ID, DispatcherDouble

SECRET = signature.new_secret()
KEY = signature.parse_secret(SECRET)

bodies: list[str] = []


@task
async def note(value: str) -> str:
    bodies.append(value)
    return value


@workflow("order", version="2", accepts=["1"])
async def order(run: Run, value: str) -> str:
    return await run.task(note, value)


def endpoint(dispatcher: DispatcherDouble | None = None, **options: Any) -> Endpoint:
    """An endpoint whose calls reach *dispatcher* instead of a network."""
    made = Endpoint([order], secret=options.pop("secret", SECRET), **options)
    made.executor._transport = dispatcher or DispatcherDouble()  # type: ignore[assignment]
    return made


def signed(body: bytes, *, age: int = 0, key: bytes = KEY, message_id: str = f"{RUN_ID}_4") -> dict[str, str]:
    return signature.sign([key], message_id, int(time.time()) - age, body)


def pushed(dispatcher: DispatcherDouble, **changes: object) -> bytes:
    return msgspec.json.encode(dispatcher.delivery(**changes))


async def deliver(one: Endpoint, body: bytes, **signing: Any) -> HttpAnswer:
    try:
        return await one.handle("POST", signed(body, **signing), body)
    finally:
        assert one.executor.stop_refreshing()
