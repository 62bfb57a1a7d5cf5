"""Handing batches of deliveries to brokers: a few calls at a time for each, none of which anybody waits for.

While a call is under way its entries stay leased, so a slow broker is not sent a copy for each five seconds it takes.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from dispatcher import errors, leasing, outcomes
from dispatcher.endpoints import RelayTarget
from dispatcher.leasing import Leased
from dispatcher.outcomes import Answered
from dispatcher.refusals import Refusals
from dispatcher.store import Session, Store, entries
from publishers.base import Outcome

CALLS: Final = 4
HOLD_MS: Final = 5_000

_RENEW_SECONDS: Final = 2.0
_LONGEST_CALL_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 2.0

Publish = Callable[[RelayTarget, Sequence[Leased]], Awaitable[list[Outcome]]]
Write = Callable[[RelayTarget, Sequence[Answered]], Awaitable[None]]

log = logging.getLogger(__name__)


class Handovers:
    """The publish calls under way to brokers."""

    def __init__(
        self, store: Store, publish: Publish, write: Write, on_end: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._publish = publish
        self._write = write
        self._on_end = on_end
        self._calls: dict[asyncio.Task[None], str] = {}
        self._refusals = Refusals(clock)

    @property
    def calls(self) -> list["asyncio.Task[None]"]:
        """The calls under way, to any broker."""
        return list(self._calls)

    def room(self, publisher_id: str) -> int:
        """How many deliveries the broker may be handed now: nothing while four calls to it are under way.

        One that refused its last batch gets nothing for a while, and then a single delivery to try.
        """
        under_way = sum(1 for held in self._calls.values() if held == publisher_id)
        if publisher_id in self._refusals:
            return 0 if under_way or self._refusals.is_paused(publisher_id) else 1
        return max(0, CALLS - under_way) * leasing.BATCH

    def begin(self, target: RelayTarget, batch: Sequence[Leased]) -> None:
        """The broker is being handed *batch*; what becomes of it is stored when it is known."""
        call = asyncio.ensure_future(self._hand(target, batch))
        self._calls[call] = target.endpoint_id
        call.add_done_callback(self._ended)

    async def stop(self) -> None:
        """No call is under way. One that does not end soon is given up: its entries are redelivered."""
        if not self._calls:
            return
        await asyncio.wait(self._calls, timeout=_STOP_SECONDS)
        calls = self.calls
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _ended(self, call: "asyncio.Task[None]") -> None:
        self._calls.pop(call, None)
        if not call.cancelled() and call.exception() is not None:
            log.error("handover ended unexpectedly", exc_info=call.exception())
        self._on_end()

    async def _hand(self, target: RelayTarget, batch: Sequence[Leased]) -> None:
        found = await self._outcomes(target, batch)
        self._report(target, found)
        await self._write(target, [Answered(*each) for each in zip(batch, found, strict=True)])

    async def _outcomes(self, target: RelayTarget, batch: Sequence[Leased]) -> list[Outcome]:
        call = asyncio.ensure_future(self._publish(target, batch))
        try:
            for _ in range(int(_LONGEST_CALL_SECONDS / _RENEW_SECONDS)):
                done, _pending = await asyncio.wait([call], timeout=_RENEW_SECONDS)
                if done:
                    return call.result()
                await self._hold(batch)
        finally:
            call.cancel()
        # Some of it may have arrived.
        return [Outcome("published", outcomes.UNKNOWN)] * len(batch)

    async def _hold(self, batch: Sequence[Leased]) -> None:
        """Nobody takes the deliveries for overdue, the next five seconds, and hands them over once more."""
        try:
            await self._store.transact(partial(_hold, batch=batch))
        except errors.Unavailable:
            log.debug("a lease was not renewed", extra={"deliveries": len(batch)})

    def _report(self, target: RelayTarget, found: Sequence[Outcome]) -> None:
        """One line when a broker begins to take nothing, and one when it takes something again."""
        changed = self._refusals.note(target.endpoint_id, found)
        rows = Counter(outcome.row for outcome in found)
        extra = {"publisher": target.name, "route": target.type, "rows": dict(rows)}
        if not changed:
            log.debug("batch answered", extra=extra)
        elif target.endpoint_id in self._refusals:
            log.warning("the broker takes no delivery", extra={**extra, "cause": found[0].detail})
        else:
            log.info("the broker takes deliveries again", extra=extra)


def _hold(session: Session, batch: Sequence[Leased]) -> int:
    return entries.hold(session, (leased.entry for leased in batch), session.now() + HOLD_MS)
