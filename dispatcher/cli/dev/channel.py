"""What `pointsman dev` and the processes it runs a program in say to each other: a JSON object a line, over a socket.

Either end reads the other's death as the end of the stream.
"""

import asyncio
import socket
from typing import Any, Final

import msgspec

from dispatcher.cli.dev.findings import Found

LIMIT: Final = 32 * 1024 * 1024


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The program could not be imported, or holds nothing to serve; *text* is for the developer."""

    text: str


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """What the handler returned, as JSON text; None where it raised."""

    payload: str | None


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """The program may begin."""


class Invoke(msgspec.Struct, frozen=True, tag="invoke"):
    """An event for the Lambda handler, and when its time is up, in epoch milliseconds."""

    id: str
    event: dict[str, Any]
    deadline_ms: int


_report: Final = msgspec.json.Decoder(Found | Failed | Answered)
_order: Final = msgspec.json.Decoder(Serve | Invoke)
_encode: Final = msgspec.json.Encoder().encode


class Child:
    """The child's end; blocking."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._lines = peer.makefile("rb")

    def tell(self, report: Found | Failed | Answered) -> None:
        self._peer.sendall(_encode(report) + b"\n")

    def order(self) -> Serve | Invoke | None:
        """The next order, None once the parent is gone or wants the child gone."""
        line = self._lines.readline()
        return _order.decode(line) if line else None


class Parent:
    """The parent's end, on its event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, peer: socket.socket) -> "Parent":
        return cls(*await asyncio.open_connection(sock=peer, limit=LIMIT))

    async def tell(self, order: Serve | Invoke) -> None:
        """Raises ConnectionError when the child is gone."""
        self._writer.write(_encode(order) + b"\n")
        await self._writer.drain()

    async def report(self) -> Found | Failed | Answered | None:
        """The next report, None once the child is gone."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return _report.decode(line) if line.endswith(b"\n") else None

    def close(self) -> None:
        """The child is told that it is not needed any more."""
        self._writer.close()
