"""A loopback HTTP/1.1 server in a page, for the stand-ins the demo plays itself: runtime API, front and tap."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True)
class Received:
    """One request; header names are lower case, `query` is without its question mark."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


Handler = Callable[[Received], Awaitable[Reply]]


class Server:
    """Answers on a free loopback port from `start` to `stop`, one request at a time per connection."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, bound: socket.socket | None = None) -> None:
        """Answers on *bound* if it is given, which is then this server's to close."""
        where: dict[str, Any] = {"host": _LOOPBACK, "port": 0} if bound is None else {"sock": bound}
        self._server = await asyncio.start_server(self._connected, limit=2**16, **where)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        # A stopped server and a peer that hung up end a connection alike, and neither is news.
        with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            while await self._exchange(reader, writer):
                pass
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        received = await read_request(reader)
        reply = await self._handler(received)
        # Head and body leave in one write: two would meet Nagle and a delayed acknowledgement.
        writer.write(render(reply))
        await writer.drain()
        return received.headers.get("connection", "").lower() != "close"


async def read_request(reader: asyncio.StreamReader) -> Received:
    """The next request of a connection; IncompleteReadError when the peer has closed it."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ", 2)
    path, _, query = target.partition("?")
    fields = (line.partition(":") for line in head[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    return Received(method, path, query, headers, await _body(reader, headers))


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    pieces = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        pieces.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(pieces)


def render(reply: Reply) -> bytes:
    phrase = HTTPStatus(reply.status).phrase
    headers = {**reply.headers, "content-length": str(len(reply.body))}
    lines = [f"HTTP/1.1 {reply.status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + reply.body
