"""Schedules of a dispatcher that runs: from the file, after a reload, from what is declared, and to the doctor."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from dispatcher import access
from dispatcher.api.server import Api
from dispatcher.app import Dispatcher
from dispatcher.cli.application import application
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Settings
from dispatcher.store import Store
from endpoint_sdk.wire.messages import Schedule, ServedWorkflow
from tests.contract.api import Caller
from tests.integration.waiting import until

URL = "http://dispatcher.test"
ADMIN = "pmk_" + "a" * 43
BEAT = {"workflow": "report", "version": "1", "everyMs": 1_000, "overlap": "allow"}


def settings(**schedules: Any) -> Settings:
    return Settings.model_validate({"schedules": schedules})


class Running:
    """A dispatcher with its daemons, and a caller of its API."""

    def __init__(self, store: Store) -> None:
        self.dispatcher = Dispatcher(settings(beat=BEAT), store, ServerKeys.generated(), URL)
        transport = httpx.ASGITransport(app=Api(self.dispatcher.services))
        self.client = httpx.AsyncClient(transport=transport, base_url=URL)
        self.admin = Caller(self.client, ADMIN)

    async def schedules(self) -> dict[str, dict[str, Any]]:
        """What the API shows, by name."""
        answer = await self.admin("GET", "/v1/schedules")
        return {item["name"]: item for item in answer.json()["items"]}

    async def runs(self, schedule: str) -> list[dict[str, Any]]:
        """The runs the schedule has started."""
        answer = await self.admin("GET", "/v1/runs")
        return [item for item in answer.json()["items"] if item["schedule"] == schedule]


@pytest.fixture
async def running(database_url: str) -> AsyncIterator[Running]:
    """A dispatcher whose file describes the schedule beat, once on each database."""
    store = Store.open(database_url)
    await access.ensure_admin(store, ADMIN)
    made = Running(store)
    await made.dispatcher.start()
    yield made
    await made.client.aclose()
    await made.dispatcher.stop()


async def test_a_schedule_of_the_file_from_start_to_reload(running: Running) -> None:
    """It fires from the start on; a reload changes it, adds another and removes it, and its runs stay."""
    [run, *_] = await until(lambda: running.runs("beat"))
    assert (run["workflow"], run["status"]) == ("report", "queued")
    await running.dispatcher.reload(settings(beat={**BEAT, "everyMs": 60_000}, other=BEAT))
    shown = await running.schedules()
    assert {name: item["everyMs"] for name, item in shown.items()} == {"beat": 60_000, "other": 1_000}
    assert shown["beat"]["last"]["runId"]
    assert await until(lambda: running.runs("other"))
    await running.dispatcher.reload(settings())
    assert await running.schedules() == {}
    assert await running.runs("beat")


async def test_what_is_declared_fires(running: Running) -> None:
    """A declaration becomes a schedule as soon as it is announced, and starts the version that declares it."""
    registry = running.dispatcher.registry
    await registry.pollers.saw("default", [("digest", "7")])
    await registry.declarations.put("default", [ServedWorkflow("digest", "7", schedule=Schedule(every_ms=1_000))])
    [run, *_] = await until(lambda: running.runs("digest"))
    assert (run["version"], run["input"]) == ("7", None)
    assert (await running.schedules())["digest"]["owner"] == "code"


def test_the_doctor_warns_of_a_workflow_nobody_serves(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule in force whose workflow nobody serves is a warning that names both; nothing fails."""
    for name in ("CONFIG", "DATABASE_URL", "SECRET_KEY", "ADMIN_KEY", "PUBLIC_URL", "LISTEN", "API_KEY", "URL"):
        monkeypatch.delenv(f"POINTSMAN_{name}", raising=False)
    store = Store.open(sqlite_url)
    dispatcher = Dispatcher(settings(beat=BEAT), store, ServerKeys.generated(), URL)
    try:
        asyncio.run(dispatcher._apply(dispatcher.settings))
    finally:
        store.close()
    result = CliRunner().invoke(application, ["doctor", "--database", sqlite_url, "-o", "json"])
    found = {item["check"]: item for item in json.loads(result.stdout)["items"]}
    assert result.exit_code == 0
    assert (found["schedules"]["status"], found["schedules"]["message"]) == (
        "warn",
        "beat: nobody serves the workflow report 1.",
    )
    assert "pointsman schedule list" in found["schedules"]["todo"]
