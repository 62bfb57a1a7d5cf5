"""The runs of one tester: started, executed until they rest, woken by time and events, and ended."""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import msgspec

from endpoint_sdk.errors import RunCancelled, RunFailed
from endpoint_sdk.port import Cancelled, Completed, Failed, Lost, Parked, Restarted, Retried, Suspended
from endpoint_sdk.testing.exported import Export, Replayed, ended_at, restored
from endpoint_sdk.testing.faults import ReplayDiverged, WorkflowStuck
from endpoint_sdk.testing.in_memory import Execution, Executor
from endpoint_sdk.testing.memory_claim import Laboratory
from endpoint_sdk.testing.memory_run import MemoryRun
from endpoint_sdk.testing.virtual_time import VirtualClock
from endpoint_sdk.wire import child_messages, clock, messages
from endpoint_sdk.workflow import Workflow

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ID_LENGTH: Final = 26
_ON_FAILURE: Final = "on_failure:"
_MILLISECOND: Final = timedelta(milliseconds=1)
# A run that goes on so many times for one call of the test never ends; so many moments are enough for all runs.
_MOST_TIMES: Final = 1_500
_MOST_MOMENTS: Final = 10_000


class Hosted:
    """A run with its code; `raised` is what its handler raised last."""

    def __init__(self, workflow: Workflow[Any, Any], memory: MemoryRun) -> None:
        self.workflow = workflow
        self.memory = memory
        self.raised: BaseException | None = None

    @property
    def error(self) -> Exception | None:
        """What the run's end raises where its result is asked for; None for one that completed or goes on."""
        memory = self.memory
        if memory.status == "cancelled":
            return RunCancelled(memory.run.id, memory.cancel_reason)
        if memory.status != "failed" or memory.error is None:
            return None
        failed = RunFailed(memory.run.id, memory.error.type, memory.error.message, memory.error.details)
        failed.__cause__ = self.raised
        return failed


