"""The parts of `pointsman dev` that need no process: who is let in, what is found in a module, what is printed."""

import asyncio
import dataclasses
import enum
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec
import pydantic
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Message, Scope

from dispatcher import access
from dispatcher.cli.dev import example, findings, screen, target
from dispatcher.cli.dev.channel import Parent
from dispatcher.cli.dev.folder import Folder
from dispatcher.cli.dev.guard import Guard
from dispatcher.cli.dev.program import Program
from dispatcher.errors import StartUpError
from dispatcher.store import Store
from endpoint_sdk import Endpoint, Run, SyncRun, Worker, Workflow, task, workflow
from endpoint_sdk.wire import signature

SECRET = signature.new_secret()


class Colour(enum.Enum):
    RED = "red"


class Line(msgspec.Struct):
    sku: str
    count: int


class Order(msgspec.Struct):
    id: str
    lines: list[Line]
    colour: Colour
    note: str | None = None


@dataclasses.dataclass
class Parcel:
    weight: float
    express: bool
    kind: Literal["box", "bag"]


class Model(pydantic.BaseModel):
    name: str
    at: pydantic.AwareDatetime


@task
def charge(order_id: str) -> str:
    return order_id


@task
async def ship(order_id: str) -> str:
    return order_id


@workflow("order", version="1.2.0")
async def order(run: Run, request: Order) -> list[str]:
    charged = await run.task(charge, request.id)
    return [charged, *[await run.task(ship, line.sku) for line in request.lines]]


@workflow("plain")
def plain(run: SyncRun) -> None:
    run.task(charge, run.id)


# --- who is let in ---------------------------------------------------------------------------------------------------
async def _seen(headers: dict[str, str], client: str = "127.0.0.1") -> tuple[int, list[bytes]]:
    """The status of a request, and the credentials it arrived with."""
    credentials: list[bytes] = []
    statuses: list[int] = []

    async def app(scope: Scope, _receive: Any, send: Any) -> None:
        credentials.extend(value for name, value in scope["headers"] if name == b"authorization")
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Message:
        raise AssertionError("the guard reads no body")

    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    with socket.create_server(("127.0.0.1", 0)) as bound:
        guard = Guard(app, "pmk_session", bound)
    await guard({"type": "http", "headers": pairs, "client": (client, 1)}, receive, send)
    return statuses[0], credentials


@pytest.mark.parametrize("host", ["127.0.0.1:8400", "localhost:8400", "LOCALHOST", "[::1]:8400", "127.8.9.1"])
async def test_this_machine_acts_with_the_key_of_the_session(host: str) -> None:
    """A request for a loopback name without a key gets the session's."""
    assert await _seen({"host": host}) == (200, [b"Bearer pmk_session"])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "example.com"},
        {"host": "127.0.0.1.example.com"},
        {"host": "localhost@example.com"},
        {"host": "example.com\\@localhost"},
        {"host": "10.0.0.1"},
        {"host": "localhost", "origin": "https://example.com"},
        {"host": "localhost", "origin": "null"},
        {"host": "localhost", "origin": "http://[::1"},
    ],
)
async def test_others_are_refused(headers: dict[str, str]) -> None:
    """A Host or an Origin that is not this machine is answered 403 and reaches nothing."""
    assert await _seen(headers) == (403, [])


async def test_a_key_that_is_sent_is_judged_as_it_is() -> None:
    """The session's key never takes the place of another one; a caller from elsewhere is refused even so."""
    sent = {"host": "localhost", "authorization": "Bearer pmk_other"}
    assert await _seen(sent) == (200, [b"Bearer pmk_other"])
    assert await _seen(sent, client="10.0.0.9") == (403, [])


def test_only_loopback_is_served_without_sign_in() -> None:
    """A socket that others reach is refused, whoever asks."""
    with socket.create_server(("0.0.0.0", 0)) as bound, pytest.raises(StartUpError, match="this machine only"):
        Guard(Starlette(), "pmk_session", bound)


# --- the folder ------------------------------------------------------------------------------------------------------
def test_the_folder_is_private_kept_and_emptied(tmp_path: Path) -> None:
    """Mode 0700, hidden from git, one session at a time; credentials stay until a fresh start."""
    folder = Folder(tmp_path / ".pointsman")
    with folder.held(fresh=False):
        first = folder.credentials()
        with pytest.raises(StartUpError, match="Another"), Folder(tmp_path / ".pointsman").held(fresh=True):
            raise AssertionError("held twice")
    assert (tmp_path / ".pointsman").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / ".pointsman/credentials.json").stat().st_mode & 0o777 == 0o600
    with folder.held(fresh=False):
        assert folder.credentials() == first
    with folder.held(fresh=True):
        assert folder.credentials() != first


async def test_the_key_of_a_session_is_stored_once(sqlite_url: str) -> None:
    """It may do everything, execute included, is known to the next session, and stays revoked once it was."""
    store = Store.open(sqlite_url)
    try:
        key = access.new_key()
        assert await access.ensure(store, key, "dev", access.SCOPES)
        assert await access.ensure(store, key, "dev", access.SCOPES)
        (stored,) = await access.list_(store)
        assert set(stored.scopes) == set(access.SCOPES)
        await access.revoke(store, stored.id)
        assert not await access.ensure(store, key, "dev", access.SCOPES)
    finally:
        store.close()


# --- the process ------------------------------------------------------------------------------------------------------
class _Gone(subprocess.Popen[bytes]):
    """A process that has ended and been reaped, which its object has not noticed yet."""

    def poll(self) -> int | None:
        return None


