"""The report by the clock: its schedule comes with the code, and can be fired by hand."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from dispatcher.cli.application import application
from endpoint_sdk import Worker
from tests.acceptance.examples.conftest import imported
from tests.faults import rig


@pytest.fixture(scope="module")
def schedule(
    environment: dict[str, str], serve: Callable[[Worker], None], http: httpx.Client
) -> Callable[[], dict[str, Any]]:
    """The schedule as the dispatcher knows it, once the worker has said what it serves."""
    serve(imported("cron_report").worker)

    def shown() -> dict[str, Any]:
        answer = http.get("/v1/schedules/daily-report")
        found: dict[str, Any] = answer.json()["schedule"] if answer.status_code == 200 else {}
        return found

    rig.until(shown, what="the schedule")
    return shown


def test_the_next_reports_are_on_working_days_at_six_in_rome(schedule: Callable[[], dict[str, Any]]) -> None:
    """Five are foretold; over the year they are at four or five o'clock in UTC."""
    upcoming = [datetime.fromisoformat(each) for each in schedule()["next"]]

    assert len(upcoming) == 5
    assert {each.hour for each in upcoming} <= {4, 5}
    assert all(each.weekday() < 5 for each in upcoming)


def test_a_report_is_made_now(
    schedule: Callable[[], dict[str, Any]], http: httpx.Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`schedule run-now` starts one run, for the day before; the schedule goes on as before."""
    monkeypatch.setenv("POINTSMAN_URL", url)
    monkeypatch.setenv("POINTSMAN_API_KEY", rig.ADMIN_KEY)
    before = schedule()["next"]

    fired = CliRunner().invoke(application, ["schedule", "run-now", "daily-report"])

    assert fired.exit_code == 0, fired.output
    run = http.get("/v1/runs", params={"workflow": "daily-report"}).json()["items"][0]
    ended = rig.ended(http, run["id"])
    assert ended["status"] == "completed"
    day = datetime.fromisoformat(ended["scheduledFor"] or ended["createdAt"]).date() - timedelta(days=1)
    assert ended["result"].startswith(f"{day:%d.%m.%Y}: ")
    assert schedule()["next"] == before
