"""Hands outcomes to the workflow one at a time, letting its code settle in between.

The order in which a workflow sees outcomes decides what it does next: who wins a race, which of two equal calls comes
first. So replay hands recorded outcomes out in the order they were recorded (`seq`), the smallest that has a pending
call first, and a first run obeys the same rule: outcomes acknowledged together are still seen one after the other.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from endpoint_sdk.pending_call import Call, Outcome

_ROUNDS: Final = 64


async def settle() -> None:
    """Returns once nothing in the running loop is ready to run, or after 64 rounds of it."""
    ready = getattr(asyncio.get_running_loop(), "_ready", None)
    for _ in range(_ROUNDS):
        if ready is not None and not ready:
            return
        await asyncio.sleep(0)


class HandOut:
    """*recorded* and *live* give an outcome over; *idle* is called when nothing is left to hand out for now.

    What a recorded outcome leaves out is fetched before it is given, and nothing else is handed out meanwhile: *fetch*
    does not raise. *failed* hears what any of the others raises, which ends the handing out.
    """

    def __init__(
        self,
        recorded: Callable[[Call], None],
        live: Callable[[Call, Outcome], None],
        idle: Callable[[], None],
        fetch: Callable[[Call], Awaitable[None]],
        failed: Callable[[Exception], None],
    ) -> None:
        self._give_recorded = recorded
        self._give_live = live
        self._idle = idle
        self._fetch = fetch
        self._failed = failed
        self._recorded: list[tuple[int, int, Call]] = []
        self._calls = itertools.count()
        self._live: deque[tuple[Call, Outcome]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._unsettled = True

    @property
    def active(self) -> bool:
        """Whether outcomes are on their way to the workflow."""
        return self._pump is not None

    def recorded(self, seq: int, call: Call) -> None:
        """*call* waits for the record numbered *seq*."""
        heapq.heappush(self._recorded, (seq, next(self._calls), call))
        self.wake()

    def live(self, call: Call, outcome: Outcome, *, alone: bool) -> None:
        """*outcome* was acknowledged; *alone* when no other code of the workflow could see anything in between."""
        if alone and self._pump is None:
            self._unsettled = True
            self._give_live(call, outcome)
        else:
            self._live.append((call, outcome))
            self.wake()

    def wake(self) -> None:
        """Makes sure that *idle* is called once the workflow has settled."""
        if self._pump is None:
            self._pump = asyncio.create_task(self._guarded())

    async def stop(self) -> None:
        """Hands nothing out any more."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])
            self._pump = None

    async def _guarded(self) -> None:
        try:
            await self._run()
        except Exception as error:
            # Unheard, it would leave a run that does nothing and keeps its claim.
            self._failed(error)

    async def _run(self) -> None:
        replaying = True
        while True:
            if replaying or self._unsettled:
                await settle()
                self._unsettled = False
            replaying = bool(self._recorded)
            if replaying:
                *_, call = heapq.heappop(self._recorded)
                if call.fetches:
                    await self._fetch(call)
                self._give_recorded(call)
            elif self._live:
                self._give_live(*self._live.popleft())
            else:
                break
            self._unsettled = True
        self._pump = None
        self._idle()
