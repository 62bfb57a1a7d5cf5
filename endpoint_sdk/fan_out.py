"""One call per item, a bounded number at once."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from endpoint_sdk.errors import ConfigurationError

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


async def each(call: Callable[[I], Coroutine[Any, Any, T]], items: Iterable[I], limit: int) -> list[T]:
    """The results of *call* in the order of *items*; the first failure cancels the rest and is raised."""
    if limit < 1:
        raise ConfigurationError(f"map needs a limit of at least 1: {limit!r}")
    slots = asyncio.Semaphore(limit)

    async def one(item: I) -> T:
        async with slots:
            return await call(item)

    branches = [asyncio.create_task(one(item)) for item in items]
    try:
        return list(await asyncio.gather(*branches))
    finally:
        for branch in branches:
            branch.cancel()
        # Unwound before the failure is seen, so that what follows it does not depend on timing.
        await asyncio.gather(*branches, return_exceptions=True)
