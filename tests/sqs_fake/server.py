"""The fake over HTTP: SQS's JSON protocol, as boto3 speaks it."""

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from tests.brokers import Sqs
from tests.sqs_fake.faults import Faults
from tests.sqs_fake.queues import Message, Refused
from tests.sqs_fake.service import Service

_TYPE: Final = "application/x-amz-json-1.0"


class SqsFake:
    """A strict SQS on a port of 127.0.0.1; the package says what it does and how to make it fail."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.service = Service(self.faults, lambda: self.endpoint_url)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.endpoint_url = ""
        self._port = 0
        self._released = threading.Event()
        self._server: _Server | None = None
        self._sqs: Sqs | None = None

    @property
    def sqs(self) -> Sqs:
        """Queues and a client for tests, made at first use and closed by `stop`."""
        if self._sqs is None:
            self._sqs = Sqs(self.endpoint_url)
        return self._sqs

    def start(self) -> Self:
        """The fake answers at `endpoint_url`."""
        self.up()
        return self

    def stop(self) -> None:
        """Nobody answers, nothing is open. Can be repeated."""
        self.down()
        if self._sqs is not None:
            self._sqs.close()
            self._sqs = None

    def up(self) -> None:
        """The fake answers (again), at the same port, with the queues it had."""
        if self._server is None:
            self.service.reopen()
            self._released.clear()
            self._server = _Server(self, self._port)
            self._port = self._server.server_address[1]
            self.endpoint_url = f"http://127.0.0.1:{self._port}"

    def down(self) -> None:
        """Nobody listens, and connections that were open are reset. Can be repeated."""
        if self._server is not None:
            server, self._server = self._server, None
            self.service.close()
            self._released.set()
            server.end()

    def release(self) -> None:
        """Calls that hang are answered, and those to come do not hang until the next `hang`."""
        self._released.set()

    def advance(self, seconds: float) -> None:
        """That much time has passed: holds and delays end, and long polls look again."""
        self.service.advance(seconds)

    def now(self) -> float:
        """Seconds since the epoch by the fake's clock."""
        return self.service.now()

    def stored(self, url: str) -> list[Message]:
        """The messages in the queue at *url*, held ones too, oldest first."""
        return self.service.stored(url)

    def called(self, action: str) -> list[dict[str, Any]]:
        """The requests of every call of *action*, those refused or not answered too."""
        return [request for name, request in self.calls if name == action]

    def answer(self, action: str, request: dict[str, Any], *, signed: bool) -> bytes | None:
        """The body to answer with; None for none at all. Raises Refused."""
        self.calls.append((action, request))
        if not signed:
            raise Refused("MissingAuthenticationToken", "Request is missing Authentication Token", 403)
        if fault := self.faults.next(action, "fail"):
            raise Refused(fault.code, "A test asked for this.", fault.status)
        silent = self.faults.next(action, "lose_reply", "hang")
        if silent and silent.kind == "hang":
            self._released.clear()
        answer = json.dumps(self.service.call(action, request)).encode()
        if silent and silent.kind == "hang":
            self._released.wait()
        return None if silent and silent.kind == "lose_reply" else answer

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, fake: SqsFake, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.fake = fake
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""

    def end(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        action = (self.headers.get("x-amz-target") or "").rpartition(".")[2]
        try:
            answer = self.server.fake.answer(action, json.loads(body), signed="authorization" in self.headers)
        except Refused as error:
            told = {"__type": f"com.amazonaws.sqs#{error.code}", "message": error.message}
            fault = "Sender" if error.status < 500 else "Receiver"
            self._send(error.status, json.dumps(told).encode(), f"{error.query};{fault}")
            return
        if answer is None:
            self.close_connection = True
        else:
            self._send(200, answer)

    def _send(self, status: int, body: bytes, error: str | None = None) -> None:
        self.send_response(status)
        self.send_header("content-type", _TYPE)
        self.send_header("content-length", str(len(body)))
        if error is not None:
            self.send_header("x-amzn-query-error", error)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """The fake keeps its calls itself."""
