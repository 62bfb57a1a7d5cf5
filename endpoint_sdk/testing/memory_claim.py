"""One claim of a run in memory: the engine of every executor, over a port that keeps what a dispatcher would."""

import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from endpoint_sdk.bodies import Returned
from endpoint_sdk.child_call import StartCall
from endpoint_sdk.pending_call import Call, Outcome
from endpoint_sdk.replay import Engine
from endpoint_sdk.testing.children import Begin, Children
from endpoint_sdk.testing.faults import Faults
from endpoint_sdk.testing.memory_run import MemoryRun
from endpoint_sdk.testing.stubs import Stubs
from endpoint_sdk.testing.virtual_time import RunClock, VirtualClock, VirtualLoop
from endpoint_sdk.timing import Timing
from endpoint_sdk.wire import child_messages, messages

ChildOutcomes = Callable[[str], Sequence[child_messages.ChildOutcome]]

_IDLE_SECONDS: Final = 0.01
_EVERY_STEP: Final = 100


def _stride(records: int) -> int:
    """After how many outcomes a history of so many *records* is replayed: each time it is longer by a twentieth.

    A hundred records are replayed after every step; beyond, that would take time with the square of their number.
    """
    return 1 if records < _EVERY_STEP else records // 20


class Stopped(BaseException):
    """This executor died, as far as the run can tell."""


class Crash(msgspec.Struct):
    """To come after the next outcome of the task *name*, which is *recorded* or lost with its executor."""

    name: str
    recorded: bool


class Laboratory:
    """What all claims of a tester share."""

    def __init__(self, clock: VirtualClock, seed: int, begin: Begin) -> None:
        self.clock = clock
        self.loop = VirtualLoop(clock)
        self.faults = Faults()
        self.stubs = Stubs(self.faults)
        self.crashes: list[Crash] = []
        self.children = Children(begin)
        self.timing = Timing(
            lambda _: RunClock(clock, self.loop.time),
            random.Random(seed).random,  # noqa: S311 - reproducible by design
            timedelta(microseconds=-1),  # no wait is sat out: how time passes is the test's
        )


class MemoryPort:
    """The claim *grant* of *run*; with *one_step* no further body starts once a step was recorded under it."""

    def __init__(self, laboratory: Laboratory, run: MemoryRun, grant: messages.Grant, *, one_step: bool) -> None:
        self._laboratory = laboratory
        self._run = run
        self._claim_id = grant.claim_id
        self._signal_seq = grant.signal_seq
        self._steps_left = _stride(len(grant.records)) if one_step else None
        self.replaying: Callable[[], bool] = lambda: False
        self.stop: Callable[[str], None] = lambda _: None
        self.crashed = False

    async def write(self, record: messages.RecordIn) -> None:
        """Keeps *record*, unless the executor is to die first."""
        if self._laboratory.faults.any:
            raise Stopped
        crash = self._crash(record)
        if crash is None or crash.recorded:
            self._run.record(record, self._claim_id)
            self._step(record.phase == "ended")
        if crash is not None:
            self.crashed = True
            raise Stopped
        self._tell_stop()

    async def fence(self) -> None:
        """Every body may start."""

    async def park(self, waits: Sequence[messages.WaitFor], *, told: bool = False) -> Sequence[messages.Record] | None:
        """As a dispatcher decides."""
        refused = self._run.park(waits, self._signal_seq, self._laboratory.clock.ms, told=told)
        self._signal_seq = self._run.signal_seq
        if refused is not None:
            self._tell_stop()
        return refused

    async def start_children(
        self, starts: Sequence[child_messages.ChildStart]
    ) -> Sequence[child_messages.StartedChild]:
        """Every child is a run of this tester."""
        if self._laboratory.faults.any:
            raise Stopped
        self._step(True)
        now = self._laboratory.clock.ms
        started = self._laboratory.children.start(self._run, starts, self._claim_id, now)
        self._tell_stop()
        return started

    async def child_outcomes(self, parent_call: str) -> Sequence[child_messages.ChildOutcome]:
        """As they are kept."""
        return self._laboratory.children.outcomes(self._run, parent_call)

    def remaining(self) -> timedelta | None:
        """A test has no limit."""
        return None

    def leaving(self) -> bool:
        """Whether the next step is another execution's."""
        return self._steps_left == 0

    def _step(self, done: bool) -> None:
        if done and self._steps_left:
            self._steps_left -= 1

    def _tell_stop(self) -> None:
        """Every answer says whether the run is to cancel itself."""
        if self._run.stop == "cancel":
            self.stop(self._run.cancel_reason)

    def _crash(self, record: messages.RecordIn) -> Crash | None:
        if record.kind != "task" or record.phase != "ended":
            return None
        crashes = self._laboratory.crashes
        found = next((crash for crash in crashes if crash.name == record.name), None)
        if found is not None:
            crashes.remove(found)
        return found


class ReplayPort(MemoryPort):
    """Records nothing and starts nothing: what comes after the records is not done."""

    def __init__(
        self, laboratory: Laboratory, run: MemoryRun, grant: messages.Grant, outcomes: ChildOutcomes | None
    ) -> None:
        super().__init__(laboratory, run, grant, one_step=True)
        self._outcomes = outcomes

    async def write(self, record: messages.RecordIn) -> None:
        """Forgets *record*."""

    async def start_children(
        self, _starts: Sequence[child_messages.ChildStart]
    ) -> Sequence[child_messages.StartedChild]:
        """None is ever started: no body runs, and no child."""
        raise Stopped

    async def child_outcomes(self, parent_call: str) -> Sequence[child_messages.ChildOutcome]:
        """As they were exported, or are kept."""
        return await super().child_outcomes(parent_call) if self._outcomes is None else self._outcomes(parent_call)

    async def park(self, _waits: Sequence[messages.WaitFor], *, told: bool = False) -> Sequence[messages.Record] | None:
        """Leaves it at that."""
        del told
        return None

    def leaving(self) -> bool:
        """No body starts; before all records are handed out that is not asked, or a divergence would go unseen."""
        return not self.replaying()


class TestedEngine(Engine):
    """The engine, with the stubs of *laboratory* in the place of bodies; `raised` is what the handler raised."""

    __test__ = False

    def __init__(
        self, workflow: Any, grant: messages.Grant, port: MemoryPort, laboratory: Laboratory, **options: Any
    ) -> None:
        super().__init__(workflow, grant, port, idle_seconds=_IDLE_SECONDS, timing=laboratory.timing, **options)
        port.replaying = lambda: self.replaying
        port.stop = self.cancel
        self._laboratory = laboratory
        self.raised: BaseException | None = None

    async def call(self, call: Call) -> Outcome:
        """As Engine.call."""
        return await super().call(self._seen(call))

    def starter(self, call: Call) -> Callable[[Any], None]:
        """As Engine.starter."""
        return super().starter(self._seen(call))

    def _seen(self, call: Call) -> Call:
        if isinstance(call, StartCall):
            self._laboratory.children.know(call.workflow)
        return self._laboratory.stubs.applied(call)

    def _done(self, returned: Returned) -> None:
        self.raised = returned.error
        super()._done(returned)
