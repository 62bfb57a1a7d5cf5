"""What a `def` workflow holds: the same run, with blocking calls."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, cast, overload

from endpoint_sdk import child_call
from endpoint_sdk.child import SyncChild
from endpoint_sdk.child_call import ChildCall, ChildrenCall, Options
from endpoint_sdk.events import Event
from endpoint_sdk.run import RunInfo, _RunBase
from endpoint_sdk.task_call import TaskCall
from endpoint_sdk.tasks import AnyTask, AsyncTask, Task, definition_of
from endpoint_sdk.wait_call import NO_DEFAULT, EventCall, SleepCall

if TYPE_CHECKING:
    from concurrent.futures import Future

    from endpoint_sdk.pending_call import Call, Outcome
    from endpoint_sdk.replay import Engine
    from endpoint_sdk.thread_handler import ThreadHandler
    from endpoint_sdk.workflow import Workflow

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")
I = TypeVar("I")  # noqa: E741 - the input of a workflow or task
O = TypeVar("O")  # noqa: E741 - the output of a workflow


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

    def compensate(self) -> None:
        """As `Run.compensate`."""
        compensation = self._undos.compensation()
        while (call := compensation.next()) is not None:
            try:
                self._await(self._submit(call))
            except Exception as error:
                compensation.failed(error)
        compensation.finish()

    def restart(self, value: object = None, /) -> NoReturn:
        """As `Run.restart`."""
        data = self._engine.encode_input(value)
        self._handler.leave(lambda: self._engine.restart(data))

    @overload
    def map(self, fn: AnyTask[[I], T], items: Iterable[I], /, *, limit: int = 50) -> list[T]: ...
    @overload
    def map(self, fn: "Workflow[I, O]", items: Iterable[I], /, *, limit: int = 50) -> list[O]: ...
    def map(
        self, fn: "AnyTask[[Any], Any] | Workflow[Any, Any]", items: Iterable[Any], /, *, limit: int = 50
    ) -> list[Any]:
        """As `Run.map`, but that the failure of a task cancels nothing."""
        if isinstance(fn, Task | AsyncTask):
            return self._tasks(fn, items, limit)
        start = child_call.many(fn, items, limit)
        if not start.total:
            return []
        self._await(self._submit(start))
        return cast("list[Any]", self._await(self._submit(ChildrenCall(start))))

    def _tasks(self, fn: AnyTask[[I], T], items: Iterable[I], limit: int) -> list[T]:
        results: list[T] = []
        under_way: list[TaskFuture[T]] = []
        for item in items:
            if len(under_way) >= max(limit, 1):
                results.append(under_way.pop(0).result())
            under_way.append(self.submit(fn, item))
        return results + [future.result() for future in under_way]

    @overload
    def start_child(
        self,
        workflow: "Workflow[None, O]",
        /,
        *,
        idempotency_key: str | None = None,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> SyncChild[O]: ...
    @overload
    def start_child(
        self,
        workflow: "Workflow[I, O]",
        input: I,
        /,
        *,
        idempotency_key: str | None = None,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> SyncChild[O]: ...
    def start_child(
        self,
        workflow: "Workflow[Any, Any]",
        value: object = None,
        /,
        *,
        idempotency_key: str | None = None,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> SyncChild[Any]:
        """As `Run.start_child`."""
        start = child_call.one(workflow, value, Options(idempotency_key, pool, tags))
        child_id = cast("str", self._await(self._submit(start)))
        return SyncChild(child_id, lambda: self._await(self._submit(ChildCall(start))))

    @overload
    def child(self, workflow: "Workflow[None, O]", /) -> O: ...
    @overload
    def child(self, workflow: "Workflow[I, O]", input: I, /) -> O: ...
    def child(self, workflow: "Workflow[Any, Any]", value: object = None, /) -> Any:
        """As `Run.child`."""
        return self.start_child(workflow, value).result()

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
