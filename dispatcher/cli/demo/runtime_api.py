"""A Lambda execution environment: one real `awslambdaric` process and the Runtime API it is served by.

The calls are those of the public Lambda Runtime API (2018-06-01): next invocation, its response or error, and an
initialisation error. One environment runs one invocation at a time, and its timeout is a kill, as in the service.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dispatcher.cli.demo.loopback import Received, Reply, Server
from dispatcher.cli.demo.processes import Child, Processes

_PREFIX: Final = "/2018-06-01/runtime"
_ARN: Final = "arn:aws:lambda:us-east-1:000000000000:function:"
MAX_PAYLOAD: Final = 6 * 1024 * 1024


@dataclass
class _Invocation:
    id: str
    event: bytes
    deadline_ms: int
    outcome: "asyncio.Future[Invoked]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(frozen=True)
class Invoked:
    """How an invocation ended: a response's bytes, or an error's."""

    ok: bool
    payload: bytes


class Sandbox:
    """`start` returns when the runtime client waits for its first event; `invoke` hands it one; `stop` ends it."""

    def __init__(self, processes: Processes, name: str, handler: str, bundle: Path, env: Mapping[str, str]) -> None:
        self._processes = processes
        self._name = name
        self._handler = handler
        self._bundle = bundle
        self._env = env
        self._server = Server(self._answer)
        self._waiting: asyncio.Queue[_Invocation] = asyncio.Queue()
        self._current: dict[str, _Invocation] = {}
        self._ready = asyncio.Event()
        self._failed: bytes | None = None
        self._count = 0
        self.child: Child | None = None

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.alive and self._failed is None

    async def start(self, patience: float = 30.0) -> None:
        await self._server.start()
        command = [sys.executable, "-m", "awslambdaric", self._handler]
        self.child = self._processes.start(self._name, command, self._environment(), self._bundle)
        async with asyncio.timeout(patience):
            while not self._ready.is_set():
                self.child.require()
                await asyncio.sleep(0.02)
        if self._failed is not None:
            raise RuntimeError(f"{self._name} failed to initialise: {self._failed.decode(errors='replace')}")

    async def invoke(self, event: bytes, timeout: float) -> Invoked:
        """The handler's answer to *event*; after *timeout* seconds the process is killed and the answer is an error."""
        self._count += 1
        invocation = _Invocation(f"{self._name}-{self._count}", event, int((time.time() + timeout) * 1000))
        self._waiting.put_nowait(invocation)
        try:
            async with asyncio.timeout(timeout):
                return await self._settled(invocation)
        except TimeoutError:
            self.kill()
            return Invoked(ok=False, payload=b'{"errorType":"Sandbox.Timedout"}')

    async def _settled(self, invocation: _Invocation) -> Invoked:
        while True:
            done, _ = await asyncio.wait({invocation.outcome}, timeout=0.2)
            if done:
                return invocation.outcome.result()
            if not self.alive:
                return Invoked(ok=False, payload=b'{"errorType":"Runtime.ExitError"}')

    def kill(self) -> None:
        if self.child is not None:
            self.child.kill()

    async def stop(self) -> None:
        # Without a registered extension the service gives a runtime no warning either.
        if self.child is not None:
            self.child.send(signal.SIGKILL)
        await self._server.stop()

    async def _answer(self, received: Received) -> Reply:
        call = received.path.removeprefix(_PREFIX)
        if call == "/invocation/next":
            return await self._next()
        if call == "/init/error":
            self._failed = received.body
            self._ready.set()
            return Reply(202)
        return self._finished(call, received.body)

    async def _next(self) -> Reply:
        self._ready.set()
        invocation = await self._waiting.get()
        self._current[invocation.id] = invocation
        headers = {
            "content-type": "application/json",
            "lambda-runtime-aws-request-id": invocation.id,
            "lambda-runtime-deadline-ms": str(invocation.deadline_ms),
            "lambda-runtime-invoked-function-arn": _ARN + self._name,
        }
        return Reply(200, invocation.event, headers)

    def _finished(self, call: str, payload: bytes) -> Reply:
        _, _, identity, kind = call.split("/")
        invocation = self._current.pop(identity, None)
        if invocation is None or invocation.outcome.done():
            return Reply(404)
        if len(payload) > MAX_PAYLOAD:
            invocation.outcome.set_result(Invoked(ok=False, payload=b'{"errorType":"Function.ResponseSizeTooLarge"}'))
            return Reply(413)
        invocation.outcome.set_result(Invoked(kind == "response", payload))
        return Reply(202, b'{"status":"OK"}', {"content-type": "application/json"})

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._server.port}",
            "AWS_LAMBDA_FUNCTION_NAME": self._name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{self._name}",
            "AWS_LAMBDA_LOG_STREAM_NAME": self._name,
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_EXECUTION_ENV": f"AWS_Lambda_python{sys.version_info.major}.{sys.version_info.minor}",
            "AWS_REGION": "us-east-1",
            "LAMBDA_TASK_ROOT": str(self._bundle),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self._bundle), os.environ.get("PYTHONPATH")])),
            "TZ": ":UTC",
            **self._env,
        }
