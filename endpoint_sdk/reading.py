"""Reads what is recorded of a call, for the code that made it."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from endpoint_sdk import divergence
from endpoint_sdk.addresses import Key
from endpoint_sdk.child_call import ChildrenCall
from endpoint_sdk.errors import PayloadError
from endpoint_sdk.history import History
from endpoint_sdk.pending_call import Call, Outcome
from endpoint_sdk.port import Port
from endpoint_sdk.wire import messages


class Reader:
    """*scope* is what idempotency keys are made from; *diverged* hears of what the code can no longer read, and
    *abandon* of what was never answered.
    """

    def __init__(
        self,
        port: Port,
        history: History,
        scope: str,
        *,
        diverged: Callable[[dict[str, Any]], None],
        abandon: Callable[[BaseException], None],
    ) -> None:
        self._port = port
        self._history = history
        self._scope = scope
        self._diverged = diverged
        self._abandon = abandon

    def outcome(self, call: Call) -> Outcome | None:
        """What *call* gives back; None where nothing is recorded, nobody waits for it, or it cannot be read."""
        record = self._history.meet(call.key)
        if record is None or call.dropped:
            return None
        try:
            return call.read(record, self._scope)
        except Exception as error:  # PayloadError, or what a record that is not ours makes of the reading
            self._diverged(divergence.unreadable(call.view(), error))
            return None

    def hear(
        self, signals: Sequence[messages.Record], pending: Iterable[Call], recorded: Callable[[int, Call], None]
    ) -> None:
        """*signals* are new: their calls among *pending* are answered, and *recorded* takes them with their numbers."""
        asking: dict[Key, list[Call]] = {}
        for call in pending:
            asking.setdefault(call.key, []).append(call)
        for record in signals:
            key = self._history.add(record)
            for call in asking.get(key, []):
                call.answer()
                recorded(record.seq, call)
            if key not in asking and self._history.called(key):
                self._history.consume(key)

    async def fetch(self, call: Call) -> None:
        """What the record of *call* leaves out; where it never comes, the run is left to recovery."""
        assert isinstance(call, ChildrenCall)
        record = self._history.meet(call.key)
        if record is None or record.error is not None or call.dropped:
            return
        try:
            call.take(await self._port.child_outcomes(call.place))
        except asyncio.CancelledError:
            raise
        except PayloadError as error:
            self._diverged(divergence.unreadable(call.view(), error))
        except BaseException as error:
            self._abandon(error)
