"""The fourteen-day approval: decided by an event, or by nobody."""

from collections.abc import Callable
from types import ModuleType

import httpx
import pytest
from typer.testing import CliRunner

from dispatcher.cli.application import application
from endpoint_sdk import Client, Worker
from tests.acceptance.examples.conftest import imported
from tests.faults import rig


@pytest.fixture(scope="module")
def program(environment: dict[str, str], serve: Callable[[Worker], None]) -> ModuleType:
    module = imported("approval")
    serve(module.worker)
    return module


def _waits(http: httpx.Client, run_id: str) -> bool:
    return bool(rig.run_of(http, run_id)["status"] == "awaiting_event")


def test_a_decision_sent_to_the_parked_run_is_its_result(
    program: ModuleType, client: Client, http: httpx.Client
) -> None:
    """The run is parked, by no executor held, when somebody decides by its idempotency key."""
    started = client.start(program.approval, program.Expense("e1", 500, "ana"), idempotency_key="e1")
    rig.until(lambda: _waits(http, started.id), what="the wait")

    client.get(program.approval, idempotency_key="e1").send(program.DECISION, program.Approved("ana"))

    assert started.result(timeout=20) == "transfer of 500 for e1"


def test_whoever_has_no_sdk_names_the_class(program: ModuleType, client: Client, http: httpx.Client) -> None:
    """An event over plain HTTP says which of the two decisions it is."""
    started = client.start(program.approval, program.Expense("e2", 500, "ana"))
    value = {"type": "Rejected", "value": {"by": "bo", "reason": "too much"}}

    sent = http.post(f"/v1/runs/{started.id}/events", json={"name": "decision", "value": value})

    assert sent.status_code == 200, sent.text
    assert started.result(timeout=20) == "rejected by bo: too much"


def test_after_fourteen_days_nobody_has_decided(
    program: ModuleType, client: Client, http: httpx.Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Woken instead of waited for, the run takes the default, as it would when its time is up."""
    started = client.start(program.approval, program.Expense("e3", 500, "ana"))
    rig.until(lambda: _waits(http, started.id), what="the wait")
    monkeypatch.setenv("POINTSMAN_URL", url)
    monkeypatch.setenv("POINTSMAN_API_KEY", rig.ADMIN_KEY)

    woken = CliRunner().invoke(application, ["run", "wake", started.id])

    assert woken.exit_code == 0, woken.output
    assert started.result(timeout=20) == "rejected by nobody: no decision in 14 days"
