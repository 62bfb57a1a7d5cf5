"""Cancelling the children of a cancelled run: each asked in a transaction of its own, whatever becomes of this process.

The move that cancels a run with children marks it; the mark goes when no child is left that was not asked.
"""

import logging
from functools import partial
from typing import Final

from dispatcher import cancelling, errors
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, children

_PARENTS: Final = 20
_CHILDREN: Final = 500
_REASON: Final = "parent_cancelled"
_ACTOR: Final = "cascade"

log = logging.getLogger(__name__)


class CancelChildren:
    """The daemon that passes a cancel on to the children of the cancelled; any number of replicas may run it."""

    name: Final = "cancelChildren"

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    async def once(self) -> dict[str, int]:
        """What one tick did: {cancelled, more}.

        `more` asks for another tick soon only where this one got on: who could not be asked is asked again in a while.
        """
        parents = await self._store.transact(lambda session: children.cascading(session, _PARENTS))
        cancelled = 0
        left = len(parents) == _PARENTS
        for parent_id in parents:
            asked, done = await self._cascade(parent_id)
            cancelled += asked
            left = left or not done
        return {"cancelled": cancelled, "more": int(left and cancelled > 0)}

    def reload(self, settings: Settings) -> None:
        """From the next tick on *settings* hold."""
        self._settings = settings

    async def _cascade(self, parent_id: str) -> tuple[int, bool]:
        """How many children were asked now, and whether every one was."""
        look = partial(children.untold, parent_id=parent_id, after="", limit=_CHILDREN)
        found = await self._store.transact(look)
        asked = 0
        for run_id in found:
            asked += await self._ask(run_id)
        if len(found) == _CHILDREN:
            return asked, False
        return asked, await self._store.transact(partial(_finish, parent_id=parent_id))

    async def _ask(self, run_id: str) -> bool:
        ask = partial(
            cancelling.request,
            run_id=run_id,
            reason=_REASON,
            grace_ms=self._settings.runs.cancel_grace_ms,
            actor=_ACTOR,
        )
        try:
            return await self._store.transact(ask)
        except errors.Unavailable:
            log.warning("a child of a cancelled run is held", extra={"run_id": run_id})
        except Exception:
            # Its mark stays on its parent; nobody else's children wait for it.
            log.exception("a child of a cancelled run cannot be asked", extra={"run_id": run_id})
        return False


def _finish(session: Session, parent_id: str) -> bool:
    """Whether no child is left to ask: then the parent's mark is gone."""
    if children.untold(session, parent_id, after="", limit=1):
        return False
    children.cascaded(session, parent_id)
    return True
