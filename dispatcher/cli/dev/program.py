"""A process with the developer's program in it, as its parent sees it."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dispatcher.cli.dev.channel import Answered, Failed, Invoke, Parent, Serve
from dispatcher.cli.dev.findings import Found
from dispatcher.cli.dev.target import Target


@dataclass(frozen=True)
class Recipe:
    """How to start the program: what to import, under which environment, and the socket it may serve on."""

    target: Target
    environment: Mapping[str, str]
    listener: socket.socket


class Program:
    """One process, from `launch` to `end`; it is not reached by the terminal's Ctrl-C, only by its parent."""

    def __init__(self, popen: "subprocess.Popen[bytes]", channel: Parent) -> None:
        self._popen = popen
        self._channel = channel
        self._end = asyncio.create_task(asyncio.to_thread(popen.wait))
        self.began = time.monotonic()
        self.ending = False

    @classmethod
    async def launch(cls, recipe: Recipe) -> "Program":
        """The process is there and imports the program."""
        ours, theirs = socket.socketpair()
        with theirs:
            popen = _spawned(recipe, theirs)
        return cls(popen, await Parent.over(ours))

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    async def ended(self) -> int:
        """The exit code, once there is one."""
        # Whoever waits may be cancelled; the others go on waiting.
        return await asyncio.shield(self._end)

    async def found(self) -> Found | Failed:
        """What the program has to serve, once it is imported."""
        match await self._channel.report():
            case Found() | Failed() as report:
                return report
            case _:
                return Failed(f"The process ended with {await self.ended()} while it imported the program.")

    async def serve(self) -> None:
        """The program serves; an end of its process in this very moment shows in `ended`."""
        try:
            await self._channel.tell(Serve())
        except ConnectionError:
            await self.ended()

    async def invoke(self, event: dict[str, Any], timeout: float) -> bytes | None:
        """What the Lambda handler returned for *event* as JSON; None if it raised, died or ran over *timeout* s."""
        order = Invoke(str(uuid.uuid4()), event, int((time.time() + timeout) * 1000))
        try:
            async with asyncio.timeout(timeout):
                await self._channel.tell(order)
                report = await self._channel.report()
        except (ConnectionError, TimeoutError):
            self.kill()
            return None
        payload = report.payload if isinstance(report, Answered) else None
        return None if payload is None else payload.encode()

    async def end(self, patience: float) -> bool:
        """The process is gone; False if it had to be killed after *patience* seconds."""
        self.ending = True
        self._channel.close()
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait({self._end}, timeout=patience)
        self.kill()
        await self.ended()
        return bool(done)

    def dismiss(self) -> None:
        """The process ends by itself once it has nothing in hand."""
        self._channel.close()

    def kill(self) -> None:
        """The process, and what it started, is killed."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Between its end and the moment that is known here, its process group is gone already.
        with contextlib.suppress(ProcessLookupError):
            if self.alive:
                os.killpg(self.pid, number)


def _spawned(recipe: Recipe, channel: socket.socket) -> "subprocess.Popen[bytes]":
    target = [str(recipe.target.root), recipe.target.module, recipe.target.name or ""]
    words = [*target, str(channel.fileno()), str(recipe.listener.fileno())]
    # Bytecode is told apart by size and second: of two quick edits the second one would not be seen.
    return subprocess.Popen(  # noqa: S603  our own module, on the interpreter we run on
        [sys.executable, "-m", "dispatcher.cli.dev.child", *words],
        stdin=subprocess.DEVNULL,
        env={**recipe.environment, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        pass_fds=(channel.fileno(), recipe.listener.fileno()),
        start_new_session=True,
    )
