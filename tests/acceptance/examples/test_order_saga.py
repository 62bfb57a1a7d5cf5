"""The order saga on a Lambda function URL: the real runtime client, pushed to by a dispatcher, parked and woken."""

import asyncio
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dispatcher.cli.demo.front import to_event, to_reply
from dispatcher.cli.demo.loopback import Received
from endpoint_sdk import Client, RunCancelled
from tests.acceptance.examples.conftest import EXAMPLES, imported
from tests.acceptance.lambda_runtime.runtime_api import LambdaRuntime
from tests.faults import rig


class FunctionUrl:
    """HTTP in, payload 2.0 events to the sandbox, its answers out."""

    def __init__(self, runtime: LambdaRuntime) -> None:
        self._runtime = runtime
        routes = [Route("/", self._answer, methods=["GET", "POST"])]
        self.serving = rig.Serving(lambda _: Starlette(routes=routes)).open()

    async def _answer(self, request: Request) -> Response:
        received = Received(request.method, "/", "", dict(request.headers), await request.body())
        invocation = await asyncio.to_thread(self._runtime.invoke, to_event(received))
        reply = to_reply(json.dumps(invocation.payload).encode())
        return Response(reply.body, reply.status, reply.headers)


@pytest.fixture(scope="module")
def function(http: httpx.Client, url: str) -> Iterator[None]:
    """The function behind its URL, known to the dispatcher."""
    settings = {"POINTSMAN_URL": url, "POINTSMAN_SIGNING_SECRET": rig.SECRET}
    runtime = LambdaRuntime("order_saga.handler", EXAMPLES, timeout=20, environment=settings)
    assert runtime.initialised.wait(20)
    assert runtime.init_error is None, runtime.init_error
    front = FunctionUrl(runtime)
    described = {"name": "orders", "url": f"{front.serving.url}/", "secret": rig.SECRET, "platform": "lambda-url"}
    added = http.post("/v1/endpoints", json={**described, "allowHttp": True})
    assert added.status_code == 201, added.text
    assert added.json()["test"]["ok"], added.text
    yield
    front.serving.stop()
    runtime.close()


@pytest.fixture(scope="module")
def saga(function: None, environment: dict[str, str]) -> ModuleType:
    """What whoever starts orders imports: the function serves the same code from its own process."""
    return imported("order_saga")


def _tasks(http: httpx.Client, run_id: str) -> list[tuple[str, str]]:
    records: list[dict[str, Any]] = http.get(f"/v1/runs/{run_id}/records").json()["items"]
    return [(each["name"], each["state"]) for each in records if each["kind"] == "task"]


def _paid(http: httpx.Client, run_id: str) -> bool:
    return bool(rig.run_of(http, run_id)["status"] == "awaiting_event")


def test_an_order_is_charged_packed_and_shipped(saga: ModuleType, client: Client, http: httpx.Client) -> None:
    """The function returns while the warehouse packs, and is invoked again by the event."""
    started = client.start(saga.place_order, saga.Order("o1", "tea", 500, "4242", "Main St 1"))
    rig.until(lambda: _paid(http, started.id), what="the payment")
    assert rig.run_of(http, started.id)["note"] == "paid, waiting for the warehouse"

    started.send("packed", {"boxes": 1})

    assert started.result(timeout=20) == saga.Placed("shipped", "parcel o1")
    assert _tasks(http, started.id) == [("reserve", "completed"), ("charge", "completed"), ("ship", "completed")]


@pytest.mark.parametrize(
    ("card", "address", "status", "tasks"),
    [
        ("0002", "Main St 1", "declined", [("reserve", "completed"), ("charge", "failed"), ("release", "completed")]),
        (
            "4242",
            "",
            "undeliverable",
            [
                ("reserve", "completed"),
                ("charge", "completed"),
                ("ship", "failed"),
                ("refund", "completed"),
                ("release", "completed"),
            ],
        ),
    ],
)
def test_what_was_done_is_undone_in_reverse_order(
    card: str,
    address: str,
    status: str,
    tasks: list[tuple[str, str]],
    saga: ModuleType,
    client: Client,
    http: httpx.Client,
) -> None:
    """Each step that was taken is taken back once, by a task of its own; the run completes with what became of it."""
    started = client.start(saga.place_order, saga.Order("o2", "tea", 500, card, address))
    started.send("packed", None)

    assert started.result(timeout=20) == saga.Placed(status)
    assert _tasks(http, started.id) == tasks


def test_a_cancelled_order_gives_the_money_back(saga: ModuleType, client: Client, http: httpx.Client) -> None:
    """Cancelled while it waits for the warehouse, it refunds and releases, and ends cancelled."""
    started = client.start(saga.place_order, saga.Order("o3", "tea", 500, "4242", "Main St 1"))
    rig.until(lambda: _paid(http, started.id), what="the payment")

    started.cancel("customer changed their mind")

    with pytest.raises(RunCancelled):
        started.result(timeout=20)
    assert _tasks(http, started.id)[2:] == [("refund", "completed"), ("release", "completed")]
