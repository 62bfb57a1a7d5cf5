"""Whether this process does its work: the database answers and every daemon makes progress."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from dispatcher import errors
from dispatcher.store import Store

_DATABASE_SECONDS: Final = 2.0


class Watched(Protocol):
    """A loop whose `well` turns false when no tick has ended without an error for too long."""

    @property
    def name(self) -> str: ...

    @property
    def well(self) -> bool: ...


class Readiness:
    """Judges the process for load balancers and orchestrators."""

    def __init__(self, store: Store, loops: Sequence[Watched]) -> None:
        self._store = store
        self._loops = loops

    async def check(self) -> dict[str, str]:
        """ "ok" for the database and each daemon.

        Raises Unavailable `unavailable`, the same checks in its details, when one of them is not.
        """
        checks = {"database": await self._database(), **{loop.name: _word(loop.well) for loop in self._loops}}
        if any(word != "ok" for word in checks.values()):
            failing = ", ".join(name for name, word in checks.items() if word != "ok")
            raise errors.Unavailable(
                "unavailable",
                f"Not ready: {failing}.",
                hint="The dispatcher's log says why.",
                details={"checks": checks},
                retry_after=5,
            )
        return checks

    async def _database(self) -> str:
        try:
            async with asyncio.timeout(_DATABASE_SECONDS):
                await self._store.transact(lambda session: session.now())
        except (TimeoutError, errors.Unavailable):
            return "failing"
        return "ok"


def _word(well: bool) -> str:
    return "ok" if well else "stuck"
