"""Waiting in a test for what a running dispatcher does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


async def until(check: Callable[[], Awaitable[Any]], seconds: float = 30) -> Any:
    """What *check* answers once it is truthy."""
    async with asyncio.timeout(seconds):
        while True:
            if found := await check():
                return found
            await asyncio.sleep(0.02)
