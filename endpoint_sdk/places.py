"""How many runs a worker may hold at once, counted before anything is asked for."""

import asyncio
from collections import deque


class Places:
    """*total* places, shared by everything a worker receives from; who asked first gets the next free ones."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()

    @property
    def free(self) -> int:
        """Places nobody has reserved."""
        return self._free

    async def reserve(self, most: int) -> int:
        """Reserves at least one place and at most *most*, as soon as one is free; the number reserved."""
        if self._free and not self._waiting:
            return self._grant(most)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((most, future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give_back(future.result())
            raise

    def give_back(self, count: int) -> None:
        """*count* reserved places are free again."""
        self._free += count
        while self._free and self._waiting:
            most, future = self._waiting.popleft()
            if not future.done():
                future.set_result(self._grant(most))

    def _grant(self, most: int) -> int:
        granted = min(self._free, most)
        self._free -= granted
        return granted
