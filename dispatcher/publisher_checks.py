"""Looking at the brokers: whether their queues are there and take deliveries, at start and again and again.

What is wrong with a broker is a warning in the log and a visible state, never a reason not to start or to stop.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from dispatcher.endpoints import RelayTarget
from dispatcher.pace import Pace
from dispatcher.registry import Registry
from dispatcher.store import Store
from dispatcher.store import endpoints as endpoint_store
from publishers.base import Health, Target

log = logging.getLogger(__name__)


class _Watched:
    """When a broker is looked at next, and what was found last."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.pace = Pace()
        self.found: Health | None = None

    def note(self, found: Health, now: float) -> None:
        self.found = found
        self.pace = self.pace.after(now, well=found.state == "active")


class CheckPublishers:
    """Checks every broker each 60 s, one that cannot be used after 1 s, 2 s, 4 s … 60 s, a changed one at once.

    *check* asks the publisher of a target; *sweep* is called at every tick, for what waits to be closed.
    """

    name: Final = "checkPublishers"

    def __init__(
        self,
        store: Store,
        registry: Registry,
        check: Callable[[RelayTarget], Awaitable[Health]],
        sweep: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._registry = registry
        self._check = check
        self._sweep = sweep
        self._clock = clock
        self._watched: dict[str, _Watched] = {}

    async def once(self) -> dict[str, int]:
        """The brokers due were checked, their states stored; counts those that can be used and the others."""
        await self._sweep()
        brokers = [item for item in await self._registry.targets() if item.type != "push"]
        self._watched = {item.endpoint_id: self._watch(item) for item in brokers}
        now = self._clock()
        found = await asyncio.gather(
            *(self._look(item) for item in brokers if self._watched[item.endpoint_id].pace.at <= now)
        )
        active = sum(health.state == "active" for health in found)
        return {"active": active, "unusable": len(found) - active}

    def _watch(self, item: RelayTarget) -> _Watched:
        known = self._watched.get(item.endpoint_id)
        if known is None:
            return _Watched(item.target)
        if known.target != item.target:
            known.target, known.pace = item.target, Pace()
        return known

    async def _look(self, item: RelayTarget) -> Health:
        found = await self._health(item)
        await self._store.transact(
            lambda session: endpoint_store.checked(session, item.endpoint_id, found.state, found.code)
        )
        watched = self._watched[item.endpoint_id]
        _tell(item, watched.found, found)
        watched.note(found, self._clock())
        return found

    async def _health(self, item: RelayTarget) -> Health:
        try:
            return await self._check(item)
        except Exception as error:
            log.exception("publisher check raised", extra={"publisher": item.name})
            return Health("unreachable", "check_failed", f"The check failed: {type(error).__name__}.")


def _tell(item: RelayTarget, before: Health | None, now: Health) -> None:
    """One line when a broker turns unusable, or for another reason than before, and one when it is well again."""
    extra = {"publisher": item.name, "type": item.type, "state": now.state}
    if now.state != "active":
        if before is None or before.code != now.code:
            log.warning("publisher cannot be used", extra={**extra, "code": now.code, "cause": now.message})
    elif before is not None and before.state != "active":
        log.info("publisher can be used again", extra=extra)
