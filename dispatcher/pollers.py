"""What pollers serve: each poll says so, and it counts as discovery."""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from dispatcher.store import Session, Store, served
from dispatcher.store.served import Served

ABSENT_MS: Final = 600_000
"""A version nobody has asked for in so long counts as newly discovered when somebody asks again."""

_SAY_AGAIN_SECONDS: Final = 60.0
_FRESH_SECONDS: Final = 1.0
_REMEMBERED: Final = 50_000


class Pollers:
    """Keeps what pollers say in the store, written at most once a minute for each version by this dispatcher."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._said: dict[tuple[str, str, str], float] = {}
        self._known: dict[tuple[str, str], tuple[float, list[Served]]] = {}
        self._saying = asyncio.Lock()

    async def saw(self, namespace: str, pairs: Iterable[tuple[str, str]]) -> None:
        """The (workflow, version) *pairs* are known to be served by pollers of *namespace*."""
        given = set(pairs)
        if not self._unsaid(namespace, given):
            return
        async with self._saying:  # a fleet that starts polls at once, and one poll speaks for all
            fresh = self._unsaid(namespace, given)
            if fresh:
                await self._say(namespace, fresh)

    def _unsaid(self, namespace: str, pairs: set[tuple[str, str]]) -> list[tuple[str, str]]:
        moment = time.monotonic()
        return sorted(pair for pair in pairs if moment >= self._said.get((namespace, *pair), 0.0))

    async def _say(self, namespace: str, fresh: list[tuple[str, str]]) -> None:
        moment = time.monotonic()

        def operation(session: Session) -> None:
            now = session.now()
            served.see(session, namespace, fresh, now_ms=now, absent_before=now - ABSENT_MS)

        await self._store.transact(operation)
        if len(self._said) > _REMEMBERED:
            self._said.clear()
        self._said.update({(namespace, *pair): moment + _SAY_AGAIN_SECONDS for pair in fresh})
        for workflow, _ in fresh:
            self._known.pop((namespace, workflow), None)

    async def versions(self, namespace: str, workflow: str) -> list[Served]:
        """Every version of *workflow* that pollers of *namespace* have served, as of a second ago at the earliest."""
        until, found = self._known.get((namespace, workflow), (0.0, []))
        if time.monotonic() >= until:
            found = await self._store.transact(lambda session: served.versions(session, namespace, workflow))
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            self._known[namespace, workflow] = time.monotonic() + _FRESH_SECONDS, found
        return found
