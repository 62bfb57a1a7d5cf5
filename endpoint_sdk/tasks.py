"""Tasks: the functions whose outcomes a run records."""

import functools
import inspect
import warnings
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

import msgspec

from endpoint_sdk import addresses, codec
from endpoint_sdk.context import CURRENT_TASK, IN_WORKFLOW, ON_DIRECT_CALL
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.retry import Retry
from endpoint_sdk.wire import messages

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_RETRY: Final = Retry.exponential()
_warned: Final[set[Callable[..., Any]]] = set()


class Definition(msgspec.Struct, frozen=True):
    """What the engine needs to know of a task; checked, with its codec built. `place` is the task for messages."""

    name: str
    place: str
    fn: Callable[..., Any]
    signature: inspect.Signature
    result: codec.Codec
    retry: Retry
    timeout: timedelta | None
    at_most_once: bool
    is_async: bool

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The canonical JSON of a call's arguments; raises TypeError or ConfigurationError."""
        return addresses.canonical(addresses.bound(self.signature, args, kwargs), self.place)


class _Defined(Generic[P, T]):
    """What both kinds of task share."""

    def __init__(self, definition: Definition) -> None:
        self.name: Final[str] = definition.name
        self.definition: Final = definition
        functools.update_wrapper(cast("Callable[..., Any]", self), definition.fn)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _with(self, name: str | None, retry: Retry | None, timeout: timedelta | None) -> Definition:
        definition = self.definition
        if retry is not None and definition.at_most_once:
            raise ConfigurationError(f"{definition.place}: at_most_once excludes retry=")
        chosen = definition.name if name is None else checked_name(name, "task")
        return msgspec.structs.replace(
            definition,
            name=chosen,
            place=f"task {chosen!r} ({code_of(definition.fn)})",
            retry=retry or definition.retry,
            timeout=definition.timeout if timeout is None else _timeout(timeout, definition.name),
        )


class Task(_Defined[P, T]):
    """A plain `def` task; calling it calls the function, unrecorded."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        _warn_unrecorded(self.definition)
        return cast("T", self.definition.fn(*args, **kwargs))

    def with_options(
        self, *, name: str | None = None, retry: Retry | None = None, timeout: timedelta | None = None
    ) -> "Task[P, T]":
        """The same function under other options; those left out stay."""
        return Task(self._with(name, retry, timeout))


class AsyncTask(_Defined[P, T]):
    """An `async def` task; calling it calls the coroutine function, unrecorded."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        _warn_unrecorded(self.definition)
        return cast("Coroutine[Any, Any, T]", self.definition.fn(*args, **kwargs))

    def with_options(
        self, *, name: str | None = None, retry: Retry | None = None, timeout: timedelta | None = None
    ) -> "AsyncTask[P, T]":
        """The same function under other options; those left out stay."""
        return AsyncTask(self._with(name, retry, timeout))


AnyTask: TypeAlias = Task[P, T] | AsyncTask[P, T]


def definition_of(fn: object) -> Definition:
    """The definition of the task *fn*; raises ConfigurationError for a function nobody decorated."""
    if not isinstance(fn, _Defined):
        raise ConfigurationError(f"{getattr(fn, '__qualname__', fn)!r} is not a task: decorate it with @task")
    return fn.definition


class _TaskDecorator(Protocol):
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncTask[P, T]: ...  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, fn: Callable[P, T], /) -> Task[P, T]: ...


@overload
def task(fn: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncTask[P, T]: ...  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
@overload
def task(fn: Callable[P, T], /) -> Task[P, T]: ...
@overload
def task(*, name: str | None = None, retry: Retry = ..., timeout: timedelta | None = None) -> _TaskDecorator: ...
@overload
def task(
    *, name: str | None = None, at_most_once: Literal[True], timeout: timedelta | None = None
) -> _TaskDecorator: ...
def task(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | None = None,
    at_most_once: bool = False,
    timeout: timedelta | None = None,
) -> Any:
    """Makes *fn* a task: `run.task(fn, …)` runs it once its arguments are recordable and records its outcome.

    *name* is its address in a run's history, `__qualname__` by default. A failed attempt is repeated by *retry*
    (exponential with jitter, 3 attempts, 1 s). With *at_most_once* the start is recorded before the body, and a body
    whose outcome was never recorded raises OutcomeUnknown instead of running again. *timeout* limits one attempt: an
    `async def` body is cancelled and the attempt fails with TimeoutError; a `def` body cannot be stopped, it sees
    `task_context().cancelled`, and what it returns in the end counts.

    Raises ConfigurationError when the return annotation cannot be resolved or recorded, or options contradict.
    """

    def decorate(fn: Callable[..., Any]) -> Any:
        definition = _define(fn, name, retry, at_most_once, timeout)
        return AsyncTask(definition) if definition.is_async else Task(definition)

    return decorate if fn is None else decorate(fn)


def _define(
    fn: Callable[..., Any], name: str | None, retry: Retry | None, at_most_once: bool, timeout: timedelta | None
) -> Definition:
    known = _name(name, fn)
    if at_most_once and retry is not None:
        raise ConfigurationError(f"task {known!r}: at_most_once excludes retry=")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(f"task {known!r}: a task returns one value, a generator cannot be recorded")
    place = f"task {known!r} ({code_of(fn)})"
    return Definition(
        known,
        place,
        fn,
        inspect.signature(fn),
        codec.for_annotation(codec.annotation_of(fn, "return", place), place),
        Retry.never() if at_most_once else retry or DEFAULT_RETRY,
        None if timeout is None else _timeout(timeout, known),
        at_most_once,
        inspect.iscoroutinefunction(fn),
    )


def code_of(fn: Callable[..., Any]) -> str:
    """Where *fn* is written, as far as it says."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(fn)


def _name(name: str | None, fn: Callable[..., Any]) -> str:
    chosen = name if name is not None else getattr(fn, "__qualname__", None)
    if chosen is None:
        raise ConfigurationError(f"a task made of {fn!r} needs name=")
    return checked_name(chosen, "task")


def checked_name(name: str, what: str) -> str:
    """*name* if the dispatcher takes it: 1 to 200 printable characters; raises ConfigurationError naming *what*."""
    try:
        return msgspec.convert(name, messages.Name)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"{what} name {name!r}: 1 to 200 characters, none of them control characters"
        ) from error


def _timeout(timeout: timedelta, name: str) -> timedelta:
    if not isinstance(timeout, timedelta) or timeout <= timedelta(0):
        raise ConfigurationError(f"task {name!r}: timeout= is a positive timedelta: {timeout!r}")
    return timeout


def _warn_unrecorded(definition: Definition) -> None:
    if not IN_WORKFLOW.get() or CURRENT_TASK.get() is not None:
        return
    message = (
        f"task {definition.name!r} was called directly inside a workflow and runs unrecorded; "
        f"write run.task({definition.name}, …)"
    )
    if (refuse := ON_DIRECT_CALL.get()) is not None:
        refuse(message)
    if definition.fn not in _warned:
        _warned.add(definition.fn)
        warnings.warn(message, RuntimeWarning, stacklevel=3)
