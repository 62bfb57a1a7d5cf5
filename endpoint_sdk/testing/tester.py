"""Runs workflows in memory, on a virtual clock, through the engine every executor uses."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar, cast, overload

import msgspec

from endpoint_sdk import envelope
from endpoint_sdk.envelope import PayloadCodec
from endpoint_sdk.errors import ConfigurationError, Conflict
from endpoint_sdk.events import Event
from endpoint_sdk.tasks import AsyncTask, Task, definition_of
from endpoint_sdk.testing.bench import Bench, Hosted
from endpoint_sdk.testing.children import ChildStub
from endpoint_sdk.testing.exported import Replayed, read
from endpoint_sdk.testing.memory_claim import Crash
from endpoint_sdk.testing.memory_run import MemoryRun
from endpoint_sdk.testing.stubs import Calls
from endpoint_sdk.testing.virtual_time import VirtualClock
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import Workflow

P = ParamSpec("P")
T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - the input of a workflow
O = TypeVar("O")  # noqa: E741 - its output

_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class Step(msgspec.Struct, frozen=True):
    """An entry of a run's history: an attempt of a task or a wait that is over, or one that goes on."""

    kind: Literal["task", "sleep", "event", "child", "children", "cancel"]
    name: str
    attempt: int
    status: Literal["completed", "failed", "waiting"]


