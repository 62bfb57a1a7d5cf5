"""Every publisher over its own real transport, behind one face, for the suite that all of them pass."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Protocol

import msgspec

from endpoint_sdk.transport import AsyncTransport
from endpoint_sdk.wire import identity
from endpoint_sdk.wire.messages import Delivery, Signed
from publishers.base import Due, Publisher, Target
from publishers.memory import MemoryPublisher
from publishers.push import PushPublisher
from publishers.redis import RedisPublisher
from publishers.sqs import SqsPublisher
from tests.brokers import Sqs, free_port, sqs_client

KEYS: Final = (b"k" * 32, b"o" * 32)
_ANSWER: Final = b"HTTP/1.1 200 OK\r\npointsman-result: settled\r\ncontent-length: 2\r\n\r\n{}"
_member: Final = msgspec.json.Decoder(Signed).decode


class Arrival(msgspec.Struct, frozen=True):
    """A delivery as an executor gets it; *place* is where in the transport it was found."""

    headers: dict[str, str]
    body: bytes
    place: str


class Clock:
    """The time publishers sign at."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Rig(Protocol):
    """One publisher's world."""

    signs_afresh: bool
    closes: bool
    clock: Clock

    def publisher(self, secrets: Sequence[bytes] = KEYS) -> Publisher:
        """A publisher whose transport works."""
        ...

    def unreachable(self) -> Publisher:
        """A publisher whose transport reaches nobody, or has no room."""
        ...

    async def arrived(self) -> list[Arrival]:
        """What arrived since the last look."""
        ...


def due(*, rank: int = 0, pool: str = "default", queued_at: int | None = None, **changes: Any) -> Due:
    """A delivery of a run of its own, as the relay hands it over."""
    given: dict[str, Any] = {
        "run_id": identity.new("run"), "namespace": "default", "workflow": "order", "version": "1", "revision": 4,
        "attempt": 1, "audience": "orders", "url": "https://pointsman.example", "token": "pmc_x",
    }  # fmt: skip
    queued = int(time.time() * 1000) if queued_at is None else queued_at
    return Due(Delivery(**(given | changes)), rank, queued, pool)


def redis_client(url: str) -> Any:
    """A client as the dispatcher makes it: no retries of its own."""
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_connect_timeout=20, socket_timeout=20)


class PushRig:
    """Push, to a server that settles everything."""

    signs_afresh = True
    closes = False

    def __init__(self) -> None:
        self.clock = Clock()
        self.transport = AsyncTransport()
        self.url = ""
        self._arrived: list[Arrival] = []

    def publisher(self, secrets: Sequence[bytes] = KEYS) -> Publisher:
        return self._publisher(self.url, secrets)

    def unreachable(self) -> Publisher:
        return self._publisher(f"http://127.0.0.1:{free_port()}/", KEYS)

    async def arrived(self) -> list[Arrival]:
        found, self._arrived = self._arrived, []
        return found

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads deliveries until the connection ends."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head)}
                body = await reader.readexactly(int(headers["content-length"]))
                self._arrived.append(Arrival(headers, body, "endpoint"))
                writer.write(_ANSWER)
        writer.transport.abort()

    def _publisher(self, url: str, secrets: Sequence[bytes]) -> Publisher:
        target = Target("orders", url, "generic", tuple(secrets), allow_http=True)
        return PushPublisher(target, self.transport, now=self.clock)


class SqsRig:
    """SQS, to a queue at *url*."""

    signs_afresh = True
    closes = True

    def __init__(self, sqs: Sqs, url: str) -> None:
        self.clock = Clock()
        self.sqs = sqs
        self.url = url
        self.clients = [sqs_client(sqs.endpoint_url)]

    def publisher(self, secrets: Sequence[bytes] = KEYS) -> SqsPublisher:
        return SqsPublisher(target(self.url, secrets), self.clients[0], now=self.clock)

    def unreachable(self) -> Publisher:
        origin = f"http://127.0.0.1:{free_port()}"
        self.clients.append(sqs_client(origin))
        return SqsPublisher(target(f"{origin}/1/queue", KEYS), self.clients[-1])

    async def arrived(self) -> list[Arrival]:
        return [
            Arrival(
                {name: value["StringValue"] for name, value in message["MessageAttributes"].items()},
                message["Body"].encode(),
                message["Attributes"]["MessageGroupId"],
            )
            for message in await asyncio.to_thread(self.sqs.drain, self.url)
        ]


class RedisRig:
    """Redis, to the database at *url*."""

    signs_afresh = False
    closes = True

    def __init__(self, url: str) -> None:
        self.clock = Clock()
        self.url = url
        self.clients = [redis_client(url)]

    def publisher(self, secrets: Sequence[bytes] = KEYS) -> RedisPublisher:
        return RedisPublisher(target(self.url, secrets), self.clients[0])

    def unreachable(self) -> Publisher:
        self.clients.append(redis_client(f"redis://:hunter22@127.0.0.1:{free_port()}/0"))
        return RedisPublisher(target("redis://127.0.0.1/0", KEYS), self.clients[-1])

    async def arrived(self) -> list[Arrival]:
        found: list[Arrival] = []
        for key in await self.clients[0].keys("pointsman:*"):
            for member, _ in await self.clients[0].zpopmin(key, 1_000):
                signed = _member(member)
                found.append(Arrival(signed.headers, signed.body.encode(), key.decode()))
        return found


class MemoryRig:
    """Memory."""

    signs_afresh = True
    closes = True

    def __init__(self) -> None:
        self.clock = Clock()
        self._made: list[MemoryPublisher] = []

    def publisher(self, secrets: Sequence[bytes] = KEYS) -> MemoryPublisher:
        self._made.append(MemoryPublisher(target("memory:", secrets), now=self.clock))
        return self._made[-1]

    def unreachable(self) -> Publisher:
        return MemoryPublisher(target("memory:", KEYS), capacity=0)

    async def arrived(self) -> list[Arrival]:
        taken = [received for made in self._made for received in made.take(1_000)]
        return [Arrival(each.headers, each.body, str(each.queue)) for each in taken]


def target(url: str, secrets: Sequence[bytes]) -> Target:
    """A broker as its publisher knows it."""
    return Target("orders", url, "generic", tuple(secrets))


@contextlib.asynccontextmanager
async def push_rig() -> AsyncIterator[PushRig]:
    """A running PushRig."""
    rig = PushRig()
    server = await asyncio.start_server(rig.connected, "127.0.0.1", 0, backlog=200)
    rig.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    try:
        yield rig
    finally:
        await rig.transport.close()
        server.close()


@contextlib.asynccontextmanager
async def sqs_rig(sqs: Sqs, url: str) -> AsyncIterator[SqsRig]:
    """A SqsRig whose clients are closed."""
    rig = SqsRig(sqs, url)
    try:
        yield rig
    finally:
        for client in rig.clients:
            client.close()


@contextlib.asynccontextmanager
async def redis_rig(url: str) -> AsyncIterator[RedisRig]:
    """A RedisRig whose clients are closed."""
    rig = RedisRig(url)
    try:
        yield rig
    finally:
        for client in rig.clients:
            await client.aclose()
