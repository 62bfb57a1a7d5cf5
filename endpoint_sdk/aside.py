"""Calls set aside until all records are handed out, and what does not fit when they never are."""

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from endpoint_sdk import divergence
from endpoint_sdk.history import History
from endpoint_sdk.pending_call import Call


class Aside:
    """The calls of *pending* that nothing was recorded of when they were made."""

    def __init__(self, pending: Collection[Call], history: History) -> None:
        self._pending = pending
        self._history = history
        self._calls: deque[Call] = deque()

    def __bool__(self) -> bool:
        """Whether somebody still waits for any: costs next to nothing, however many are given up one by one."""
        while self._calls and self._calls[0] not in self._pending:
            self._calls.popleft()
        return bool(self._calls)

    def add(self, call: Call) -> None:
        """*call* has to wait."""
        self._calls.append(call)

    def new(self) -> list[Call]:
        """Those somebody still waits for, in the order they were made."""
        return [call for call in self._calls if call in self._pending]

    def take(self, stays: Callable[[Call], bool]) -> list[Call]:
        """The calls whose turn it is: all but those of which *stays* is true."""
        new = self.new()
        self._calls = deque(call for call in new if stays(call))
        staying = set(self._calls)
        return [call for call in new if call not in staying]

    def difference(self) -> dict[str, Any]:
        """What is recorded and was never asked for, and what is new."""
        recorded = self._history.left_over({call.key for call in self._pending})
        return divergence.details(recorded, [call.view() for call in self.new()])
