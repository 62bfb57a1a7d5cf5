"""Workflows: the handlers whose runs are stored, and the registry an executor serves them from."""

import inspect
from collections.abc import Callable, Collection, Coroutine, Iterable
from datetime import timedelta
from typing import Any, Final, Generic, Protocol, TypeVar, cast, overload

from msgspec import Raw

from endpoint_sdk import codec
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.options import Concurrency, Cron, Interval, Options, checked
from endpoint_sdk.retry import Retry
from endpoint_sdk.run import Run
from endpoint_sdk.sync_run import SyncRun
from endpoint_sdk.tasks import checked_name
from endpoint_sdk.wire import messages

I = TypeVar("I")  # noqa: E741 - the input of a workflow
O = TypeVar("O")  # noqa: E741 - its output
I_contra = TypeVar("I_contra", contravariant=True)
O_co = TypeVar("O_co", covariant=True)

_NEVER: Final = Retry.never()
_NO_OPTIONS: Final = Options(_NEVER)


class Workflow(Generic[I_contra, O_co]):
    """A handler with its name, version and codecs; made by `@workflow`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        version: str,
        accepts: tuple[str, ...],
        options: Options = _NO_OPTIONS,
    ) -> None:
        self.name: Final[str] = name
        self.version: Final[str] = version
        self.accepts: Final = accepts
        self.options: Final = options
        self.fn: Final = fn
        self.is_async: Final = inspect.iscoroutinefunction(fn)
        where = f"workflow {name!r}"
        parameters = _parameters(fn, where)
        self.takes_input: Final = len(parameters) > 1
        _check_run(fn, parameters[0], self.is_async, where)
        self._input = (
            codec.for_annotation(codec.annotation_of(fn, parameters[-1], where), where) if self.takes_input else None
        )
        self._result = codec.for_annotation(codec.annotation_of(fn, "return", where), where)

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r} {self.version}>"

    def encode_input(self, value: object) -> bytes:
        """JSON of a run's input; raises PayloadError. A workflow without input takes None alone."""
        if self._input is not None:
            return self._input.encode(value, f"input of workflow {self.name!r}")
        if value is not None:
            raise ConfigurationError(f"workflow {self.name!r} takes no input")
        return b"null"

    def decode_input(self, data: bytes | Raw) -> Any:
        """The handler's second argument, None for a workflow without input; raises PayloadError."""
        return None if self._input is None else self._input.decode(data, f"input of workflow {self.name!r}")

    def encode_result(self, value: object) -> bytes:
        """JSON of what the handler returned; raises PayloadError."""
        return self._result.encode(value, f"result of workflow {self.name!r}")

    def decode_result(self, data: bytes | Raw) -> O_co:
        """What the handler returned; raises PayloadError."""
        return cast("O_co", self._result.decode(data, f"result of workflow {self.name!r}"))


class _WorkflowDecorator(Protocol):
    @overload
    def __call__(self, fn: Callable[[Run, I], Coroutine[Any, Any, O]], /) -> Workflow[I, O]: ...
    @overload
    def __call__(self, fn: Callable[[Run], Coroutine[Any, Any, O]], /) -> Workflow[None, O]: ...
    @overload
    def __call__(self, fn: Callable[[SyncRun, I], O], /) -> Workflow[I, O]: ...
    @overload
    def __call__(self, fn: Callable[[SyncRun], O], /) -> Workflow[None, O]: ...


def workflow(
    name: str,
    /,
    *,
    version: str = "1",
    accepts: Collection[str] = (),
    retry: Retry = _NEVER,
    timeout: timedelta | None = None,
    schedule: Cron | Interval | None = None,
    concurrency: Concurrency | None = None,
    on_failure: Workflow[Any, Any] | None = None,
) -> _WorkflowDecorator:
    """Makes a handler the workflow *name*: `async def` over a Run, or `def` over a SyncRun, with at most one input.

    *accepts* lists the older versions whose runs this code continues. When the handler raises, *retry* decides whether
    the run begins another attempt, in which what succeeded is not done again; its filters see what the handler raised,
    and its `max_elapsed` counts from the submission. A run that has not ended *timeout* after it was due is
    cancelled gracefully, for the reason `timed_out`. *schedule* starts runs by the clock, without input or with null.
    *concurrency* limits how many runs are handed out at once. A run that fails starts one of *on_failure*, with the
    input {"runId", "workflow", "version", "input", "error"}; whatever serves this workflow serves that one too.

    Raises ConfigurationError when the annotations of input or result cannot be resolved or recorded, or an option
    makes no sense.
    """
    checked_name(name, "workflow")
    if isinstance(accepts, str):
        raise ConfigurationError(f"workflow {name!r}: accepts= is a list of versions")
    versions = tuple(checked_name(older, "version") for older in accepts)
    checked_name(version, "version")
    options = checked(Options(retry, timeout, schedule, concurrency, on_failure), f"workflow {name!r}")

    def decorate(fn: Callable[..., Any]) -> Workflow[Any, Any]:
        return Workflow(fn, name, version, versions, options)

    return cast("_WorkflowDecorator", decorate)


class Registry:
    """The workflows one executor serves.

    Raises ConfigurationError when two claim the same name and version, or an on_failure= is not among them.
    """

    def __init__(self, workflows: Iterable[Workflow[Any, Any]]) -> None:
        self._exact: dict[tuple[str, str], Workflow[Any, Any]] = {}
        self._accepted: dict[tuple[str, str], Workflow[Any, Any]] = {}
        for each in workflows:
            if self._exact.setdefault((each.name, each.version), each) is not each:
                raise ConfigurationError(f"workflow {each.name!r} version {each.version!r} is served twice")
            for version in each.accepts:
                self._accepted.setdefault((each.name, version), each)
        for each in self._exact.values():
            failed = each.options.on_failure
            if failed is not None and self._exact.get((failed.name, failed.version)) is not failed:
                raise ConfigurationError(
                    f"workflow {each.name!r} names {failed.name!r} {failed.version!r} as on_failure=: list it beside it"
                )

    def find(self, name: str, version: str) -> Workflow[Any, Any] | None:
        """The workflow of this very version, else the first that accepts it, else None."""
        return self._exact.get((name, version)) or self._accepted.get((name, version))

    def served(self) -> list[messages.ServedWorkflow]:
        """What a discovery answer lists, and a worker announces."""
        return [each.options.declared(each.name, each.version, each.accepts) for each in self._exact.values()]


def _parameters(fn: Callable[..., Any], where: str) -> list[str]:
    parameters = list(inspect.signature(fn).parameters.values())
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    if not 1 <= len(parameters) <= 2 or any(parameter.kind not in positional for parameter in parameters):
        raise ConfigurationError(f"{where}: its handler takes the run and at most one input")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(f"{where}: its handler returns one value, a generator cannot be recorded")
    return [parameter.name for parameter in parameters]


def _check_run(fn: Callable[..., Any], parameter: str, is_async: bool, where: str) -> None:
    try:
        annotation = codec.annotation_of(fn, parameter, where)
    except ConfigurationError:
        return  # Run itself may stay under TYPE_CHECKING: nothing is decoded by it
    if annotation is (SyncRun if is_async else Run):
        raise ConfigurationError(f"{where}: an async def handler takes a Run, a def handler a SyncRun")
