"""What a `def` workflow holds: the same run, with blocking calls."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar, cast

from endpoint_sdk.run import RunInfo, _RunBase
from endpoint_sdk.tasks import AnyTask, definition_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from endpoint_sdk.replay import Engine
    from endpoint_sdk.task_call import Outcome
    from endpoint_sdk.thread_handler import ThreadHandler

P = ParamSpec("P")
T = TypeVar("T")
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
        return TaskFuture(self, self._handler.submit(self._engine.starter(definition_of(fn), args, kwargs)))

    def map(self, fn: AnyTask[[I], T], items: Iterable[I], /, *, limit: int = 50) -> list[T]:
        """The results of *fn* for each item, in the order of *items*; at most *limit* run at once."""
        results: list[T] = []
        under_way: list[TaskFuture[T]] = []
        for item in items:
            if len(under_way) >= max(limit, 1):
                results.append(under_way.pop(0).result())
            under_way.append(self.submit(fn, item))
        return results + [future.result() for future in under_way]

    def _await(self, future: "Future[Outcome]") -> object:
        return self._take(self._handler.wait(future))
