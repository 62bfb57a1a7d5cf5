"""A real uvicorn process with an endpoint in it, and the signals an orchestrator sends."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from endpoint_sdk.transport import Answer, AsyncTransport, TransportError
from endpoint_sdk.wire import messages, signature
from tests.unit.sdk.dispatcher_double import DispatcherDouble
from tests.unit.sdk.http_dispatcher import HttpDispatcher, serving

HERE = Path(__file__).parent
SECRET = signature.new_secret()


class Server:
    """The process, its port, and the two files its task talks through."""

    def __init__(self, directory: Path, dispatcher: HttpDispatcher) -> None:
        self.dispatcher = dispatcher
        self.entered, self.open = directory / "entered", directory / "open"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "application:app", "--port", str(self.port), "--log-level", "warning"],
            cwd=HERE,
            env={
                **os.environ,
                "PYTHONPATH": str(HERE.parents[2]),
                "POINTSMAN_SIGNING_SECRET": SECRET,
                "POINTSMAN_TEST_ENTERED": str(self.entered),
                "POINTSMAN_TEST_OPEN": str(self.open),
            },
        )

    async def push(self) -> Answer:
        """Pushes the queued run, once the server listens, and waits for the end of its handling."""
        body = msgspec.json.encode(self.dispatcher.double.delivery(url=self.dispatcher.url))
        transport = AsyncTransport()
        try:
            async with asyncio.timeout(15):
                while True:
                    try:
                        return await transport.request("POST", f"http://127.0.0.1:{self.port}/", _signed(body), body)
                    except TransportError:
                        await asyncio.sleep(0.02)
        finally:
            await transport.close()

    def close(self) -> None:
        self.open.touch()
        self.process.kill()
        self.process.wait()


def _signed(body: bytes) -> dict[str, str]:
    return signature.sign([signature.parse_secret(SECRET)], "run_x_4", int(time.time()), body)


async def until(condition: Callable[[], bool]) -> None:
    """Returns once *condition* holds; fails after ten seconds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - another process says when
            await asyncio.sleep(0.01)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(DispatcherDouble("slowly")) as dispatcher:
        made = Server(tmp_path, dispatcher)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_in_mid_step_lets_it_finish_and_releases(server: Server, number: int) -> None:
    """C45: the body ends and is recorded, the next task does not start, the run is released and the push answered."""
    push = asyncio.create_task(server.push())
    await until(server.entered.exists)
    server.process.send_signal(number)
    server.open.touch()
    answer = await push
    await asyncio.to_thread(server.process.wait, 10)
    double = server.dispatcher.double

    assert (answer.status, answer.headers["pointsman-result"]) == (200, "settled")
    assert double.ending == messages.Release("drain")
    assert [record.name for record in double.records] == ["slow"]


async def test_a_killed_process_leaves_its_claim_to_recovery(server: Server) -> None:
    """kill -9 in mid-step: nothing is recorded and nothing is ended."""
    push = asyncio.create_task(server.push())
    await until(server.entered.exists)
    server.process.kill()
    push.cancel()
    await asyncio.gather(push, return_exceptions=True)

    assert server.dispatcher.double.ending is None
    assert server.dispatcher.double.state == "running"
