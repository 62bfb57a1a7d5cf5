"""Polls over real sockets: a client that hangs up is noticed, and claims nothing."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from dispatcher.api.server import Api
from tests.contract.api import World
from tests.contract.test_api_polling import claims, ids, poll, waits


@asynccontextmanager
async def served(world: World) -> AsyncIterator[int]:
    """The world's API under uvicorn, on the port given."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        config = uvicorn.Config(
            Api(world.dispatcher.services), lifespan="off", ws="none", http="httptools", log_config=None
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


async def send(port: int, key: str, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which the poll *body* was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/claims HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()
    return reader, writer


async def execute_key(world: World) -> str:
    """A key that may poll."""
    made = await world.admin("POST", "/v1/keys", {"name": "poller", "scopes": ["execute"]})
    key: str = made.json()["key"]
    return key


async def test_an_abandoned_poll_claims_nothing(world: World) -> None:
    """A client that closes its connection while it waits gets nothing, and what comes later is the next poller's."""
    async with served(world) as port:
        key = await execute_key(world)
        _, writer = await send(port, key, poll(wait_ms=20_000))
        await waits(world)
        writer.close()
        await writer.wait_closed()
        await waits(world, 0)
        run = await world.submit()

        shown = (await world.admin("GET", f"/v1/runs/{run['id']}")).json()["run"]
        assert (shown["status"], shown["revision"]) == ("queued", 0)
        assert ids(await claims(world.bearer(key), poll())) == [run["id"]]


async def test_a_reset_connection_claims_nothing(world: World) -> None:
    """A client that is killed resets its connection: the same."""
    async with served(world) as port:
        key = await execute_key(world)
        _, writer = await send(port, key, poll(wait_ms=20_000))
        await waits(world)
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()
        await waits(world, 0)
        run = await world.submit()

        assert ids(await claims(world.bearer(key), poll())) == [run["id"]]


async def test_a_client_that_waits_is_answered(world: World) -> None:
    """The same poll, its connection held, is answered over it."""
    async with served(world) as port:
        reader, writer = await send(port, await execute_key(world), poll(wait_ms=20_000))
        await waits(world)
        run = await world.submit()
        async with asyncio.timeout(20):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
        writer.close()

        assert head.startswith(b"HTTP/1.1 200")
        assert ids(body["claims"]) == [run["id"]]
