"""endpoint_sdk.asgi: the application itself, and under a real uvicorn."""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest
import uvicorn

from endpoint_sdk.endpoint import Endpoint
from endpoint_sdk.run import Run
from endpoint_sdk.tasks import task
from endpoint_sdk.transport import Answer, AsyncTransport
from endpoint_sdk.wire import limits, messages, signature
from endpoint_sdk.workflow import workflow
from tests.unit.sdk.dispatcher_double import RUN_ID, DispatcherDouble
from tests.unit.sdk.http_dispatcher import HttpDispatcher, serving

SECRET = signature.new_secret()
KEY = signature.parse_secret(SECRET)


class Gate:
    """Holds a task's body until the test lets it go."""

    entered: threading.Event
    open: threading.Event

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()


gate = Gate()


@task(name="slow")
def slow(value: str) -> str:
    gate.entered.set()
    assert gate.open.wait(10)
    return value


@task(name="quick")
async def quick(value: str) -> str:
    return value


@workflow("order")
async def order(run: Run, value: str) -> str:
    return await run.task(quick, value)


@workflow("slowly")
async def slowly(run: Run, value: str) -> str:
    return await run.task(quick, await run.task(slow, value))


@pytest.fixture(autouse=True)
def _fresh_gate() -> Iterator[None]:
    gate.reset()
    yield
    gate.open.set()


def signed(body: bytes) -> dict[str, str]:
    return signature.sign([KEY], f"{RUN_ID}_4", int(time.time()), body)


def pushed(dispatcher: HttpDispatcher) -> bytes:
    return msgspec.json.encode(dispatcher.double.delivery(url=dispatcher.url))


# --- the application by itself ---------------------------------------------------------------------------------------
class Client:
    """Plays the server's part of ASGI: hands over messages, keeps what is sent."""

    def __init__(self, *messages_: dict[str, Any]) -> None:
        self._messages = list(messages_)
        self.sent: list[Any] = []
        self.received = 0

    async def receive(self) -> Any:
        self.received += 1
        if not self._messages:
            await asyncio.Event().wait()
        return self._messages.pop(0)

    async def send(self, message: Any) -> None:
        self.sent.append(message)


def http(**headers: str) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": "/anything", "headers": pairs}


async def test_a_body_in_pieces_is_verified_as_one() -> None:
    """C01: the bytes of all messages, joined, are what was signed."""
    body = msgspec.json.encode(messages.Discover("orders", "http://d"))
    client = Client(
        {"type": "http.request", "body": body[:7], "more_body": True},
        {"type": "http.request", "body": body[7:], "more_body": True},
        {"type": "http.request"},
    )
    headers = {name.replace("-", "_"): value for name, value in signed(body).items()}
    await Endpoint([order], secret=SECRET).asgi(http(**headers), client.receive, client.send)

    assert client.sent[0]["status"] == 200
    assert msgspec.json.decode(client.sent[1]["body"])["workflows"][0]["name"] == "order"


async def test_a_declared_length_over_the_limit_is_refused_unread() -> None:
    """Nothing is received before the refusal."""
    client = Client()
    scope = http(content_length=str(limits.MAX_BODY + 1))
    await Endpoint([order], secret=SECRET).asgi(scope, client.receive, client.send)

    assert (client.sent[0]["status"], client.received) == (413, 0)


