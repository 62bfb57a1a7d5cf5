"""Writes a run's records: one progress request at a time, in the order the records were handed in.

Records completed while a request is under way share the next one. A refusal stores nothing, so a shared request that
is refused is sent again record by record, and only the record at fault is refused.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from endpoint_sdk import calls
from endpoint_sdk.errors import RecordRefused
from endpoint_sdk.exchange import Abandoned
from endpoint_sdk.wire import limits, messages

_log: Final = logging.getLogger(__name__)

_MOST_RECORDS: Final = 100
_ENVELOPE: Final = 4096

Send = Callable[[Sequence[bytes]], Awaitable[calls.Refused | None]]


class _Entry:
    __slots__ = ("done", "encoded")

    def __init__(self, encoded: bytes, done: asyncio.Future[None]) -> None:
        self.encoded = encoded
        self.done = done

    def settle(self, refusal: calls.Refused | None) -> None:
        if self.done.done():
            return
        if refusal is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(RecordRefused(refusal.code, refusal.message))

    def abandon(self) -> None:
        if not self.done.done():
            self.done.set_exception(Abandoned())


class Recorder:
    """The queue of records on their way; *send* makes one acknowledged request of them."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[_Entry] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._abandoned = False

    async def write(self, record: messages.RecordIn) -> None:
        """Returns once *record* is acknowledged.

        Cancelling the caller does not take the record back: what it records has happened. Raises RecordRefused on a
        definite refusal, Abandoned when the outcome will never be known.
        """
        if self._abandoned:
            raise Abandoned
        entry = _Entry(calls.record(record), asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        await entry.done

    async def idle(self) -> None:
        """Returns once nothing is on its way; raises Abandoned if a record's outcome will never be known."""
        while self._pump is not None:
            await asyncio.wait([self._pump])
        if self._abandoned:
            raise Abandoned

    async def stop(self) -> None:
        """Gives up everything on its way; later writes raise Abandoned."""
        self._abandoned = True
        while self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._write(self._take())
        except (Abandoned, asyncio.CancelledError):
            self._abandoned = True
        except Exception:
            _log.exception("a record could not be sent")
            self._abandoned = True
        finally:
            self._pump = None
            for entry in self._waiting:
                entry.abandon()
            self._waiting.clear()

    def _take(self) -> list[_Entry]:
        batch = [self._waiting.popleft()]
        size = _ENVELOPE + len(batch[0].encoded)
        while self._waiting and len(batch) < _MOST_RECORDS:
            size += len(self._waiting[0].encoded) + 1
            if size > limits.MAX_PROGRESS:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _write(self, batch: list[_Entry]) -> None:
        try:
            refusal = await self._send([entry.encoded for entry in batch])
            if refusal is None or len(batch) == 1:
                for entry in batch:
                    entry.settle(refusal)
                return
            for entry in batch:
                entry.settle(await self._send([entry.encoded]))
        except BaseException:
            for entry in batch:
                entry.abandon()
            raise
