"""The endpoint as an ASGI application: uvicorn, Starlette, FastAPI, Lambda Web Functions.

A client that goes away does not end a run. On SIGTERM, or when the server shuts down, no further run is taken; those
under way end, or are released at their next task boundary, and their claims are refreshed until then.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from endpoint_sdk import answers
from endpoint_sdk.answers import HttpAnswer
from endpoint_sdk.wire import limits

if TYPE_CHECKING:
    from endpoint_sdk.endpoint import Endpoint

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class _ClientGone(Exception):
    """The client went away before its request was whole."""


class AsgiApp:
    """One endpoint as an ASGI 3 application. An object, because servers look for an async `__call__`."""

    def __init__(self, endpoint: "Endpoint") -> None:
        self._endpoint = endpoint
        self._watched: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> "Endpoint":
        """What is served."""
        return self._endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection scope: `http` or `lifespan`; a `websocket` is refused."""
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await self._lifespan(receive, send)
            case "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            case other:
                raise RuntimeError(f"an endpoint does not serve ASGI scopes of type {other!r}")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._watch_signals()
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        try:
            body = await _body(headers, receive)
        except _ClientGone:
            return
        if body is None:
            await _send(send, answers.too_large(limits.MAX_BODY))
        else:
            await _send(send, await self._endpoint.handle(scope["method"], headers, body))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        executor = self._endpoint.executor
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                executor.resume()
                self._watch_signals()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await executor.end()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _watch_signals(self) -> None:
        """Drains on SIGTERM and SIGINT, before the server's own handler runs.

        Servers end their lifespan only after the last request is answered, and a delivery's request lasts as long as
        its run: waiting for lifespan.shutdown alone would hold a restart up for as long as the longest run.
        """
        loop = asyncio.get_running_loop()
        if self._watched is loop or threading.current_thread() is not threading.main_thread():
            return
        self._watched = loop
        for number in _SIGNALS:
            _chain(number, loop, self._signalled)

    def _signalled(self) -> None:
        if self._ending is None or self._ending.done():
            self._ending = asyncio.create_task(self._endpoint.executor.end())


def _chain(number: int, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Calls *callback* in *loop* when signal *number* comes, then whoever handled it before.

    A signal nobody handles is left alone: then it ends the process, as it should.
    """
    before = signal.getsignal(number)
    if not callable(before) or before is signal.default_int_handler:
        return

    def handler(signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback)
        before(signum, frame)

    signal.signal(number, handler)


async def _body(headers: list[tuple[str, str]], receive: Receive) -> bytes | None:
    """The request's body, None if it is larger than allowed: then the rest is not read."""
    declared = next((value for name, value in headers if name == "content-length"), "")
    if declared.isdecimal() and int(declared[:20]) > limits.MAX_BODY:
        return None
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _ClientGone
        piece = message.get("body", b"")
        size += len(piece)
        if size > limits.MAX_BODY:
            return None
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _send(send: Send, answer: HttpAnswer) -> None:
    headers = {**answer.headers, "content-length": str(len(answer.body))}
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    # Servers may raise when the client has gone; there is nobody to tell.
    with contextlib.suppress(OSError):
        await send({"type": "http.response.start", "status": answer.status, "headers": pairs})
        await send({"type": "http.response.body", "body": answer.body})
