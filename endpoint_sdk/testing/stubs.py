"""What stands in for the bodies of tasks, and what it was called with."""

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, ParamSpec

import msgspec

from endpoint_sdk.errors import ConfigurationError, PayloadError
from endpoint_sdk.pending_call import Call
from endpoint_sdk.task_call import TaskCall
from endpoint_sdk.tasks import Definition, definition_of
from endpoint_sdk.testing.faults import Faults, StubUsedUp

P = ParamSpec("P")


class Calls(Generic[P]):
    """The calls a stub has had: one for each attempt that reached a body, none for a replay."""

    def __init__(self, arguments: Callable[..., bytes]) -> None:
        self._arguments = arguments
        self._seen: list[bytes] = []
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self._seen)

    def called_with(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether one had these arguments; positional and keyword calls agree."""
        return self._arguments(args, kwargs) in self._seen

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Another call, of the kit."""
        with self._lock:
            self._seen.append(self._arguments(args, kwargs))

    def __repr__(self) -> str:
        return f"<Calls {self.count}>"


class _Stub:
    def __init__(self, definition: Definition, outcome: object, faults: Faults) -> None:
        self.calls: Calls[...] = Calls(definition.arguments)
        self._faults = faults
        self._definition = definition
        self._outcomes: Iterator[object] | None = None
        self._outcome = outcome
        if is_sequence(outcome, definition):
            assert isinstance(outcome, list | tuple)
            self._outcomes = iter([_checked(each, definition) for each in outcome])
        elif not callable(outcome):
            _checked(outcome, definition)

    async def body(self, *args: Any, **kwargs: Any) -> Any:
        """What the task's body is replaced by."""
        self.calls.note(args, kwargs)
        outcome = self._outcome if self._outcomes is None else self._next()
        if isinstance(outcome, BaseException):
            raise outcome
        if self._outcomes is None and callable(outcome):
            outcome = outcome(*args, **kwargs)
            return await outcome if inspect.isawaitable(outcome) else outcome
        return outcome

    def _next(self) -> object:
        assert self._outcomes is not None
        try:
            return next(self._outcomes)
        except StopIteration:
            name, count = self._definition.name, self.calls.count
            fault = StubUsedUp(f"task {name!r} was called {count} times, and its stub has one outcome less")
            raise self._faults.note(fault) from None


class Stubs:
    """The stubs of a tester, by the function behind the task."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._by_function: Final[dict[Callable[..., Any], tuple[_Stub, Callable[..., Any]]]] = {}

    def add(self, task: object, outcome: object) -> Calls[...]:
        """*outcome* stands in for the body of *task* from now on; raises ConfigurationError for one it cannot have."""
        definition = definition_of(task)
        stub = _Stub(definition, outcome, self._faults)
        self._by_function[definition.fn] = stub, stub.body
        return stub.calls

    def applied(self, call: Call) -> Call:
        """*call*, with what stands in for its body."""
        if isinstance(call, TaskCall) and (found := self._by_function.get(call.definition.fn)) is not None:
            call.definition = msgspec.structs.replace(call.definition, fn=found[1], is_async=True)
        return call


def is_sequence(outcome: object, definition: Definition) -> bool:
    """Whether *outcome* is one outcome after the other, rather than a value that is a list."""
    if not isinstance(outcome, list | tuple):
        return False
    if any(isinstance(each, BaseException) for each in outcome):
        return True
    annotated = inspect.signature(definition.fn).return_annotation not in (inspect.Signature.empty, Any, "Any")
    return not (annotated and _fits(outcome, definition))


def _fits(value: object, definition: Definition) -> bool:
    try:
        definition.result.decode(definition.result.encode(value, "stub"), "stub")
    except PayloadError:
        return False
    return True


def _checked(outcome: object, definition: Definition) -> object:
    if isinstance(outcome, BaseException):
        return outcome
    try:
        what = f"stubbed result of {definition.place}"
        definition.result.decode(definition.result.encode(outcome, what), what)
    except PayloadError as error:
        raise ConfigurationError(str(error)) from None
    return outcome
