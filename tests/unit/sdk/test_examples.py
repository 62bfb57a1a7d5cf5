"""The programs of infra/example in the test kit, as their users would test them: in memory, every step replayed."""

import importlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest

from endpoint_sdk import RunCancelled
from endpoint_sdk.testing import Calls, WorkflowTester, lambda_event
from endpoint_sdk.wire import signature

ENVIRONMENT = {
    "POINTSMAN_URL": "http://127.0.0.1:9",
    "POINTSMAN_API_KEY": "pmk_" + "x" * 40,
    "POINTSMAN_SIGNING_SECRET": signature.new_secret(),
    "PROVIDER_URL": "http://127.0.0.1:9",
}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a program under an environment in which nothing can be reached."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return lambda name: importlib.import_module(f"infra.example.{name}")


def test_the_saga_undoes_what_was_done(program: Callable[[str], ModuleType]) -> None:
    """In reverse order, when the card is declined, when nobody delivers there, and when somebody cancels."""
    saga = program("order_saga")
    t = WorkflowTester()
    released: Calls[...] = t.stub(saga.release, None)
    refunded: Calls[...] = t.stub(saga.refund, None)
    order = saga.Order("o1", "tea", 500, "4242", "Main St 1")

    assert t.run(saga.place_order, saga.Order("o1", "tea", 500, "0002", "Main St 1")) == saga.Placed("declined")
    assert (released.count, refunded.count) == (1, 0)

    run = t.start(saga.place_order, saga.Order("o2", "tea", 500, "4242", ""))
    run.send("packed", {"boxes": 1})
    assert run.result() == saga.Placed("undeliverable")
    assert (released.count, refunded.count) == (2, 1)
    assert [step.name for step in run.history][-2:] == ["refund", "release"]

    run = t.start(saga.place_order, order)
    run.cancel("changed my mind")
    assert (released.count, refunded.count) == (3, 2)
    with pytest.raises(RunCancelled, match="changed my mind"):
        run.result()


def test_the_saga_ships_what_is_packed(program: Callable[[str], ModuleType]) -> None:
    """Also where its executor dies between the payment and its record."""
    saga = program("order_saga")
    t = WorkflowTester()
    charged: Calls[...] = t.stub(saga.charge, "receipt 1")
    t.crash_after(saga.charge)
    run = t.start(saga.place_order, saga.Order("o1", "tea", 500, "4242", "Main St 1"))
    run.send("packed", None)

    assert run.result() == saga.Placed("shipped", "parcel o1")
    assert charged.count == 2


def test_the_approval_waits_for_fourteen_days(program: Callable[[str], ModuleType]) -> None:
    """And no longer."""
    approval = program("approval")
    t = WorkflowTester()
    expense = approval.Expense("e1", 500, "ana")
    decided, forgotten = t.start(approval.approval, expense), t.start(approval.approval, expense)
    decided.advance(timedelta(days=13, hours=23))
    assert forgotten.waiting_for == {"decision"}
    decided.send(approval.DECISION, approval.Approved("ana"))
    decided.advance(timedelta(hours=1))

    assert decided.result() == "transfer of 500 for e1"
    assert (forgotten.status, forgotten.result()) == ("completed", "rejected by nobody: no decision in 14 days")


def test_the_payment_is_made_once(program: Callable[[str], ModuleType]) -> None:
    """Of one whose outcome nobody knows, the provider is asked; it is made anew only if the provider has none."""
    payment = program("payment")
    t = WorkflowTester()
    receipt, wanted = payment.Receipt("p1", 500), payment.Payment("a1", 500)
    paid, looked = t.stub(payment.pay, receipt), t.stub(payment.find_payment, receipt)

    t.crash_after(payment.pay)
    assert t.run(payment.pay_once, wanted) == receipt
    assert (paid.count, looked.count) == (1, 1)

    t.stub(payment.find_payment, None)
    paid = t.stub(payment.pay, receipt)
    t.crash_after(payment.pay)
    assert t.run(payment.pay_once, wanted) == receipt
    assert paid.count == 2


def test_the_batch_sums_its_invoices(program: Callable[[str], ModuleType]) -> None:
    """A child for each."""
    fan_out = program("fan_out")

    assert WorkflowTester().run(fan_out.make_batch, fan_out.Batch("b", 20)) == fan_out.Totals(20, 19_000)


def test_the_report_is_about_the_day_before(program: Callable[[str], ModuleType]) -> None:
    """Whenever it is executed."""
    report = program("cron_report")

    assert WorkflowTester(now=datetime(2026, 3, 2, 5, tzinfo=UTC)).run(report.daily_report).startswith("01.03.2026:")


def test_the_quick_starts_handler_takes_a_function_url_event(program: Callable[[str], ModuleType]) -> None:
    """Signed, claimed, executed and answered, with no network."""
    app = program("app")
    event = lambda_event("function-url", app.endpoint, app.order, app.OrderRequest("o1", 500))

    assert app.handler(event, None)["statusCode"] == 200
    app.handler.close()
