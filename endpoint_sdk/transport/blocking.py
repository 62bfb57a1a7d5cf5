"""The same exchange with blocking sockets, for threads: the refresher, the synchronous client.

Shares the parser with `aio`, so both read the same answers; safe to use from several threads.
"""

import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from endpoint_sdk import monotonic
from endpoint_sdk.transport import http1, pooling
from endpoint_sdk.transport.answers import ResponseParser
from endpoint_sdk.transport.dialling import connect_failed, tls_context
from endpoint_sdk.transport.errors import AnswerTimeout, BadAnswer, ResetIdle, lost
from endpoint_sdk.transport.http1 import Answer, Target
from endpoint_sdk.wire import limits

if TYPE_CHECKING:
    import ssl

_PIECE: Final = 65_536
Origin = tuple[str, str, int, str]


class _Wire:
    """One connected socket."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock = sock
        self.peer = peer
        self.used = False
        self.idle_since = 0.0

    def exchange(self, message: bytes, max_body: int, deadline: float) -> tuple[Answer, bool]:
        """The answer, and whether the connection may be kept."""
        parser = ResponseParser(max_body)
        sent, received = False, 0
        try:
            self._limit(deadline)
            self.sock.sendall(message)
            sent = True
            while True:
                self._limit(deadline)
                data = self.sock.recv(_PIECE)
                received += len(data)
                answer = parser.feed(data) if data else parser.finish()
                if answer is not None:
                    return answer, parser.keep_alive
                if not data:
                    raise lost(self.peer, sent=sent, received=received, reused=self.used)
        except TimeoutError as error:
            raise AnswerTimeout(f"{self.peer} gave no answer in time", sent=sent, received=received) from error
        except OSError as error:
            raise lost(self.peer, sent=sent, received=received, reused=self.used) from error
        except BadAnswer as error:
            raise BadAnswer(str(error), sent=sent, received=received) from None
        finally:
            self.used = True

    def _limit(self, deadline: float) -> None:
        left = deadline - monotonic.now()
        if left <= 0:
            raise TimeoutError
        self.sock.settimeout(left)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Wakes a thread that is reading; close alone would not.
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class BlockingTransport:
    """A pool of kept-alive connections per origin, over blocking sockets."""

    def __init__(self, *, tls: "ssl.SSLContext | None" = None) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._idle: dict[Origin, list[_Wire]] = {}
        self._busy: set[_Wire] = set()

    def request(
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
        """As `AsyncTransport.request`, blocking the calling thread."""
        where = http1.target(url)
        message = http1.encode(method, where, headers, body)
        origin = (where.scheme, where.host, where.port, connect_address or where.host)
        deadline = monotonic.now() + timeout
        wire = self._take(origin)
        if wire is not None:
            try:
                return self._exchange(origin, wire, message, max_body, deadline)
            except ResetIdle:
                self._drop(origin)
                if not resend_idle:
                    raise
        wire = self._connect(where, origin[3], min(connect_timeout, deadline - monotonic.now()))
        return self._exchange(origin, wire, message, max_body, deadline)

    def close(self) -> None:
        """Closes every connection, also under a request of another thread, which ends with an error."""
        with self._lock:
            wires = [wire for idle in self._idle.values() for wire in idle] + list(self._busy)
            self._idle.clear()
        for wire in wires:
            wire.close()

    def _exchange(self, origin: Origin, wire: _Wire, message: bytes, max_body: int, deadline: float) -> Answer:
        with self._lock:
            self._busy.add(wire)
        keep = False
        try:
            answer, keep = wire.exchange(message, max_body, deadline)
        finally:
            with self._lock:
                self._busy.discard(wire)
                if keep:
                    wire.idle_since = monotonic.now()
                    self._idle.setdefault(origin, []).append(wire)
            if not keep:
                wire.close()
        return answer

    def _connect(self, where: Target, address: str, timeout: float) -> _Wire:
        peer = f"{where.host}:{where.port}"
        if timeout <= 0:
            raise AnswerTimeout(f"{peer} gave no answer in time")
        try:
            sock = socket.create_connection((address, where.port), timeout)
        except (OSError, UnicodeError) as error:
            raise connect_failed(peer, error) from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pooling.watch_peer(sock)
            if where.scheme == "https":
                sock = self._tls_context().wrap_socket(sock, server_hostname=where.host)
        except OSError as error:
            sock.close()
            raise connect_failed(peer, error) from error
        return _Wire(sock, peer)

    def _tls_context(self) -> "ssl.SSLContext":
        if self._tls is None:
            self._tls = tls_context()
        return self._tls

    def _take(self, origin: Origin) -> _Wire | None:
        with self._lock:
            idle = self._idle.get(origin, [])
            while idle:
                wire = idle.pop()
                if monotonic.now() - wire.idle_since < pooling.IDLE_SECONDS:
                    return wire
                wire.close()
        return None

    def _drop(self, origin: Origin) -> None:
        with self._lock:
            dropped = self._idle.pop(origin, [])
        for wire in dropped:
            wire.close()