class TestRun(Generic[O]):
    """A run that has come to rest: it has ended, or everything in it waits."""

    __test__ = False

    def __init__(self, bench: Bench, clock: VirtualClock, hosted: Hosted) -> None:
        self._bench = bench
        self._clock = clock
        self._hosted = hosted

    @property
    def id(self) -> str:
        """The run's id, the same in every test with the same seed."""
        return self._hosted.memory.run.id

    @property
    def status(self) -> str:
        """As the dispatcher would show it: sleeping, awaiting_event, awaiting_retry, awaiting_child, completed, …"""
        return self._hosted.memory.status

    @property
    def history(self) -> Sequence[Step]:
        """What has happened, in its order, and then what the run waits for."""
        return _steps(self._hosted.memory)

    @property
    def waiting_for(self) -> frozenset[str]:
        """The names of what it waits for: sleeps, events, tasks to be tried again, child workflows."""
        return frozenset(wait.name for wait in self._hosted.memory.armed.values())

    @overload
    def send(self, event: str, value: object, /) -> None: ...
    @overload
    def send(self, event: Event[T], value: T, /) -> None: ...
    def send(self, event: Event[Any] | str, value: object, /) -> None:
        """The run gets an event, before it waits for one or after, and goes on if it waited.

        Raises Conflict `run_finished` when it has ended, PayloadError for a value that is not recordable.
        """
        if self._hosted.memory.ended:
            raise Conflict(f"run {self.id} has {self.status} already", code="run_finished")
        sent = event if isinstance(event, Event) else Event[Any](event)
        self._bench.send(self._hosted, sent.name, sent.encode(value))

    def advance(self, by: timedelta, /) -> None:
        """Time goes on, for every run of the tester; what becomes due on the way happens at its moment."""
        if by < timedelta(0):
            raise ValueError(f"time goes forward only: {by!r}")
        self._bench.advance(self._clock.ms + by // _MILLISECOND)

    def cancel(self, reason: str = "", /) -> None:
        """The run is asked to cancel itself, as `Handle.cancel` asks it: it can compensate.

        One that was cancelled stays as it is; raises Conflict `run_finished` for one that completed or failed.
        """
        if self.status in ("completed", "failed"):
            raise Conflict(f"run {self.id} has {self.status} already", code="run_finished")
        self._bench.cancel(self._hosted, reason)

    def result(self) -> O:
        """The result; first time goes on until there is one.

        Raises RunFailed, with what the workflow raised as its cause, RunCancelled, or WorkflowStuck when the run waits
        for an event that only `send` could bring.
        """
        self._bench.finish(self._hosted)
        if (error := self.error) is not None:
            raise error
        assert self._hosted.memory.result is not None
        return cast("O", self._hosted.workflow.decode_result(self._hosted.memory.result))

    @property
    def error(self) -> Exception | None:
        """What `result` raises for a run that has failed or was cancelled, else None."""
        return self._hosted.error

    def __repr__(self) -> str:
        return f"<TestRun {self._hosted.workflow.name!r} {self.status}>"


class WorkflowTester:
    """Runs workflows in memory on a virtual clock; waits are skipped, every step is replayed.

    *replay* "each-step" begins the handler anew after every recorded outcome and hands the whole history out again, so
    that code which does not repeat itself fails here and not in production; beyond a hundred records, whenever they are
    a twentieth more. "never" does so only where the run parks.

    The clock starts at *now* (2026-01-01 in UTC by default), *seed* decides ids, `run.random` and the jitter of
    retries. What fails the test, not the run: ReplayDiverged, WorkflowStuck, StubUsedUp, and ConfigurationError for a
    task that is called directly inside a workflow.
    """

    def __init__(
        self, *, replay: Literal["each-step", "never"] = "each-step", now: datetime | None = None, seed: int = 0
    ) -> None:
        if replay not in ("each-step", "never"):
            raise ConfigurationError(f'replay= is "each-step" or "never": {replay!r}')
        if now is not None and now.tzinfo is None:
            raise ConfigurationError("now= needs a datetime with a time zone")
        self._clock = VirtualClock(now or _START)
        self._bench = Bench(self._clock, seed, each_step=replay == "each-step")
        self._laboratory = self._bench.laboratory

    @property
    def now(self) -> datetime:
        """The time, in UTC."""
        return self._clock.now

    def stub(
        self,
        task: Task[P, T] | AsyncTask[P, T],
        outcome: T | Exception | Callable[P, T] | Sequence[T | Exception],
        /,
    ) -> Calls[P]:
        """*outcome* stands in for the body of *task*, under whatever options it runs.

        A value is returned, an exception raised, a function called with the arguments; a list or a tuple gives one
        outcome to each attempt, and StubUsedUp when there are more. (For a task whose annotation says it returns a
        list, one that fits is the value.) Raises ConfigurationError for a value the task could not return.
        """
        return cast("Calls[P]", self._laboratory.stubs.add(task, outcome))

    def stub_child(self, workflow: Workflow[I, O], outcome: O | Exception | Callable[[I], O], /) -> Calls[[I]]:
        """*outcome* stands in for every child of *workflow*: a result, an exception it fails with, or a function of its
        input that gives either. Without a stub, children are executed as every run is. Raises PayloadError for a result
        the workflow could not have.
        """
        stub = self._laboratory.children.stubs[workflow.name] = ChildStub(workflow, outcome)
        return cast("Calls[[I]]", stub.calls)

    def crash_after(self, task: Task[..., Any] | AsyncTask[..., Any], /, *, recorded: bool = False) -> None:
        """The executor dies once, right after the body of *task*: its outcome is *recorded*, or lost with it."""
        self._laboratory.crashes.append(Crash(definition_of(task).name, recorded))

    @overload
    def start(self, workflow: Workflow[None, O], /) -> TestRun[O]: ...
    @overload
    def start(self, workflow: Workflow[I, O], input: I, /) -> TestRun[O]: ...
    def start(self, workflow: Workflow[Any, O], value: object = None, /) -> TestRun[O]:
        """A run that has gone as far as it can without an event and without time passing."""
        hosted = self._bench.start(workflow, workflow.encode_input(value))
        return TestRun(self._bench, self._clock, hosted)

    @overload
    def run(self, workflow: Workflow[None, O], /) -> O: ...
    @overload
    def run(self, workflow: Workflow[I, O], input: I, /) -> O: ...
    def run(self, workflow: Workflow[Any, O], value: object = None, /) -> O:
        """The result of a run, however long it sleeps, retries or waits on the way; raises as `TestRun.result`."""
        hosted = self._bench.start(workflow, workflow.encode_input(value))
        return TestRun[O](self._bench, self._clock, hosted).result()

    def replay(
        self, workflow: Workflow[Any, Any], exported: str | Path, /, *, codec: PayloadCodec | None = None
    ) -> Replayed:
        """Where the history of a run from production leads with today's code; no body runs and nothing changes.

        *exported* is a file of `pointsman run export`, *codec* that of the run's executors, if they have one. Raises
        ReplayDiverged when the code no longer fits: deployed, it would stall that run. Raises ConfigurationError for a
        file that is none, or of another workflow.
        """
        return self._bench.restore(workflow, read(exported, envelope.of(codec, "replay(codec=)")))


def _steps(memory: MemoryRun) -> list[Step]:
    over = [
        Step(each.kind, each.name, each.attempt, "completed" if each.state == "completed" else "failed")
        for each in memory.records
        if each.phase == "ended"
    ]
    waiting = [_waiting(memory, wait) for wait in memory.armed.values()]
    return over + waiting


def _waiting(memory: MemoryRun, wait: messages.WaitFor) -> Step:
    if wait.kind != "retry":
        return Step(wait.kind, wait.name, 1, "waiting")
    call = ("task", wait.name, wait.args_hash, wait.ordinal)
    attempts = [each.attempt for each in memory.records if (each.kind, each.name, each.args_hash, each.ordinal) == call]
    return Step("task", wait.name, max(attempts, default=0) + 1, "waiting")
