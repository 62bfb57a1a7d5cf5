"""The in-memory dispatcher behind a real socket, for executors in other processes and real servers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from endpoint_sdk.transport import Answer, TransportError
from tests.unit.sdk.dispatcher_double import DispatcherDouble


class HttpDispatcher(ThreadingHTTPServer):
    """Serves `double`, which a test may replace between runs; `url` is where."""

    daemon_threads = True

    def __init__(self, double: DispatcherDouble) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.double = double
        self.lock = threading.Lock()
        self._open: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def connected(self, connection: socket.socket) -> None:
        self._open.add(connection)

    def disconnected(self, connection: socket.socket) -> None:
        self._open.discard(connection)

    def hang_up(self) -> int:
        """Closes every connection clients keep open; says how many there were."""
        open_, self._open = self._open, set()
        for connection in open_:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return len(open_)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is part of the game."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: HttpDispatcher

    def setup(self) -> None:
        super().setup()
        self.server.connected(self.connection)

    def finish(self) -> None:
        super().finish()
        self.server.disconnected(self.connection)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - overrides http.server's name
        pass

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"] or 0)))

    def _serve(self, body: bytes) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            with self.server.lock:
                answer = self.server.double.answer(self.command, self.path, headers, body)
        except TransportError:
            # The fault asks for a reply that never comes.
            self.close_connection = True
            return
        self._answer(answer)

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
        self.wfile.flush()


@contextmanager
def serving(double: DispatcherDouble) -> Iterator[HttpDispatcher]:
    """*double* on a free port."""
    server = HttpDispatcher(double)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.hang_up()
        server.shutdown()
        thread.join()
        server.server_close()
