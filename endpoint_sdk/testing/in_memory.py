"""Executes runs in memory, one execution at a time, until nothing is left that could go on by itself."""

import asyncio
import contextvars
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from endpoint_sdk import bodies
from endpoint_sdk.context import ON_DIRECT_CALL
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.replay import Diverged, Ended, Lost
from endpoint_sdk.testing.faults import ReplayDiverged, WorkflowStuck
from endpoint_sdk.testing.memory_claim import ChildOutcomes, Laboratory, MemoryPort, ReplayPort, TestedEngine
from endpoint_sdk.testing.memory_run import MemoryRun
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import Workflow

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

_GRACE: Final = 1.0


class Execution(msgspec.Struct, frozen=True):
    """How a claim ended, and what its handler raised."""

    ended: Ended
    raised: BaseException | None


class Executor:
    """Executes the runs of one tester in the loop of *laboratory*."""

    def __init__(self, laboratory: Laboratory) -> None:
        self._laboratory = laboratory
        self._running = False
        weakref.finalize(self, _close, laboratory.loop)

    @property
    def running(self) -> bool:
        """Whether an execution is under way: the caller is a body, or a stub."""
        return self._running

    def execute(self, workflow: Workflow[Any, Any], run: MemoryRun, *, one_step: bool) -> Execution:
        """One claim of the queued *run*, to its end; raises what fails the test."""
        grant = run.claim(self._laboratory.clock.ms)
        port = MemoryPort(self._laboratory, run, grant, one_step=one_step)
        return self._run(workflow, grant, port)

    def replay(self, workflow: Workflow[Any, Any], run: MemoryRun, outcomes: ChildOutcomes | None = None) -> Execution:
        """What the records of *run* lead to; no body runs and nothing is recorded.

        *outcomes* knows the children of its calls, by default those of this tester.
        """
        grant = run.grant(self._laboratory.clock.ms)
        return self._run(workflow, grant, ReplayPort(self._laboratory, run, grant, outcomes))

    def _run(self, workflow: Workflow[Any, Any], grant: messages.Grant, port: MemoryPort) -> Execution:
        engine = TestedEngine(workflow, grant, port, self._laboratory)
        self._running = True
        try:
            ended = _outside_any_loop(lambda: self._to_its_end(engine, grant))
        finally:
            self._running = False
        self._laboratory.faults.check()
        if isinstance(ended, Lost) and not port.crashed:
            raise WorkflowStuck(f"an execution of run {grant.run.id} broke off; the log of endpoint_sdk says why")
        if isinstance(ended, Diverged):
            raise ReplayDiverged(_divergence(grant, ended.details), ended.details)
        return Execution(ended, engine.raised)

    def _to_its_end(self, engine: TestedEngine, grant: messages.Grant) -> Ended:
        loop = self._laboratory.loop
        loop.working, loop.computing = lambda: engine.body_running, lambda: engine.computing
        context = contextvars.copy_context()
        context.run(ON_DIRECT_CALL.set, self._refuse_direct_call)
        loop.jumps = 0
        execution = loop.create_task(engine.run(), context=context)
        execution.add_done_callback(lambda _: loop.stop())
        try:
            loop.run_forever()
            if not execution.done():
                self._laboratory.faults.note(WorkflowStuck(_nothing_moves(grant)))
                engine.lose()
                loop.run_forever()
        finally:
            _cancel_all(loop)
            # The loop outlives the tester by a moment, and must not keep it.
            loop.working = loop.computing = _nothing
        return execution.result() if execution.done() and not execution.cancelled() else Lost()

    def _refuse_direct_call(self, message: str) -> None:
        raise self._laboratory.faults.note(ConfigurationError(message))


def _outside_any_loop(work: Callable[[], T]) -> T:
    """What *work* returns; in a thread where the caller's loop runs in this one."""
    if not _inside_a_loop():
        return work()
    found: list[T] = []
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(guarded,), name="pointsman-testing")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _nothing() -> bool:
    return False


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """What a body or a workflow has left on the loop ends with the execution, as on every host."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _log.info("tasks left over by an execution were cancelled", extra={"tasks": len(left)})
        loop.run_until_complete(asyncio.wait(left, timeout=_GRACE))


def _close(loop: asyncio.AbstractEventLoop) -> None:
    loop.close()
    bodies.dismiss(loop)


def _nothing_moves(grant: messages.Grant) -> str:
    return (
        f"run {grant.run.id} of {grant.run.workflow!r}, or a body in it, waits for something that is no task or wait "
        "of its run: a lock, a future, an event of asyncio that nothing in this process sets"
    )


def _divergence(grant: messages.Grant, details: dict[str, Any]) -> str:
    history = ", ".join(f"{each.seq} {each.kind} {each.name}" for each in grant.records[-20:])
    return f"{grant.run.workflow!r} does not replay: {details['message']}; recorded so far: {history or 'nothing'}"
