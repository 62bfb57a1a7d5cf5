"""What an `async def` workflow holds: its run."""

import logging
from collections.abc import Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID

import msgspec

from endpoint_sdk import addresses, child_call
from endpoint_sdk.child import Child
from endpoint_sdk.child_call import ChildCall, ChildrenCall, Options
from endpoint_sdk.context import ContextLogger
from endpoint_sdk.events import Event
from endpoint_sdk.task_call import TaskCall
from endpoint_sdk.tasks import AnyTask, AsyncTask, Task, definition_of
from endpoint_sdk.undoing import Undos
from endpoint_sdk.wait_call import NO_DEFAULT, EventCall, SleepCall
from endpoint_sdk.wire import clock, messages

if TYPE_CHECKING:
    from endpoint_sdk.pending_call import Outcome
    from endpoint_sdk.replay import Engine
    from endpoint_sdk.workflow import Workflow

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")
I = TypeVar("I")  # noqa: E741 - the input of a workflow or task
O = TypeVar("O")  # noqa: E741 - the output of a workflow

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_NOTE: Final = 1_000


class RunInfo(msgspec.Struct, frozen=True):
    """The run as it was claimed; times are aware, in UTC. `generation` counts its restarts."""

    id: str
    workflow: str
    version: str
    revision: int
    attempt: int
    namespace: str
    idempotency_key: str | None
    parent_id: str | None
    submitted_at: datetime
    scheduled_for: datetime | None
    tags: dict[str, str]
    generation: int = 0


def info_of(grant: messages.Grant) -> RunInfo:
    """What *grant* says of its run."""
    run = grant.run
    return RunInfo(
        run.id,
        run.workflow,
        run.version,
        grant.revision,
        run.attempt,
        run.namespace,
        run.idempotency_key,
        run.parent_id,
        _moment(clock.from_wire(run.created_at)),
        None if run.scheduled_for is None else _moment(clock.from_wire(run.scheduled_for)),
        dict(run.tags),
        run.generation,
    )


def _moment(epoch_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=epoch_ms)


