"""endpoint_sdk.testing on a real dispatcher, and a run exported from it replayed against the code of a later day."""

import builtins
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dispatcher.cli.application import application
from endpoint_sdk import Client, ConfigurationError, Endpoint, Event, RetryAfterError, Run, task, task_context, workflow
from endpoint_sdk.testing import ReplayDiverged, WorkflowTester, local_dispatcher
from endpoint_sdk.wire import signature

DECISION = Event[bool]("decision")

bodies: list[str] = []


@task
def charge(order: str, cents: int) -> str:
    bodies.append(order)
    if task_context().attempt == 1:
        raise RetryAfterError(0.01, "busy")
    return f"receipt {order}"


@workflow("order")
async def order(run: Run, name: str) -> str:
    receipt = await run.task(charge, name, 500)
    decision = await run.wait_event(DECISION, timeout=timedelta(days=1))
    return f"{receipt} {decision} {run.uuid()}"


@workflow("hello")
async def hello(run: Run, name: str) -> str:
    return f"hello {name}"


@workflow("greetings")
async def greetings(run: Run, names: list[str]) -> list[str]:
    first = await run.start_child(hello, "first")
    return [*await run.map(hello, names), *await run.map(hello, names[:1]), await first.result()]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of one dispatcher for all tests here; its endpoints name a dispatcher they must not call."""
    endpoints = [
        Endpoint([served], secret=signature.new_secret(), url="https://production.invalid")
        for served in (order, hello, greetings)
    ]
    with local_dispatcher(*endpoints) as opened:
        yield opened
    for endpoint in endpoints:
        assert endpoint._url == "https://production.invalid"


def test_a_run_goes_all_the_way(client: Client) -> None:
    """Submitted, pushed, executed, its result read: with the server that runs in production."""
    assert client.start(hello, "ana").result(timeout=20) == "hello ana"


def test_an_exported_run_is_replayed_without_running_a_body(client: Client, tmp_path: Path) -> None:
    """Every record of the run, to the same result; while it waits, to the point where it would go on."""
    bodies.clear()
    handle = client.start(order, "o1")
    waiting = _exported(client, handle.id, tmp_path / "waiting.json", until="awaiting_event")
    handle.send(DECISION, True)
    result = handle.result(timeout=20)
    ended = _exported(client, handle.id, tmp_path / "ended.json")
    assert bodies == ["o1", "o1"]
    t = WorkflowTester()

    assert t.replay(order, waiting).status == "goes on"
    assert t.replay(order, ended).result == result
    assert bodies == ["o1", "o1"]


def test_an_exported_run_has_the_results_of_its_children(client: Client, tmp_path: Path) -> None:
    """Those of a call of many are in no record of the parent; nobody starts a child again."""
    handle = client.start(greetings, ["ana", "bo"])
    result = handle.result(timeout=20)
    path = _exported(client, handle.id, tmp_path / "run.json")

    assert result == ["hello ana", "hello bo", "hello ana", "hello first"]
    assert WorkflowTester().replay(greetings, path).result == result


def test_code_that_no_longer_fits_an_exported_run_is_told(client: Client, tmp_path: Path) -> None:
    """Divergence names the argument that changed; other failures are the code's own."""
    handle = client.start(order, "o2")
    path = _exported(client, handle.id, tmp_path / "run.json", until="awaiting_event")

    @workflow("order")
    async def dearer(run: Run, name: str) -> str:
        return await run.task(charge, name, 550)

    @workflow("order")
    async def broken(run: Run, name: str) -> str:
        await run.task(charge, name, 500)
        raise KeyError(name)

    t = WorkflowTester()
    with pytest.raises(ReplayDiverged, match=r"recorded task charge .*550.* is new; changed: cents"):
        t.replay(dearer, path)
    replayed = t.replay(broken, path)
    assert (replayed.status, type(replayed.error)) == ("failed", KeyError)
    with pytest.raises(ConfigurationError, match="does not continue"):
        t.replay(hello, path)
    path.write_text("{}")
    with pytest.raises(ConfigurationError, match="no run that `pointsman run export` wrote"):
        t.replay(order, path)


def test_without_the_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK alone has no dispatcher to start."""
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "uvicorn":
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r'pip install "pointsman\[server\]"'), local_dispatcher():
        pass


def _exported(client: Client, run_id: str, path: Path, until: str | None = None) -> Path:
    """The file `pointsman run export` writes, once the run has the status *until*."""
    url = client._base
    key = client._headers["authorization"].removeprefix("Bearer ")
    for _ in range(200):
        words = ["run", "export", run_id, "--to", str(path), "--url", url, "--api-key", key]
        done = CliRunner().invoke(application, words)
        assert done.exit_code == 0, done.output
        if until is None or json.loads(path.read_text())["run"]["status"] == until:
            return path
    raise AssertionError(path.read_text())
