"""What a workflow wants undone if it goes no further: a stack of task calls, run in reverse order, each once."""

import copy
from typing import Any

import msgspec

from endpoint_sdk.errors import CancelRequested
from endpoint_sdk.task_call import TaskCall
from endpoint_sdk.tasks import Definition


class _Undo(msgspec.Struct, frozen=True):
    definition: Definition
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Undos:
    """The registered calls of one execution: a replay registers them again."""

    def __init__(self) -> None:
        self._stack: list[_Undo] = []

    def add(self, definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Registers a call with the arguments as they are now; raises as TaskCall does."""
        definition.arguments(args, kwargs)
        args, kwargs = copy.deepcopy((args, kwargs))
        self._stack.append(_Undo(definition, args, kwargs))

    def compensation(self) -> "Compensation":
        """Goes through what is registered, and what will be meanwhile."""
        return Compensation(self._stack)


class Compensation:
    """One `compensate()`: `next` until it is None, `failed` for what the calls raise, `finish` at the end.

    A cancel that is raised at an undo keeps it from beginning: it is called again, and the cancel passed on at the end.
    """

    def __init__(self, stack: list[_Undo]) -> None:
        self._stack = stack
        self._current: _Undo | None = None
        self._failure: Exception | None = None
        self._cancel: CancelRequested | None = None

    def next(self) -> TaskCall | None:
        """The call of the latest undo that has not been called, None when all were."""
        if not self._stack:
            return None
        self._current = self._stack.pop()
        return TaskCall(self._current.definition, self._current.args, self._current.kwargs)

    def failed(self, error: Exception) -> None:
        """The call raised *error*; the rest are called all the same."""
        if isinstance(error, CancelRequested) and self._current is not None:
            self._cancel = error
            self._stack.append(self._current)
        else:
            self._failure = self._failure or error

    def finish(self) -> None:
        """Raises the first failure of an undo, else the cancel that came meanwhile."""
        error = self._failure or self._cancel
        if error is not None:
            raise error
