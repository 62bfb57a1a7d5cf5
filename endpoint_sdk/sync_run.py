"""What a `def` workflow holds: the same run, with blocking calls."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from endpoint_sdk.events import Event
from endpoint_sdk.run import RunInfo, _RunBase
from endpoint_sdk.task_call import TaskCall
from endpoint_sdk.tasks import AnyTask, definition_of
from endpoint_sdk.wait_call import NO_DEFAULT, EventCall, SleepCall

if TYPE_CHECKING:
    from concurrent.futures import Future

    from endpoint_sdk.pending_call import Call, Outcome
    from endpoint_sdk.replay import Engine
    from endpoint_sdk.thread_handler import ThreadHandler

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")
I = TypeVar("I")  # noqa: E741 - the input of a workflow or task


class TaskFuture(Generic[T]):
    """A task under way, from `SyncRun.submit`."""

    def __init__(self, run: "SyncRun", future: "Future[Outcome]") -> None:
        self._run = run
        self._future = future

    def result(self) -> T:
        """Blocks until the outcome is recorded and returns or raises it, as often as asked; see `SyncRun.task`."""
        return cast("T", self._run._await(self._future))


class SyncRun(_RunBase):
    """The run of a `def` workflow; its methods are for the thread the handler runs in."""

    def __init__(self, info: RunInfo, engine: "Engine", handler: "ThreadHandler") -> None:
        super().__init__(info, engine)
        self._handler = handler

    def task(self, fn: AnyTask[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The recorded result of *fn* with these arguments, once acknowledged by the dispatcher.

        Raises TaskFailed when its attempts are used up, OutcomeUnknown for an at-most-once task started by an executor
        that died, ConfigurationError when the arguments cannot be recorded or another function goes by its name.
        """
        return self.submit(fn, *args, **kwargs).result()

    def submit(self, fn: AnyTask[P, T], /, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[T]:
        """Starts *fn* and returns at once; several submitted tasks run side by side."""
        return TaskFuture(self, self._submit(TaskCall(definition_of(fn), args, kwargs)))

    def map(self, fn: AnyTask[[I], T], items: Iterable[I], /, *, limit: int = 50) -> list[T]:
        """The results of *fn* for each item, in the order of *items*; at most *limit* run at once."""
        results: list[T] = []
        under_way: list[TaskFuture[T]] = []
        for item in items:
            if len(under_way) >= max(limit, 1):
                results.append(under_way.pop(0).result())
            under_way.append(self.submit(fn, item))
        return results + [future.result() for future in under_way]

    def sleep(self, name: str, duration: timedelta, /) -> None:
        """As `Run.sleep`."""
        self._await(self._submit(SleepCall(name, duration)))

    def sleep_until(self, name: str, when: datetime, /) -> None:
        """As `Run.sleep_until`."""
        self._await(self._submit(SleepCall(name, when)))

    @overload
    def wait_event(self, event: str, /, *, timeout: timedelta | None = None) -> Any: ...
    @overload
    def wait_event(self, event: Event[T], /, *, timeout: timedelta | None = None) -> T: ...
    @overload
    def wait_event(self, event: Event[T], /, *, timeout: timedelta, default: D) -> T | D: ...
    def wait_event(
        self, event: Event[Any] | str, /, *, timeout: timedelta | None = None, default: object = NO_DEFAULT
    ) -> Any:
        """As `Run.wait_event`."""
        return self._await(self._submit(EventCall(event, timeout, default)))

    def _submit(self, call: "Call") -> "Future[Outcome]":
        return self._handler.submit(self._engine.starter(call))

    def _await(self, future: "Future[Outcome]") -> object:
        return self._take(self._handler.wait(future))
