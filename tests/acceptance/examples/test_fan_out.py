"""The fan-out: a batch of children, one result, one run that waits for all of them."""

from collections.abc import Callable
from types import ModuleType

import httpx
import pytest

from endpoint_sdk import Client, Worker
from tests.acceptance.examples.conftest import imported

INVOICES = 50


@pytest.fixture(scope="module")
def program(environment: dict[str, str], serve: Callable[[Worker], None]) -> ModuleType:
    module = imported("fan_out")
    serve(module.worker)
    return module


def test_fifty_invoices_make_one_batch(program: ModuleType, client: Client, http: httpx.Client) -> None:
    """Each is a run of its own; the parent is woken once they are all done, and not once for each."""
    started = client.start(program.make_batch, program.Batch("december", INVOICES))

    assert started.result(timeout=60) == program.Totals(INVOICES, sum(range(INVOICES)) * 100)
    found = http.get("/v1/runs", params={"workflow": "invoice-of-a-batch", "limit": 100}).json()["items"]
    assert {each["parentId"] for each in found} == {started.id}
    assert {each["status"] for each in found} == {"completed"}
    assert len(found) == INVOICES
    wakes = [each for each in _transitions(http, started.id) if each["reason"] == "child"]
    assert len(wakes) == 1


def _transitions(http: httpx.Client, run_id: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = http.get(f"/v1/runs/{run_id}/transitions", params={"limit": 100}).json()["items"]
    return found
