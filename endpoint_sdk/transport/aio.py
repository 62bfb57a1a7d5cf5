"""HTTP/1.1 and HTTPS on asyncio, for pushes and for the SDK's calls: fast, and exact about what a failure means.

Never follows redirects, never looks at proxy variables, dials the address it is told to dial.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from endpoint_sdk import monotonic
from endpoint_sdk.transport import http1, pooling
from endpoint_sdk.transport.connection import Connection
from endpoint_sdk.transport.dialling import connect_failed, tls_context
from endpoint_sdk.transport.errors import AnswerTimeout, ResetIdle
from endpoint_sdk.transport.http1 import Answer
from endpoint_sdk.wire import limits

if TYPE_CHECKING:
    import ssl

_CLOSING_SECONDS: Final = 1.0


class Origin(NamedTuple):
    """What connections are shared by."""

    scheme: str
    host: str
    port: int
    address: str


class AsyncTransport:
    """A pool of kept-alive connections per origin; use it on one event loop at a time.

    *tls* replaces the default TLS context (system trust store, host names checked).
    """

    def __init__(self, *, tls: "ssl.SSLContext | None" = None) -> None:
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: dict[Origin, list[Connection]] = {}
        self._live: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        connect_timeout: float = 5.0,
        timeout: float = 30.0,
        max_body: int = limits.MAX_ANSWER,
        resend_idle: bool = True,
        connect_address: str | None = None,
    ) -> Answer:
        """The answer to one request, whole within *timeout* seconds, connecting included.

        With *resend_idle* a request is sent once more, on a fresh connection, when a kept-alive one turns out to be
        closed without a byte of answer: for requests that may be carried out twice. *connect_address* is dialled
        instead of the URL's host, which stays the Host header and the TLS name. Raises TransportError; ValueError for
        a URL or header that cannot be sent.
        """
        where = http1.target(url)
        message = http1.encode(method, where, headers, body)
        origin = Origin(where.scheme, where.host, where.port, connect_address or where.host)
        loop = self._on_running_loop()
        deadline = loop.time() + timeout
        connection = self._take(origin)
        if connection is not None:
            try:
                return await self._exchange(origin, connection, message, max_body, timeout)
            except ResetIdle:
                self._drop(origin)
                if not resend_idle:
                    raise
        connection = await self._connect(origin, min(connect_timeout, deadline - loop.time()))
        return await self._exchange(origin, connection, message, max_body, deadline - loop.time())

    async def close(self) -> None:
        """Closes every connection; requests under way end with an error. The transport can be used again."""
        self._idle.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        live = list(self._live)
        for connection in live:
            connection.close()
        if live and self._loop is asyncio.get_running_loop():
            await asyncio.wait([connection.gone for connection in live], timeout=_CLOSING_SECONDS)

    def _on_running_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Connections belong to the loop they were made on.
            self._loop, self._idle, self._live, self._sweeper = loop, {}, set(), None
        return loop

    async def _exchange(
        self, origin: Origin, connection: Connection, message: bytes, max_body: int, timeout: float
    ) -> Answer:
        answer = await connection.exchange(message, max_body, timeout)
        if connection.reusable:
            connection.idle_since = monotonic.now()
            self._idle.setdefault(origin, []).append(connection)
            self._sweep_later()
        else:
            connection.close()
        return answer

    async def _connect(self, origin: Origin, timeout: float) -> Connection:
        loop = asyncio.get_running_loop()
        peer = f"{origin.host}:{origin.port}"
        if timeout <= 0:
            raise AnswerTimeout(f"{peer} gave no answer in time")
        tls = self._tls_context() if origin.scheme == "https" else None
        try:
            async with asyncio.timeout(timeout):
                _, connection = await loop.create_connection(
                    lambda: Connection(peer, loop),
                    origin.address,
                    origin.port,
                    ssl=tls,
                    server_hostname=origin.host if tls else None,
                )
        except (OSError, UnicodeError) as error:
            raise connect_failed(peer, error) from error
        self._live.add(connection)
        connection.gone.add_done_callback(lambda _: self._live.discard(connection))
        return connection

    def _tls_context(self) -> "ssl.SSLContext":
        if self._tls is None:
            self._tls = tls_context()
        return self._tls

    def _take(self, origin: Origin) -> Connection | None:
        """The connection used last, if it is young enough."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.reusable and monotonic.now() - connection.idle_since < pooling.IDLE_SECONDS:
                return connection
            connection.close()
        return None

    def _drop(self, origin: Origin) -> None:
        """Closes what is idle: the others are as old as the one that was found closed."""
        for connection in self._idle.pop(origin, []):
            connection.close()

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(pooling.IDLE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = monotonic.now() - pooling.IDLE_SECONDS
        for origin, connections in list(self._idle.items()):
            # Used in the order of a stack: the oldest come first.
            while connections and connections[0].idle_since <= oldest:
                connections.pop(0).close()
            if not connections:
                del self._idle[origin]
        if self._idle:
            self._sweep_later()
