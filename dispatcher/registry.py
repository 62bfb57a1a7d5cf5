"""The relay's and the submissions' view of the publishers, kept in memory and never older than a second or so."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from dispatcher import endpoints
from dispatcher.declarations import Declarations
from dispatcher.endpoints import RelayTarget
from dispatcher.pollers import Pollers
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Publisher
from dispatcher.store import Store

_FRESH: Final = 1.0


class Registry:
    """Caches `endpoints.targets`; another replica's changes are seen within about a second, this one's at once.

    *publishers* are those of this process's file, in its order. A broker that only another replica's file describes is
    left out: this process has no way to reach it.
    """

    def __init__(self, store: Store, keys: ServerKeys, publishers: Mapping[str, Publisher] | None = None) -> None:
        self.pollers = Pollers(store)
        self.declarations = Declarations(store)
        self._store = store
        self._keys = keys
        self._publishers = publishers or {}
        self._known: list[RelayTarget] | None = None
        self._until = 0.0
        self._changes = 0
        self._loading = asyncio.Lock()

    async def targets(self, namespace: str | None = None) -> list[RelayTarget]:
        """The publishers that serve *namespace* (None: every publisher), the preferred first."""
        known = self._known
        if known is None or time.monotonic() >= self._until:
            async with self._loading:
                known = self._known
                if known is None or time.monotonic() >= self._until:
                    changes = self._changes
                    known = self._known = await self._read(leave_out_unreadable=known is not None)
                    if changes == self._changes:
                        self._until = time.monotonic() + _FRESH
        return [item for item in known if namespace is None or item.within(namespace)]

    async def endpoints(self, namespace: str | None = None) -> list[RelayTarget]:
        """As `targets`, those of type push only."""
        return [item for item in await self.targets(namespace) if item.type == "push"]

    async def default_version(self, namespace: str, workflow: str) -> str | None:
        """The version of *workflow* discovered last, or None when nobody in *namespace* has served it."""
        polled = await self.pollers.versions(namespace, workflow)
        return endpoints.default_version(await self.targets(namespace), namespace, workflow, polled)

    def invalidate(self) -> None:
        """The next call reads the database again, also when one is reading it now."""
        self._changes += 1
        self._until = 0.0

    def reload(self, publishers: Mapping[str, Publisher]) -> None:
        """From the next call on *publishers* are those of the file."""
        self._publishers = publishers
        self.invalidate()

    async def _read(self, *, leave_out_unreadable: bool) -> list[RelayTarget]:
        known = await endpoints.targets(
            self._store, self._keys, file_order=list(self._publishers), leave_out_unreadable=leave_out_unreadable
        )
        return [item for item in known if item.type == "push" or self._describes(item)]

    def _describes(self, broker: RelayTarget) -> bool:
        described = self._publishers.get(broker.name)
        return described is not None and described.type == broker.type
