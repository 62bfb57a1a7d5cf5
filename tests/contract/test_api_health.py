"""Health over HTTP."""

import pytest

from dispatcher import errors
from dispatcher.api import health
from dispatcher.api.call import Answer, Call
from dispatcher.loop import Loop
from dispatcher.readiness import Readiness
from tests.contract.api import World, refused


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Idle:
    name = "idle"

    async def once(self) -> dict[str, int]:
        return {}


async def test_health_needs_no_credential(world: World) -> None:
    """healthz and readyz answer 200 without a credential."""
    assert (await world.nobody("GET", "/healthz")).json()["status"] == "ok"
    ready = await world.nobody("GET", "/readyz")
    assert (ready.status_code, ready.json()["checks"]["database"]) == (200, "ok")
    assert "recoverOverdueOutboxEntries" in ready.json()["checks"]


async def test_not_ready_when_a_daemon_is_stuck(world: World) -> None:
    """A loop without a good tick for too long makes the process not ready, by name."""
    clock = Clock()
    readiness = Readiness(world.store, [Loop(Idle(), 1_000, clock)])
    assert (await readiness.check())["idle"] == "ok"
    clock.now = 3_600
    with pytest.raises(errors.Unavailable) as caught:
        await readiness.check()

    assert caught.value.details == {"checks": {"database": "ok", "idle": "stuck"}}


async def test_not_ready_without_a_database(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that does not answer makes the process not ready: 503 with Retry-After."""

    async def unavailable(_operation: object) -> None:
        raise errors.Unavailable("unavailable", "the database does not answer")

    monkeypatch.setattr(world.store, "transact", unavailable)
    answer = await world.nobody("GET", "/readyz")

    error = refused(answer, 503, "unavailable")
    assert error["details"]["checks"]["database"] == "failing"
    assert answer.headers["retry-after"] == "5"


async def test_crash_is_a_500_without_its_cause(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug is a 500 with a request id; neither the answer nor the log quotes what the exception said."""

    async def broken(_call: Call) -> Answer:
        raise RuntimeError("payload hunter22")

    monkeypatch.setattr("dispatcher.api.server._ROUTES.find", lambda _call: broken)
    answer = await world.nobody("GET", "/healthz")

    refused(answer, 500, "internal")
    assert "hunter22" not in answer.text + caplog.text
    assert health.healthz is not broken