class _RunBase:
    """What both kinds of run offer. None of it writes; all of it answers a replay as it answered the first run."""

    def __init__(self, info: RunInfo, engine: "Engine") -> None:
        self._info = info
        self._engine = engine
        self._undos = Undos()
        self._moment_ms = clock_ms(info.scheduled_for or info.submitted_at)
        self._logger = ContextLogger(
            "run",
            {"run_id": info.id, "workflow": info.workflow, "revision": info.revision},
            muted=lambda: engine.replaying,
        )

    @property
    def id(self) -> str:
        """The run's id."""
        return self._info.id

    @property
    def info(self) -> RunInfo:
        """The run as it was claimed."""
        return self._info

    @property
    def replaying(self) -> bool:
        """Whether recorded outcomes are still being handed out."""
        return self._engine.replaying

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logs under `endpoint_sdk.run` with run_id, workflow and revision; silent while replaying."""
        return self._logger

    @cached_property
    def random(self) -> Random:
        """Seeded by the run's id, and by how often it was restarted: the same sequence on every replay."""
        return Random(self._scope)  # noqa: S311 - reproducible by design

    @cached_property
    def _uuids(self) -> Random:
        return Random(f"{self._scope}/uuid")  # noqa: S311 - reproducible by design

    @property
    def _scope(self) -> str:
        return addresses.scope(self.id, self._info.generation)

    def now(self) -> datetime:
        """The time, in UTC, at which the outcome this code saw last was completed; the submission's before the first.

        It stands still between outcomes, never goes back, and says the same on replay.
        """
        return _moment(self._moment_ms)

    def uuid(self) -> UUID:
        """A random UUID (version 4), the same on every replay."""
        return UUID(int=self._uuids.getrandbits(128), version=4)

    def set_note(self, text: str, /) -> None:
        """Shows *text* beside the run from the next write on; cut at 1 000 characters."""
        readable = text.replace("\x00", "\ufffd").encode(errors="replace").decode()
        self._engine.note = readable[:_LONGEST_NOTE]

    @property
    def suspending(self) -> bool:
        """Whether the handler is being unwound and the run goes on elsewhere: true in a `finally` at a suspension."""
        return self._engine.suspending

    def undo(self, fn: AnyTask[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Registers a call of *fn* for `compensate`, with the arguments as they are now; nothing runs yet.

        Register it before the task it undoes is called: what that one did may be unknown. Raises ConfigurationError
        when the arguments cannot be recorded, TypeError when *fn* does not take them.
        """
        self._undos.add(definition_of(fn), args, kwargs)

    def _take(self, outcome: "Outcome") -> Any:
        self._moment_ms = max(self._moment_ms, outcome.finished_ms)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value


class Run(_RunBase):
    """The run of an `async def` workflow."""

    async def task(self, fn: AnyTask[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The recorded result of *fn* with these arguments, once acknowledged by the dispatcher.

        Raises TaskFailed when its attempts are used up, OutcomeUnknown for an at-most-once task started by an executor
        that died, ConfigurationError when the arguments cannot be recorded or another function goes by its name.
        """
        result: T = self._take(await self._engine.call(TaskCall(definition_of(fn), args, kwargs)))
        return result

    async def compensate(self) -> None:
        """Calls what `undo` has registered, the latest first, each once, as recorded tasks with their retries.

        When one fails the rest are called all the same, and at the end the first failure is raised. A cancel that is
        asked for meanwhile keeps none of them from being called; CancelRequested is raised at the end.
        """
        compensation = self._undos.compensation()
        while (call := compensation.next()) is not None:
            try:
                self._take(await self._engine.call(call))
            except Exception as error:
                compensation.failed(error)
        compensation.finish()

    def restart(self, value: object = None, /) -> NoReturn:
        """Ends this execution; the run begins anew with the input *value* and an empty history, under the same id.

        Branches under way are cancelled, what is still to be undone is forgotten, and events that no wait has taken
        stay. A run that is to be cancelled is cancelled instead. Raises PayloadError for an input that does not fit.
        """
        self._engine.restart(self._engine.encode_input(value))
        # Whoever restarts has loaded the event loop; the import of this package has not.
        from asyncio import CancelledError

        raise CancelledError

    @overload
    def map(self, fn: AnyTask[[I], T], items: Iterable[I], /, *, limit: int = 50) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def map(self, fn: "Workflow[I, O]", items: Iterable[I], /, *, limit: int = 50) -> Coroutine[Any, Any, list[O]]: ...
    def map(
        self, fn: "AnyTask[[Any], Any] | Workflow[Any, Any]", items: Iterable[Any], /, *, limit: int = 50
    ) -> Coroutine[Any, Any, list[Any]]:
        """The results of *fn* for each item, in the order of *items*; at most *limit* run at once.

        Of a task, the first failure cancels the rest and is raised. Of a workflow, each item is the input of a child,
        at most 10 000 of them, and the first that fails or is cancelled raises ChildFailed: the others run on.
        """
        if isinstance(fn, Task | AsyncTask):
            from endpoint_sdk import fan_out

            return fan_out.each(lambda item: self.task(fn, item), items, limit)
        return self._children(fn, items, limit)

    async def _children(self, workflow: "Workflow[Any, O]", items: Iterable[Any], limit: int) -> list[O]:
        start = child_call.many(workflow, items, limit)
        if not start.total:
            return []
        self._take(await self._engine.call(start))
        results: list[O] = self._take(await self._engine.call(ChildrenCall(start)))
        return results

    @overload
    async def start_child(
        self,
        workflow: "Workflow[None, O]",
        /,
        *,
        idempotency_key: str | None = None,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> Child[O]: ...
    @overload
    async def start_child(
        self,
        workflow: "Workflow[I, O]",
        input: I,
        /,
        *,
        idempotency_key: str | None = None,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> Child[O]: ...
    async def start_child(
        self,
        workflow: "Workflow[Any, Any]",
        value: object = None,
        /,
        *,
        idempotency_key: str | None = None,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> Child[Any]:
        """A started run of *workflow*, this one's child: it goes on by itself, whatever becomes of this run.

        Only when this run is cancelled are its children cancelled too. Without *pool* and *tags* it has those of this
        run. Raises PayloadError for an input that does not fit, and PointsmanError with the dispatcher's code for a
        child it does not take, such as one whose *idempotency_key* names a run with another input.
        """
        start = child_call.one(workflow, value, Options(idempotency_key, pool, tags))
        child_id = self._take(await self._engine.call(start))

        async def outcome() -> Any:
            return self._take(await self._engine.call(ChildCall(start)))

        return Child(child_id, outcome)

    @overload
    async def child(self, workflow: "Workflow[None, O]", /) -> O: ...
    @overload
    async def child(self, workflow: "Workflow[I, O]", input: I, /) -> O: ...
    async def child(self, workflow: "Workflow[Any, Any]", value: object = None, /) -> Any:
        """What a child of *workflow* returned; raises ChildFailed, and as `start_child`."""
        return await (await self.start_child(workflow, value)).result()

    async def sleep(self, name: str, duration: timedelta, /) -> None:
        """Returns *duration* after the call; the run gives its place up meanwhile, unless that is soon.

        The moment set by the first call under *name* stands, whatever *duration* says later. An operator may wake the
        run early. Raises ConfigurationError for a name or a duration that is none.

        Wait by the run's own methods only: `asyncio.sleep` and `asyncio.timeout` are not recorded, and end unheard
        when the run parks.
        """
        self._take(await self._engine.call(SleepCall(name, duration)))

    async def sleep_until(self, name: str, when: datetime, /) -> None:
        """Returns at *when*, which has a time zone; otherwise as `sleep`."""
        self._take(await self._engine.call(SleepCall(name, when)))

    @overload
    async def wait_event(self, event: str, /, *, timeout: timedelta | None = None) -> Any: ...
    @overload
    async def wait_event(self, event: Event[T], /, *, timeout: timedelta | None = None) -> T: ...
    @overload
    async def wait_event(self, event: Event[T], /, *, timeout: timedelta, default: D) -> T | D: ...
    async def wait_event(
        self, event: Event[Any] | str, /, *, timeout: timedelta | None = None, default: object = NO_DEFAULT
    ) -> Any:
        """The value of the run's oldest event of that name that no wait has taken, sent before this call or after it.

        Without one after *timeout*, returns *default* or raises WaitTimeout. Raises EventInvalid when the value is not
        what *event* says; the event is used up then too.
        """
        return self._take(await self._engine.call(EventCall(event, timeout, default)))


def clock_ms(moment: datetime) -> int:
    """*moment* in milliseconds since the epoch."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)