async def test_a_process_that_ended_this_moment_can_be_ended() -> None:
    """Between the end of a process and the moment it is known, signals to it reach nobody, and that is no failure."""
    gone = _Gone([sys.executable, "-c", ""], start_new_session=True)
    await asyncio.to_thread(gone.wait)
    ours, theirs = socket.socketpair()
    with theirs:
        program = Program(gone, await Parent.over(ours))
        await program.end(0)
        assert await program.ended() == 0


# --- what is pointed at ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "root", "module", "name"),
    [
        ("app.py", "", "app", None),
        ("app.py:handler", "", "app", "handler"),
        ("app:handler", "", "app", "handler"),
        ("shop.web", "", "shop.web", None),
        ("shop/web.py", "", "shop.web", None),
        ("shop", "", "shop", None),
        ("src/tool.py", "src", "tool", None),
    ],
)
def test_targets(tmp_path: Path, text: str, root: str, module: str, name: str | None) -> None:
    """Files and modules, alone or in packages, come to what can be imported."""
    for file in ("app.py", "shop/__init__.py", "shop/web.py", "src/tool.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()

    found = target.parse(text, tmp_path)

    assert (found.root.resolve(), found.module, found.name) == ((tmp_path / root).resolve(), module, name)


@pytest.mark.parametrize("text", ["none.py", "none", "none:app", "app.py:not a name", "my-app.py", "", "a b"])
def test_targets_that_are_none(tmp_path: Path, text: str) -> None:
    """What cannot be imported by its name is refused in words."""
    (tmp_path / "my-app.py").touch()
    (tmp_path / "app.py").touch()
    with pytest.raises(target.NoSuchTarget):
        target.parse(text, tmp_path)


# --- what is found ---------------------------------------------------------------------------------------------------
@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module to put things in."""
    monkeypatch.setenv("POINTSMAN_SIGNING_SECRET", SECRET)
    monkeypatch.setenv("POINTSMAN_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("POINTSMAN_API_KEY", "pmk_x")
    made = ModuleType("shop.program")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def _found(module: ModuleType, name: str | None = None, **values: Any) -> findings.Found:
    vars(module).update(values)
    service, others = findings.choose(module, name)
    return findings.describe(service, others, module)


def test_an_endpoint_is_described(module: ModuleType) -> None:
    """Workflows come with their types, the tasks they name, and an input; the endpoint by the module's name."""
    found = _found(module, endpoint=Endpoint([order, plain]))

    assert (found.kind, found.what, found.endpoint, found.path) == ("asgi", "endpoint", "program", "/")
    first, second = found.workflows
    assert (first.name, first.version, first.takes, first.gives) == ("order", "1.2.0", "Order", "list[str]")
    assert first.tasks == ["charge", "ship"]
    assert json.loads(first.sample or "") == {
        "id": "id-1",
        "lines": [{"sku": "sku-1", "count": 1}],
        "colour": "red",
    }
    assert (second.takes, second.gives, second.sample) == ("nothing", "nothing", "null")


def test_a_handler_goes_before_an_application_and_a_worker_before_both(module: ModuleType) -> None:
    """Of the ways one endpoint can be served the handler is taken; another object is named as left over."""
    endpoint = Endpoint([order], name="shop")

    def mine(event: Any, _context: Any) -> Any:
        return event

    app = Starlette(routes=[Mount("/api", Starlette(routes=[Mount("/pointsman", endpoint.asgi)]))])
    mounted = _found(module, app=app, endpoint=endpoint)
    assert (mounted.kind, mounted.what, mounted.path, mounted.endpoint) == ("asgi", "app", "/api/pointsman/", "shop")
    assert mounted.others == []

    decorated = _found(module, handler=endpoint.lambda_handler(mine))
    assert (decorated.kind, decorated.what, decorated.others) == ("lambda", "handler", [])
    assert _found(module, "app").kind == "asgi"

    worker = _found(module, work=Worker([plain]))
    assert (worker.kind, worker.what, worker.others) == ("worker", "work", ["handler", "app"])
    assert [each.name for each in worker.workflows] == ["plain"]


def test_nothing_to_serve(module: ModuleType) -> None:
    """A module without an endpoint, and a name that is not there, say what to write."""
    with pytest.raises(findings.NothingFound, match="endpoint = Endpoint"):
        _found(module)
    with pytest.raises(findings.NothingFound, match="no app in"):
        _found(module, "app")


@pytest.mark.parametrize(
    ("annotation", "sample"),
    [
        (int, 1),
        (str, "a"),
        (list[int], [1]),
        (dict[str, int], {}),
        (Parcel, {"weight": 1.5, "express": True, "kind": "box"}),
        (Model, {"name": "name-1", "at": "2026-01-31T12:00:00Z"}),
        (tuple[int, str], [1, "a"]),
    ],
)
def test_examples_are_taken_by_their_workflow(annotation: Any, sample: Any) -> None:
    """An example of a type is an input of that type."""

    async def handler(run: Run, request: Any) -> None:
        del run, request

    handler.__annotations__ = {"run": Run, "request": annotation, "return": None}
    made: Workflow[Any, Any] = workflow("sample")(handler)

    assert json.loads(example.of(annotation, made) or "null") == sample


def test_the_next_step_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """What a shell would take apart is quoted; a workflow without input gets none."""
    described = findings.Described("it's", "1", "str", "str", [], '"a"')
    plain_one = findings.Described("plain", "1", "nothing", "nothing", [], "null")
    for each in (described, plain_one):
        screen.next_step(findings.Found("asgi", "endpoint", "x", "/", [each], []), " --url http://127.0.0.1:1")

    assert capsys.readouterr().out.splitlines() == [
        """$ pointsman run start 'it'"'"'s' '"a"' --watch --url http://127.0.0.1:1""",
        "$ pointsman run start plain --watch --url http://127.0.0.1:1",
    ]
