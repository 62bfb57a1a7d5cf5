"""A small HTTP peer on loopback whose every connection follows a script."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

Script = Callable[["Peer", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Peer:
    """What came in: `connections` made, the head and body of each request."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.requests: list[tuple[bytes, bytes]] = []
        self.release = asyncio.Event()
        self.changed = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/p"

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        """The body of the next request, which is noted; IncompleteReadError at the end of the connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        await self.note(head, body)
        return body

    async def note(self, head: bytes, body: bytes = b"") -> None:
        """Adds to `requests` and wakes who waits in `heard`."""
        self.requests.append((head, body))
        async with self.changed:
            self.changed.notify_all()

    async def heard(self, requests: int = 0, *, connections: int = 0) -> None:
        """Returns once so many requests and connections came in."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(lambda: len(self.requests) >= requests and self.connections >= connections)


@contextlib.asynccontextmanager
async def serving(*scripts: Script) -> AsyncIterator[Peer]:
    """A peer whose n-th connection follows the n-th script; the last one serves all that follow."""
    peer = Peer()
    running: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        script = scripts[min(peer.connections, len(scripts) - 1)]
        peer.connections += 1
        async with peer.changed:
            peer.changed.notify_all()
        try:
            await script(peer, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            running.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        peer.release.set()
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def answering(*answers: bytes) -> Script:
    """Answers one request after another with *answers*, the last of them for ever."""

    async def script(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count = 0
        while True:
            await peer.read(reader)
            writer.write(answers[min(count, len(answers) - 1)])
            await writer.drain()
            count += 1

    return script


def closing_after(answer: bytes) -> Script:
    """Answers one request, then closes when the next one arrives, without a byte."""

    async def script(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.read(reader)
        writer.write(answer)
        await peer.read(reader)

    return script


async def silent(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads the request and says nothing until released."""
    await peer.read(reader)
    await peer.release.wait()


def cut_off(part: bytes) -> Script:
    """Reads the request, sends *part* of an answer and closes."""

    async def script(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.read(reader)
        writer.write(part)
        await writer.drain()
        writer.close()

    return script


async def deaf(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads nothing of what is sent, and resets the connection once released."""
    await peer.release.wait()