class Bench:
    """Everything in it happens when it is called for, in one order."""

    def __init__(self, clock: VirtualClock, seed: int, *, each_step: bool) -> None:
        self.laboratory = Laboratory(clock, seed, self._begin_child)
        self._executor = Executor(self.laboratory)
        self._clock = clock
        self._each_step = each_step
        self._ids = random.Random(seed)  # noqa: S311 - reproducible by design
        self._hosted: list[Hosted] = []

    def start(self, workflow: Workflow[Any, Any], value: bytes) -> Hosted:
        """A new run, executed until it rests."""
        hosted = self._submit(workflow, value)
        self.settle()
        return hosted

    def settle(self) -> None:
        """Every run that can go on has; none does where a body of one asks for it.

        Raises WorkflowStuck for one that goes on for ever without time passing.
        """
        if self._executor.running:
            return
        times: Counter[str] = Counter()
        while (hosted := next(self._queued(), None)) is not None:
            times[hosted.memory.run.id] += 1
            if times[hosted.memory.run.id] > _MOST_TIMES:
                raise self._endless(hosted)
            self._execute(hosted)

    def advance(self, until: int) -> None:
        """Time goes on to *until*, and what becomes due on the way happens at its moment."""
        while (due := self.due()) is not None and due <= until:
            self._clock.go_to(due)
            for hosted in self._hosted:
                self._wake(hosted.memory)
            self.settle()
        self._clock.go_to(until)

    def finish(self, hosted: Hosted) -> None:
        """Time goes on until the run has ended; raises WorkflowStuck where that alone does not end it."""
        memory = hosted.memory
        times = moments = 0
        while not memory.ended:
            due, revision = self.due(), memory.revision
            if due is None or (moments := moments + 1) > _MOST_MOMENTS:
                raise WorkflowStuck(_waits(memory))
            self.advance(due)
            times += memory.revision != revision
            if times > _MOST_TIMES:
                raise self._endless(hosted)

    def due(self) -> int | None:
        """When the next wait of any run is over by itself."""
        return min((due for each in self._hosted if (due := each.memory.due) is not None), default=None)

    def send(self, hosted: Hosted, name: str, value: bytes) -> None:
        """An event comes to the run."""
        hosted.memory.send(name, value, self._clock.ms)
        self.settle()

    def cancel(self, hosted: Hosted, reason: str) -> None:
        """The run is asked to cancel itself."""
        self._cancel(hosted.memory, reason)
        self.settle()

    def restore(self, workflow: Workflow[Any, Any], export: Export) -> Replayed:
        """Where the history of *export* leads, with nothing run."""
        self._clock.go_to(ended_at(export))
        execution = self._executor.replay(workflow, restored(export, workflow), export.outcomes)
        match execution.ended:
            case Completed(result):
                return Replayed("completed", result=workflow.decode_result(result))
            case Failed():
                return Replayed("failed", error=execution.raised)
            case Cancelled():
                return Replayed("cancelled")
        return Replayed("goes on")

    # --- one execution after the other -------------------------------------------------------------------------------
    def _begin_child(
        self, workflow: Workflow[Any, Any], start: child_messages.ChildStart, parent: MemoryRun
    ) -> MemoryRun:
        hosted = self._submit(workflow, bytes(start.input))
        run = hosted.memory.run
        tags = parent.run.tags if start.tags is None else {**parent.run.tags, **start.tags}
        hosted.memory.run = msgspec.structs.replace(
            run, parent_id=parent.run.id, idempotency_key=start.idempotency_key, tags=tags
        )
        return hosted.memory

    def _submit(self, workflow: Workflow[Any, Any], value: bytes) -> Hosted:
        run = messages.GrantedRun(
            id="run_" + "".join(self._ids.choices(_ALPHABET, k=_ID_LENGTH)),
            namespace="default",
            workflow=workflow.name,
            version=workflow.version,
            attempt=1,
            input=msgspec.Raw(value),
            created_at=clock.to_wire(self._clock.ms),
        )
        hosted = Hosted(workflow, MemoryRun(run))
        if (timeout := workflow.options.timeout) is not None:
            hosted.memory.expires_at = self._clock.ms + timeout // _MILLISECOND
        self._hosted.append(hosted)
        return hosted

    def _queued(self) -> Iterator[Hosted]:
        return (each for each in self._hosted if each.memory.status == "queued")

    def _execute(self, hosted: Hosted) -> None:
        memory = hosted.memory
        try:
            execution = self._executor.execute(hosted.workflow, memory, one_step=self._each_step)
            hosted.raised = execution.raised
            self._conclude(hosted, execution)
        except BaseException:
            memory.move("stalled")
            raise

    def _conclude(self, hosted: Hosted, execution: Execution) -> None:
        memory = hosted.memory
        match execution.ended:
            case Completed(result):
                self._check_end(hosted, execution)
                memory.result = result
                memory.move("completed")
            case Failed(error):
                self._check_end(hosted, execution)
                memory.error = error
                memory.move("failed")
                self._start_on_failure(hosted, error)
            case Cancelled():
                memory.move("cancelled")
            case Retried(error, delay_ms):
                unsuccessful = self.laboratory.children.forget_failed(memory)
                memory.retry(error, self._clock.ms + delay_ms, unsuccessful)
            case Restarted(value):
                self.laboratory.children.forget(memory)
                memory.restart(value)
            case Suspended() | Lost():
                memory.move("queued")
            case Parked():
                return
        if memory.ended:
            self._ended(memory)

    def _wake(self, memory: MemoryRun) -> None:
        was_over = memory.ended
        memory.wake_due(self._clock.ms)
        if memory.ended and not was_over:
            self._ended(memory)

    def _start_on_failure(self, hosted: Hosted, error: messages.ErrorObject) -> None:
        workflow, run = hosted.workflow.options.on_failure, hosted.memory.run
        if workflow is None or (run.idempotency_key or "").startswith(_ON_FAILURE):
            return
        failed = {"runId": run.id, "workflow": run.workflow, "version": run.version, "input": run.input, "error": error}
        started = self._submit(workflow, msgspec.json.encode(failed)).memory
        started.run = msgspec.structs.replace(started.run, idempotency_key=_ON_FAILURE + run.id, tags=run.tags)

    def _ended(self, memory: MemoryRun) -> None:
        """Whoever waits for the run hears of its end, and a cancel goes on to its children."""
        children = self.laboratory.children
        children.ended(memory, self._clock.ms)
        if memory.status == "cancelled":
            for child in children.of(memory):
                self._cancel(child, "parent_cancelled")

    def _cancel(self, memory: MemoryRun, reason: str) -> None:
        was_over = memory.ended
        memory.cancel(reason, self._clock.ms)
        if memory.ended and not was_over:
            self._ended(memory)

    def _endless(self, hosted: Hosted) -> WorkflowStuck:
        memory = hosted.memory
        memory.move("stalled")
        return WorkflowStuck(
            f"run {memory.run.id} of {memory.run.workflow!r} went on {_MOST_TIMES} times and has not ended; if it is "
            "to sleep or restart for ever, use start(), which goes as far as its first wait, and advance()"
        )

    def _check_end(self, hosted: Hosted, execution: Execution) -> None:
        """The whole history replays to the same end."""
        if not self._each_step:
            return
        again = self._executor.replay(hosted.workflow, hosted.memory).ended
        match execution.ended, again:
            case Completed(first), Completed(second) if bytes(first) == bytes(second):
                return
            case Failed(first_error), Failed(second_error) if first_error.type == second_error.type:
                return
        raise ReplayDiverged(
            f"{hosted.workflow.name!r} ended as {_end(execution.ended)} and replays to {_end(again)}: something in it "
            "changes from one execution to the next; use run.now(), run.uuid(), run.random, and tasks for the rest",
            {"first": _end(execution.ended), "again": _end(again)},
        )


def _end(ended: object) -> str:
    match ended:
        case Completed(result):
            return f"completed with {bytes(result)[:200].decode(errors='replace')}"
        case Failed(error):
            return f"failed with {error.type}"
    return "one that goes on"


def _waits(memory: MemoryRun) -> str:
    names = ", ".join(sorted(f"{wait.kind} {wait.name!r}" for wait in memory.armed.values()))
    return (
        f"run {memory.run.id} of {memory.run.workflow!r} waits for {names or 'nothing'}, and no time ends that; "
        "use start() and send() what it waits for"
    )
