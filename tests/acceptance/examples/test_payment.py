"""The payment at most once: its worker killed in the middle of the call, the provider is asked and pays once."""

import threading
from collections.abc import Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from endpoint_sdk import Client
from tests.acceptance.examples.conftest import EXAMPLES
from tests.acceptance.worker.processes import WorkerProcess
from tests.faults import rig


class Provider:
    """Books every payment it is asked for, keys or not; may keep quiet, before or after it has booked."""

    def __init__(self) -> None:
        self.booked: dict[str, int] = {}
        self.asked = threading.Event()
        self.silent: str | None = None
        routes = [
            Route("/payments", self._pay, methods=["POST"]),
            Route("/payments/{reference}", self._find),
        ]
        self.serving = rig.Serving(lambda _: Starlette(routes=routes)).open()

    async def _pay(self, request: Request) -> JSONResponse:
        body = await request.json()
        silent, self.silent = self.silent, None
        if silent != "before":
            self.booked[body["reference"]] = body["cents"]
        self.asked.set()
        while silent is not None and (await request.receive())["type"] != "http.disconnect":
            continue
        return JSONResponse({"id": f"p-{len(self.booked)}"})

    async def _find(self, request: Request) -> JSONResponse:
        cents = self.booked.get(request.path_params["reference"])
        if cents is None:
            return JSONResponse({}, 404)
        return JSONResponse({"id": "p-1", "cents": cents})


@pytest.fixture(scope="module")
def bank() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.serving.stop()


@pytest.fixture
def provider(bank: Provider) -> Provider:
    """The bank, with nothing booked yet."""
    bank.booked.clear()
    bank.asked.clear()
    return bank


@pytest.fixture(scope="module")
def worker(
    environment: dict[str, str], bank: Provider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    settings = {"PROVIDER_URL": bank.serving.url, "PROVIDER_SETTLE_SECONDS": "0"}
    folder = tmp_path_factory.mktemp("payment")
    process = WorkerProcess(folder, "payment", EXAMPLES / "payment.py", **environment, **settings)
    yield process.start()
    process.stop()


def _killed_while_paying(worker: WorkerProcess, provider: Provider, client: Client) -> str:
    run_id = client.start("payment", {"account": "a1", "cents": 500}, version="1.0.0").id
    assert provider.asked.wait(20)
    worker.process.kill()
    worker.process.wait(10)
    worker.start()
    return run_id


@pytest.mark.parametrize("silent", ["after", "before"])
def test_killed_in_the_middle_of_a_payment_it_pays_once(
    silent: str, worker: WorkerProcess, provider: Provider, client: Client, http: httpx.Client
) -> None:
    """Booked before the kill, the receipt is found; never booked, one further call is made."""
    provider.silent = silent

    run = rig.ended(http, _killed_while_paying(worker, provider, client), 60)

    assert run["status"] == "completed", run
    assert run["result"]["cents"] == 500
    assert list(provider.booked.values()) == [500]
    records = http.get(f"/v1/runs/{run['id']}/records").json()["items"]
    assert [(each["name"], each["state"]) for each in records if each["kind"] == "task"][:3] == [
        ("pay", "started"),
        ("pay", "failed"),
        ("find_payment", "completed"),
    ]


def test_a_payment_that_answers_is_made_by_one_call(worker: WorkerProcess, provider: Provider, client: Client) -> None:
    """Nothing is asked where everything went well."""
    del worker
    receipt = client.start("payment", {"account": "a1", "cents": 700}, version="1.0.0").result(timeout=20)

    assert receipt == {"id": "p-1", "cents": 700}
    assert list(provider.booked.values()) == [700]
