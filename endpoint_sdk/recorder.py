"""Writes a run's records and starts its children: one request at a time, in the order they were handed in.

What is handed in while a request is under way shares the next one of its kind. A refusal stores nothing, so a shared
request that is refused is sent again piece by piece, and only the piece at fault is refused.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from endpoint_sdk import calls
from endpoint_sdk.errors import RecordRefused
from endpoint_sdk.exchange import Abandoned
from endpoint_sdk.wire import child_messages, limits, messages

A = TypeVar("A")

_log: Final = logging.getLogger(__name__)

_MOST_RECORDS: Final = 100
_ENVELOPE: Final = 4096

Send = Callable[[Sequence[bytes]], Awaitable[calls.Refused | None]]
Start = Callable[[Sequence[bytes]], Awaitable[calls.Refused | Sequence[child_messages.StartedChild]]]


class _Entry(Generic[A]):
    """What was handed in together, and goes into one request: records, or the starts of children."""

    __slots__ = ("done", "encoded", "starts")

    def __init__(self, encoded: list[bytes], starts: bool) -> None:
        self.encoded = encoded
        self.starts = starts
        self.done: asyncio.Future[Sequence[A]] = asyncio.get_running_loop().create_future()

    def settle(self, answer: calls.Refused | Sequence[A]) -> None:
        if self.done.done():
            return
        if isinstance(answer, calls.Refused):
            self.done.set_exception(RecordRefused(answer.code, answer.message))
        else:
            self.done.set_result(answer)

    def abandon(self) -> None:
        if not self.done.done():
            self.done.set_exception(Abandoned())


class Recorder:
    """The queue of records and starts on their way; *send* and *start* make one acknowledged request of each kind."""

    def __init__(self, send: Send, start: Start) -> None:
        self._send = send
        self._start = start
        self._waiting: deque[_Entry[Any]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._abandoned = False

    async def write(self, record: messages.RecordIn) -> None:
        """Returns once *record* is acknowledged.

        Cancelling the caller does not take the record back: what it records has happened. Raises RecordRefused on a
        definite refusal, Abandoned when the outcome will never be known.
        """
        await self._hand_in(_Entry([calls.record(record)], starts=False))

    async def start(self, starts: Sequence[child_messages.ChildStart]) -> Sequence[child_messages.StartedChild]:
        """What became of *starts*, at most 500 and together in one request; raises as `write`."""
        return await self._hand_in(_Entry([calls.child_start(start) for start in starts], starts=True))

    async def _hand_in(self, entry: _Entry[A]) -> Sequence[A]:
        if self._abandoned:
            raise Abandoned
        self._waiting.append(entry)
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        return await entry.done

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

    def _take(self) -> list[_Entry[Any]]:
        """The entries of the next request: the oldest, and those of its kind that follow it and fit."""
        batch: list[_Entry[Any]] = []
        count, size = 0, _ENVELOPE
        while self._waiting:
            entry = self._waiting[0]
            count += len(entry.encoded)
            size += sum(len(each) + 1 for each in entry.encoded)
            most = limits.MAX_BATCH if entry.starts else _MOST_RECORDS
            if batch and (entry.starts != batch[0].starts or count > most or size > limits.MAX_PROGRESS):
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _write(self, batch: list[_Entry[Any]]) -> None:
        try:
            answer = await self._ask(batch)
            if isinstance(answer, calls.Refused) and len(batch) > 1:
                for entry in batch:
                    entry.settle(await self._ask([entry]))
                return
            for entry in batch:
                if isinstance(answer, calls.Refused):
                    entry.settle(answer)
                else:
                    entry.settle(answer[: len(entry.encoded)])
                    answer = answer[len(entry.encoded) :]
        except BaseException:
            for entry in batch:
                entry.abandon()
            raise

    async def _ask(self, batch: list[_Entry[Any]]) -> calls.Refused | Sequence[Any]:
        encoded = [each for entry in batch for each in entry.encoded]
        if batch[0].starts:
            return await self._start(encoded)
        return await self._send(encoded) or [None] * len(encoded)
