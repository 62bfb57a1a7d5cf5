"""Gives a claim up until something happens, or learns that something has happened already."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from endpoint_sdk.port import Port
from endpoint_sdk.wire import messages

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


class Parking:
    """At most one park at a time. *parked* hears that the claim is given up, *refused* what the dispatcher recorded
    meanwhile, *failed* what a request raised, and *again* that a next park may be tried.

    A refusal that brings nothing was for somebody else's event: the next park may follow at once, and from then on
    after a pause that grows from 50 ms to 2 s.
    """

    def __init__(
        self,
        port: Port,
        *,
        parked: Callable[[], None],
        refused: Callable[[Sequence[messages.Record]], None],
        failed: Callable[[BaseException], None],
        again: Callable[[], None],
    ) -> None:
        self._port = port
        self._parked = parked
        self._refused = refused
        self._failed = failed
        self._again = again
        self._request: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._vain = 0

    @property
    def under_way(self) -> bool:
        """Whether a park's answer is awaited: until it comes nothing may be started or recorded."""
        return self._request is not None and not self._request.done()

    def park(self, waits: Sequence[messages.WaitFor], *, told: bool = False) -> None:
        """Asks to be parked for *waits*, unless a pause is on; *told* as for Port.park."""
        if not self.under_way and self._pause is None:
            self._request = asyncio.create_task(self._ask(waits, told))

    async def clear(self) -> None:
        """Returns once no park is under way."""
        while (request := self._request) is not None and not request.done():
            await asyncio.wait([request])

    async def stop(self, *, at_once: bool) -> None:
        """No park is under way any more; *at_once* leaves one without hearing its answer."""
        if self._request is not None and at_once:
            self._request.cancel()
        await self.clear()
        if self._pause is not None:
            self._pause.cancel()

    async def _ask(self, waits: Sequence[messages.WaitFor], told: bool) -> None:
        try:
            signals = await self._port.park(waits, told=told)
        except BaseException as error:
            self._request = None
            self._failed(error)
            return
        self._request = None
        if signals is None:
            self._parked()
            return
        self._vain = 0 if signals else self._vain + 1
        self._refused(signals)
        if self._vain > 1:
            delay = min(_FIRST_PAUSE * 2.0 ** min(self._vain - 2, 10), _LONGEST_PAUSE)
            self._pause = asyncio.get_running_loop().call_later(delay, self._resume)
        else:
            self._again()

    def _resume(self) -> None:
        self._pause = None
        self._again()
