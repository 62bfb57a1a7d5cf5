"""Real parts for fault tests: dispatchers on sockets, endpoint processes to kill, a proxy that loses replies."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import uvicorn

from dispatcher.app import create_app
from dispatcher.settings import Settings

Fault = Literal["pass", "lose_request", "lose_reply", "kill_before", "kill_after"]

ADMIN_KEY = "pmk_" + "t" * 40
SECRET = "whsec_" + "c2VjcmV0" * 5
FAST: dict[str, Any] = {
    "recover_overdue_outbox_entries": {
        "interval_ms": 100,
        "claim_idle_timeout_ms": 1_200,
        "claim_refresh_interval_ms": 300,
    },
    "publish_pending_outbox_entries": {
        "interval_ms": 100,
        "base_backoff_ms": 50,
        "max_backoff_ms": 300,
        "claim_deadline_ms": 1_500,
    },
    "stall_undeliverable_runs": {"interval_ms": 200},
}


def until(check: Callable[[], Any], seconds: float = 20.0, what: str = "the condition") -> Any:
    """What *check* answers once it is truthy; fails after *seconds*."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come true within {seconds} s")


class Serving(threading.Thread):
    """A uvicorn server in a thread, on a port of its own."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        super().__init__(daemon=True)
        # Named TCP, or asyncio would not switch Nagle's algorithm off: 40 ms for every answer.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(make(self.url), log_level="warning", lifespan="on", loop="asyncio")
        )

    def run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def open(self) -> "Serving":
        self.start()
        until(lambda: self._server.started, what="the server")
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self.join(20)
        assert not self.is_alive()


@contextmanager
def dispatcher(database_url: str, **daemons: Any) -> Iterator[httpx.Client]:
    """A client of a fresh dispatcher process-in-a-thread; its base_url is the dispatcher's."""
    settings = Settings.model_validate(
        {
            "database": {"url": database_url},
            "daemons": {**FAST, **daemons},
            "secret_key": "k" * 40,
            "admin_key": ADMIN_KEY,
        }
    )
    serving = Serving(lambda url: create_app(settings, url=url)).open()
    try:
        with httpx.Client(base_url=serving.url, headers={"authorization": f"Bearer {ADMIN_KEY}"}, timeout=30) as client:
            yield client
    finally:
        serving.stop()


class EndpointProcess:
    """`uvicorn app:app` in a process of its own, to be killed, stopped and started again on the same port."""

    def __init__(self, app: Path, dispatcher_url: str, log: Path, **env: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.log = log
        self._app = app
        root = Path(__file__).parents[2]
        self._env = {
            **os.environ,
            "POINTSMAN_URL": dispatcher_url,
            "POINTSMAN_SIGNING_SECRET": SECRET,
            "BODY_LOG": str(log),
            "PYTHONPATH": f"{root}:{app.parent}",
            **env,
        }
        self.output = log.with_suffix(f".{self.port}.out")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "EndpointProcess":
        command = [sys.executable, "-m", "uvicorn", f"{self._app.stem}:app", "--port", str(self.port)]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "--log-level", "warning", "--timeout-graceful-shutdown", "5"],
                env=self._env,
                stdout=output,
                stderr=output,
            )
        until(self._listening, what="the endpoint process")
        return self

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(10)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def bodies(self, run_id: str) -> list[str]:
        """The names of the task bodies that began for the run, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[1] for line in lines if line.startswith(run_id)]

    def _listening(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def register(client: httpx.Client, endpoint: EndpointProcess, name: str = "faulty", **more: Any) -> None:
    """The endpoint is known to the dispatcher and discovered."""
    body = {"name": name, "url": endpoint.url, "secret": SECRET, "allowHttp": True, **more}
    answer = client.post("/v1/endpoints", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["test"]["ok"], answer.text


def submit(client: httpx.Client, workflow: str = "sweep", **more: Any) -> str:
    """The id of a fresh run."""
    answer = client.post("/v1/runs", json={"workflow": workflow, "input": "o1", **more})
    assert answer.status_code == 201, answer.text
    run_id: str = answer.json()["run"]["id"]
    return run_id


def run_of(client: httpx.Client, run_id: str) -> dict[str, Any]:
    """The run as the API shows it."""
    found: dict[str, Any] = client.get(f"/v1/runs/{run_id}").json()["run"]
    return found


def ended(client: httpx.Client, run_id: str, seconds: float = 20.0) -> dict[str, Any]:
    """The run once it is terminal or stalled."""
    final = {"completed", "failed", "cancelled", "stalled"}

    def look() -> dict[str, Any] | None:
        run = run_of(client, run_id)
        return run if run["status"] in final else None

    try:
        found: dict[str, Any] = until(look, seconds, f"the end of {run_id}")
    except AssertionError as error:
        why = client.get(f"/v1/runs/{run_id}/why").text
        raise AssertionError(f"{error}: {why} {client.get(f'/v1/runs/{run_id}/transitions').text}") from None
    return found


class FaultProxy:
    """An HTTP proxy before the dispatcher; `fault(n, path)` says what happens to the n-th executor call."""

    def __init__(self, upstream: str) -> None:
        host, port = upstream.removeprefix("http://").split(":")
        self._upstream = (host, int(port))
        self.fault: Callable[[int, str], Fault] = lambda _number, _path: "pass"
        self.kill: Callable[[], None] = lambda: None
        self.refresh: Fault = "pass"
        self.calls: list[str] = []
        self.seen: list[tuple[bytes, bytes]] = []
        self._serving: set[object] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def arm(self, fault: Callable[[int, str], Fault]) -> None:
        """Counting starts again at 0."""
        self.calls = []
        self.fault = fault

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        while serving := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            for _ in range(3):
                await asyncio.sleep(0)  # a connection takes a few turns of the loop to close

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Nobody else holds on to a task whose stream waits: the collector takes both.
        task = asyncio.current_task()
        self._serving.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the stream's own callback would raise a cancellation once more
        finally:
            self._serving.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head, body = await _message(reader)
        self.seen.append((head, body))
        path = head.split(b" ", 2)[1].decode()
        fault = self._next(path)
        if fault == "kill_before":
            await asyncio.to_thread(self.kill)
        if fault in {"kill_before", "lose_request"}:
            return False
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        try:
            upstream_writer.write(head + body)
            answer = await _message(upstream_reader)
        finally:
            upstream_writer.close()
        if fault == "kill_after":
            await asyncio.to_thread(self.kill)
        if fault in {"kill_after", "lose_reply"}:
            return False
        writer.write(b"".join(answer))
        await writer.drain()
        return True

    def _next(self, path: str) -> Fault:
        if path.endswith("/refresh"):
            return self.refresh
        self.calls.append(path)
        return self.fault(len(self.calls) - 1, path)


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    return head, await reader.readexactly(int(length[1])) if length else b""
