"""Both transports, asked in one way."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from endpoint_sdk.transport import Answer, AsyncTransport, BlockingTransport

Send = Callable[..., Awaitable[Answer]]


def sending(slow: BlockingTransport) -> Send:
    """`request` of a blocking transport as a coroutine function."""

    async def request(*args: Any, **options: Any) -> Answer:
        return await asyncio.to_thread(slow.request, *args, **options)

    return request


async def closed(client: AsyncTransport | BlockingTransport) -> None:
    """Closes *client*."""
    if isinstance(client, AsyncTransport):
        await client.close()
    else:
        client.close()
