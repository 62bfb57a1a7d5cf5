"""A Lambda function URL on this machine: HTTP in, payload 2.0 events through the program's own handler, answers out.

Each environment is a process of its own with one invocation at a time; another one is started when all are busy, up
to eight, and beyond that a request is answered 429, as the service does it.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from dispatcher.cli.demo.front import to_event, to_reply
from dispatcher.cli.demo.loopback import Received, Reply, Server
from dispatcher.cli.dev.findings import Found
from dispatcher.cli.dev.program import Program

MOST: Final = 8
_TIMEOUT: Final = 900.0
_JSON: Final = {"content-type": "application/json"}
_BUSY: Final = Reply(429, b'{"Message":"Rate Exceeded."}', _JSON)
_FAILED: Final = Reply(502, b'{"Message":"Internal Server Error"}', _JSON)


class Environments:
    """Processes that run one version of the program: *first* and what *launch* makes."""

    def __init__(self, first: Program, launch: Callable[[], Awaitable[Program]]) -> None:
        self._launch = launch
        self._idle = [first]
        self._busy: set[Program] = set()
        self._starting = 0
        self._retired = False
        self._freed = asyncio.Event()

    async def take(self) -> Program | None:
        """An environment for one invocation, None when as many as may be are busy or none can be started."""
        while self._idle:
            program = self._idle.pop()
            if program.alive:
                self._busy.add(program)
                return program
        if self._retired or len(self._busy) + self._starting >= MOST:
            return None
        self._starting += 1
        try:
            return await self._started()
        finally:
            self._starting -= 1

    def give_back(self, program: Program) -> None:
        """*program* has answered, or died."""
        self._busy.discard(program)
        self._freed.set()
        if self._retired:
            program.dismiss()
        else:
            self._idle.append(program)

    async def retire(self, patience: float) -> list[int]:
        """Every process is gone; answers the ids of those that were killed in an invocation after *patience* s."""
        self._retired = True
        idle, self._idle = self._idle, []
        ending = [*idle, *self._busy]
        try:
            async with asyncio.timeout(patience):
                while self._busy:
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            pass
        killed = [program.pid for program in self._busy]
        await asyncio.gather(*(program.end(0) for program in ending))
        return killed

    async def _started(self) -> Program | None:
        program = await self._launch()
        if self._retired or not isinstance(await program.found(), Found):
            program.kill()
            return None
        await program.serve()
        self._busy.add(program)
        return program


class FunctionUrl:
    """Answers with `environments`, which may be exchanged at any time."""

    def __init__(self, environments: Environments) -> None:
        self.environments = environments
        self._server = Server(self._answer)

    async def start(self, bound: socket.socket) -> None:
        """Answers on *bound*, which is this object's to close."""
        await self._server.start(bound)

    async def stop(self) -> None:
        """Answers no more; the environments are not touched."""
        await self._server.stop()

    async def _answer(self, received: Received) -> Reply:
        environments = self.environments
        program = await environments.take()
        if program is None:
            return _BUSY
        try:
            payload = await program.invoke(to_event(received), _TIMEOUT)
        finally:
            environments.give_back(program)
        return _FAILED if payload is None else to_reply(payload)
