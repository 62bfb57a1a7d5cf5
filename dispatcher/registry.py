"""The relay's and the submissions' view of the endpoints, kept in memory and never older than a second or so."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from dispatcher import endpoints
from dispatcher.endpoints import RelayTarget
from dispatcher.secrets import ServerKeys
from dispatcher.store import Store

_FRESH: Final = 1.0


class Registry:
    """Caches `endpoints.targets`; another replica's changes are seen within about a second, this one's at once."""

    def __init__(self, store: Store, keys: ServerKeys, file_order: Sequence[str] = ()) -> None:
        self._store = store
        self._keys = keys
        self._file_order = file_order
        self._known: list[RelayTarget] | None = None
        self._until = 0.0
        self._loading = asyncio.Lock()

    async def targets(self, namespace: str | None = None) -> list[RelayTarget]:
        """The endpoints that serve *namespace* (None: every endpoint), the preferred first."""
        known = self._known
        if known is None or time.monotonic() >= self._until:
            async with self._loading:
                known = self._known
                if known is None or time.monotonic() >= self._until:
                    known = self._known = await endpoints.targets(
                        self._store,
                        self._keys,
                        file_order=self._file_order,
                        leave_out_unreadable=known is not None,
                    )
                    self._until = time.monotonic() + _FRESH
        return [item for item in known if namespace is None or item.within(namespace)]

    async def default_version(self, namespace: str, workflow: str) -> str | None:
        """The version of *workflow* discovered last, or None when no endpoint of *namespace* serves it."""
        return endpoints.default_version(await self.targets(namespace), namespace, workflow)

    def invalidate(self) -> None:
        """The next call reads the database again."""
        self._until = 0.0
