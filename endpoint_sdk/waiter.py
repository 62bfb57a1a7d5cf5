"""Takes one sleep or event from its asking to its outcome, as far as this executor can.

A sleep ends here when its moment comes while the run is held; events are the dispatcher's to hand out, and are heard
of when a park is refused or the run is claimed again. A long wait beside other work is written down, so that its
deadline outlives this claim.
"""

import asyncio
from typing import Final

import msgspec

from endpoint_sdk.history import History
from endpoint_sdk.ledger import Floor, Ledger
from endpoint_sdk.pending_call import Outcome
from endpoint_sdk.wait_call import SleepCall, WaitCall, refused
from endpoint_sdk.wire import clock

_NOTED_AFTER: Final = 1.0
_WORTH_NOTING_MS: Final = 10_000


class Waiter:
    """Waits on behalf of every wait of one run."""

    def __init__(self, ledger: Ledger, floor: Floor, history: History) -> None:
        self._ledger = ledger
        self._floor = floor
        self._history = history

    async def outcome(self, call: WaitCall) -> Outcome:
        """The outcome of *call*; of an event this never returns, its outcome comes another way."""
        asked = self._ledger.now()
        known = self._history.deadline(call.key)
        call.due_ms = call.deadline(asked) if known is None else known
        if known is None:
            await self._note_deadline(call, asked)
        if not isinstance(call, SleepCall) or call.due_ms is None:
            self._ledger.enter(call, "waiting")
            await asyncio.get_running_loop().create_future()
        return await self._sleep(call, asked)

    async def _note_deadline(self, call: WaitCall, asked: int) -> None:
        if not call.relative or call.due_ms is None or call.due_ms - asked <= _WORTH_NOTING_MS:
            return
        self._ledger.enter(call, "waiting")
        await asyncio.sleep(_NOTED_AFTER)
        await self._floor.clear()
        call.stage = "busy"
        await self._ledger.note(call, self._ledger.started(call, 1))

    async def _sleep(self, call: WaitCall, asked: int) -> Outcome:
        assert call.due_ms is not None
        while (left := call.due_ms - self._ledger.now()) > 0:
            self._ledger.enter(call, "waiting")
            await asyncio.sleep(left / 1000)
        await self._floor.clear()
        call.stage = "busy"
        record = await self._ledger.write(call, self._ledger.ended(call, 1, asked, value=msgspec.Raw(b"null")))
        return Outcome(None, refused(record), clock.known_ms(record.finished_at))