async def test_a_body_that_grows_over_the_limit_is_cut_off() -> None:
    """Without a declared length, reading stops at the limit."""
    piece = {"type": "http.request", "body": b"x" * (limits.MAX_BODY // 2), "more_body": True}
    client = Client(*([piece] * 10))
    await Endpoint([order], secret=SECRET).asgi(http(), client.receive, client.send)

    assert (client.sent[0]["status"], client.received) == (413, 3)


async def test_a_client_that_leaves_while_sending_gets_no_answer() -> None:
    """There is nobody to answer, and half a body is not verified."""
    client = Client({"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"})
    await Endpoint([order], secret=SECRET).asgi(http(), client.receive, client.send)

    assert client.sent == []


async def test_a_websocket_is_refused() -> None:
    """The endpoint speaks HTTP only."""
    client = Client({"type": "websocket.connect"})
    await Endpoint([order], secret=SECRET).asgi({"type": "websocket"}, client.receive, client.send)

    assert client.sent == [{"type": "websocket.close", "code": 1000}]


async def test_an_unknown_scope_is_an_error() -> None:
    """A server of another kind hears it at once."""
    with pytest.raises(RuntimeError, match="telnet"):
        await Endpoint([order], secret=SECRET).asgi({"type": "telnet"}, Client().receive, Client().send)


async def test_a_run_outlives_its_caller() -> None:
    """A request cancelled by its server does not end the run: nobody else could finish it sooner."""
    with serving(DispatcherDouble("slowly")) as dispatcher:
        one = Endpoint([slowly], secret=SECRET)
        body = pushed(dispatcher)
        request = asyncio.create_task(one.handle("POST", signed(body), body))
        assert await asyncio.to_thread(gate.entered.wait, 5)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        gate.open.set()
        await one.executor.drained()
        await one.executor.close()

        assert dispatcher.double.result == b'"in"'


async def test_lifespan_shutdown_waits_for_runs_to_reach_a_boundary() -> None:
    """The body under way ends, its record is written, and the run is released as a drain."""
    with serving(DispatcherDouble("slowly")) as dispatcher:
        one = Endpoint([slowly], secret=SECRET)
        client = Client({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
        body = pushed(dispatcher)
        request = asyncio.create_task(one.handle("POST", signed(body), body))
        assert await asyncio.to_thread(gate.entered.wait, 5)
        lifespan = asyncio.create_task(one.asgi({"type": "lifespan"}, client.receive, client.send))
        await _until(lambda: one.executor.busy)
        assert not lifespan.done()
        gate.open.set()
        await asyncio.gather(lifespan, request)

        assert [message["type"] for message in client.sent] == [
            "lifespan.startup.complete",
            "lifespan.shutdown.complete",
        ]
        assert dispatcher.double.ending == messages.Release("drain")
        assert [record.name for record in dispatcher.double.records] == ["slow"]
        assert "pointsman-refresher" not in {thread.name for thread in threading.enumerate()}


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0)


# --- a real server ---------------------------------------------------------------------------------------------------
@contextmanager
def uvicorn_in_a_thread(app: Any) -> Iterator[tuple[str, uvicorn.Server]]:
    """*app* under uvicorn on a free port."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}", server
    finally:
        server.should_exit = True
        thread.join(10)
        sock.close()


@asynccontextmanager
async def transport() -> AsyncIterator[AsyncTransport]:
    made = AsyncTransport()
    try:
        yield made
    finally:
        await made.close()


async def _post(url: str, body: bytes) -> Answer:
    async with transport() as made:
        return await made.request("POST", url, signed(body), body)


async def test_uvicorn_serves_the_endpoint_as_it_is() -> None:
    """`app = endpoint.asgi` needs no interface option: a push is claimed, run and completed."""
    with serving(DispatcherDouble()) as dispatcher:
        app = Endpoint([order], secret=SECRET).asgi
        with uvicorn_in_a_thread(app) as (url, _):
            answer = await _post(url, pushed(dispatcher))

        assert (answer.status, answer.headers["pointsman-result"]) == (200, "settled")
        assert dispatcher.double.result == b'"in"'


async def test_uvicorn_shuts_down_through_a_drain() -> None:
    """The server's end lets the body finish and releases the run; the held request is answered."""
    with serving(DispatcherDouble("slowly")) as dispatcher:
        one = Endpoint([slowly], secret=SECRET)
        with uvicorn_in_a_thread(one.asgi) as (url, server):
            request = asyncio.create_task(_post(url, pushed(dispatcher)))
            assert await asyncio.to_thread(gate.entered.wait, 5)
            one.executor.drain()
            server.should_exit = True
            gate.open.set()
            answer = await request

        assert (answer.status, answer.headers["pointsman-result"]) == (200, "settled")
        assert dispatcher.double.ending == messages.Release("drain")


async def test_sigterm_drains_before_the_servers_own_handler() -> None:
    """Servers end the lifespan only after the last request, and a run's request lasts as long as the run."""
    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("server"))
    try:
        one = Endpoint([order], secret=SECRET)
        client = Client({"type": "http.request"})
        await one.asgi(http(), client.receive, client.send)
        await one.asgi(http(), Client({"type": "http.request"}).receive, client.send)
        assert not one.executor.busy
        signal.raise_signal(signal.SIGTERM)
        await _until(lambda: one.executor.busy)
        await one.executor.end()
    finally:
        signal.signal(signal.SIGTERM, before)

    assert heard == ["server"]


async def test_a_signal_nobody_handles_is_left_alone() -> None:
    """SIGTERM without a server's handler still ends the process."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        client = Client({"type": "http.request"})
        await Endpoint([order], secret=SECRET).asgi(http(), client.receive, client.send)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_mounted_endpoint_verifies_the_raw_bytes() -> None:
    """C01: below another application, with a path prefix and no lifespan of its own, deliveries still verify."""
    one = Endpoint([order], secret=SECRET)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            assert scope["path"] == "/pointsman/"
            await one.asgi({**scope, "root_path": "/pointsman"}, receive, send)
            await one.executor.close()

    with serving(DispatcherDouble()) as dispatcher:
        with uvicorn_in_a_thread(outer) as (url, _):
            answer = await _post(url + "/pointsman/", pushed(dispatcher))

        assert answer.headers["pointsman-result"] == "settled"


async def test_a_starlette_mount_verifies_the_raw_bytes() -> None:
    """C01: mounted in Starlette (FastAPI is one), behind middleware that has read the body already."""
    starlette = pytest.importorskip("starlette.applications")
    middleware = pytest.importorskip("starlette.middleware")
    base: Any = pytest.importorskip("starlette.middleware.base").BaseHTTPMiddleware
    routing = pytest.importorskip("starlette.routing")

    class Reading(base):  # type: ignore[misc]
        async def dispatch(self, request: Any, call_next: Any) -> Any:
            assert await request.body()
            return await call_next(request)

    @asynccontextmanager
    async def lifespan(_app: object) -> AsyncIterator[None]:
        yield
        await one.executor.end()

    one = Endpoint([order], secret=SECRET)
    app = starlette.Starlette(
        routes=[routing.Mount("/pointsman", app=one.asgi)],
        middleware=[middleware.Middleware(Reading)],
        lifespan=lifespan,
    )
    with serving(DispatcherDouble()) as dispatcher:
        with uvicorn_in_a_thread(app) as (url, _):
            answer = await _post(url + "/pointsman/", pushed(dispatcher))

        assert answer.headers["pointsman-result"] == "settled"
        assert dispatcher.double.result == b'"in"'
