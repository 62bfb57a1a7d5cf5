"""A small Lambda Runtime API and supervisor: starts the real runtime client and invokes the handler through it.

It does what the service does and the runtime client does not: it enforces the timeout by killing the process, knows
when the process ended without an answer, and freezes and thaws it.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

_PREFIX = "/2018-06-01/runtime"


@dataclass
class Invocation:
    """One event on its way through the handler."""

    event: Any
    deadline_ms: int
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    kind: Literal["response", "error", "timeout", "exit"] | None = None
    payload: Any = None
    done: threading.Event = field(default_factory=threading.Event)

    def settle(self, kind: Literal["response", "error", "timeout", "exit"], payload: Any) -> None:
        self.kind, self.payload = kind, payload
        self.done.set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    runtime: "LambdaRuntime"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A killed client is part of the game."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body in one segment: two would wait for a delayed acknowledgement, 40 ms each time.
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - overrides http.server's name
        pass

    def do_GET(self) -> None:
        if self.path != f"{_PREFIX}/invocation/next":
            self._answer(200, b"")
            return
        invocation = self.server.runtime.next_invocation()
        if invocation is None:
            self.close_connection = True
            return
        headers = {
            "Lambda-Runtime-Aws-Request-Id": invocation.id,
            "Lambda-Runtime-Deadline-Ms": str(invocation.deadline_ms),
            "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:eu-west-1:000000000000:function:t",
            "Lambda-Runtime-Trace-Id": "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1",
        }
        self._answer(200, json.dumps(invocation.event).encode(), headers)

    def do_POST(self) -> None:
        body = self._body()
        self._answer(202, b'{"status": "OK"}')
        self.server.runtime.reported(self.path.removeprefix(_PREFIX), body)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _body(self) -> bytes:
        if self.headers.get("Content-Length") is not None:
            return self.rfile.read(int(self.headers["Content-Length"]))
        pieces = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)


class LambdaRuntime:
    """One sandbox: a process of the runtime client with *handler* loaded from *directory*.

    *timeout* is the function's, in seconds; *execution_env* what AWS_EXECUTION_ENV says of the Python version, which
    changes how the client polls and encodes.
    """

    def __init__(
        self,
        handler: str,
        directory: Path,
        *,
        timeout: float = 10,
        execution_env: str = "AWS_Lambda_python3.12",
        environment: dict[str, str] | None = None,
    ) -> None:
        self._timeout = timeout
        self._waiting: queue.Queue[Invocation | None] = queue.Queue()
        self._invocations: dict[str, Invocation] = {}
        self.init_error: Any = None
        self.initialised = threading.Event()
        self.output: list[str] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.runtime = self
        self._serving = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._serving.start()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "awslambdaric", handler],
            cwd=directory,
            env={**self._environment(directory, execution_env), **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def invoke(self, event: Any, *, timeout: float | None = None) -> Invocation:
        """The settled invocation of *event*; a handler that does not end in *timeout* seconds is killed."""
        invocation = self.start(event, timeout=timeout)
        seconds = self._timeout if timeout is None else timeout
        if not invocation.done.wait(seconds + 0.05):
            self.kill()
            invocation.settle("timeout", f"Task timed out after {seconds:.2f} seconds")
        return invocation

    def start(self, event: Any, *, timeout: float | None = None) -> Invocation:
        """The invocation of *event*, under way."""
        seconds = self._timeout if timeout is None else timeout
        invocation = Invocation(event, int((time.time() + seconds) * 1000))
        self._invocations[invocation.id] = invocation
        self._waiting.put(invocation)
        return invocation

    def freeze(self) -> None:
        """Stops every thread of the sandbox, as the service does after an answer."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it run again, as the service does for the next invocation."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends the sandbox as a timeout does: no exception, no finally."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Ends everything this started."""
        self.kill()
        self._watching.join(5)
        self._waiting.put(None)
        self._server.shutdown()
        self._server.server_close()
        if self.process.stdout is not None:
            self.process.stdout.close()

    # --- called by the server's threads ------------------------------------------------------------------------------
    def next_invocation(self) -> Invocation | None:
        self.initialised.set()
        return self._waiting.get()

    def reported(self, path: str, body: bytes) -> None:
        payload = json.loads(body) if body else None
        if path == "/init/error":
            self.init_error = payload
            self.initialised.set()
            return
        _, _, request_id, kind = path.split("/")
        self._invocations[request_id].settle("response" if kind == "response" else "error", payload)

    def _watch(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
        self.process.wait()
        self.initialised.set()
        for invocation in list(self._invocations.values()):
            if not invocation.done.is_set():
                invocation.settle("exit", "".join(self.output[-20:]))

    def _environment(self, directory: Path, execution_env: str) -> dict[str, str]:
        root = Path(__file__).parents[3]
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(directory), str(root)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._server.server_address[1]}",
            "AWS_LAMBDA_FUNCTION_NAME": "t",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
            "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/t",
            "AWS_LAMBDA_LOG_STREAM_NAME": "x",
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_REGION": "eu-west-1",
            "AWS_EXECUTION_ENV": execution_env,
            "LAMBDA_TASK_ROOT": str(directory),
            "TZ": ":UTC",
        }
