"""One delivery, or one run that came claimed, to its settled end.

    claim -> all record pages -> engine, refreshed while it runs -> ending

An Execution is the engine's port to the dispatcher. It keeps the rules a claim holder lives by
(infra/docs/protocol.md): every write is fenced and repeated under its own request id until its outcome is known (I2,
I6), a loss stops the run quietly (I3), no task body starts on a claim that may be stale (I15), and nothing is ended
while a body runs.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from endpoint_sdk import calls, pages, refresher, replay
from endpoint_sdk.decided import ending_of
from endpoint_sdk.envelope import PLAIN, Envelope
from endpoint_sdk.errors import PayloadError, RecordRefused
from endpoint_sdk.exchange import Abandoned, Exchange
from endpoint_sdk.host_time import HostTime, Remaining
from endpoint_sdk.recorder import Recorder
from endpoint_sdk.subscribers.base import Claim
from endpoint_sdk.wire import child_messages, identity, messages
from endpoint_sdk.workflow import Registry

_log: Final = logging.getLogger(__name__)

_CLAIM_PATIENCE: Final = 10.0
_FENCE: Final = 0.8
_ANSWERING: Final = 0.25


class Conclusion(Struct, frozen=True):
    """How handling a delivery ended; `what` is for the log and the answer's body."""

    result: Literal["settled", "retry"]
    what: str


class Context(Struct, frozen=True):
    """What all executions of a process share."""

    exchange: Exchange
    refresher: refresher.Refresher
    registry: Registry
    executor: messages.ExecutorInfo
    refresh_interval_ms: int
    envelope: Envelope = PLAIN


class Execution:
    """Handles *work* once: a delivery, which it claims, or a claim.

    *remaining* is the host's time left, None where it has no limit.
    """

    def __init__(self, context: Context, work: messages.Delivery | Claim, remaining: Remaining) -> None:
        self._context = context
        self._exchange = context.exchange
        self._now = context.exchange.times.now
        self.work = work
        self.remaining = remaining
        self._host = HostTime(remaining)
        self._reason: Literal["handoff", "drain", "pause"] = "handoff"
        self._lost: str | None = None
        self._claimed = False
        self._ending = False
        self._noted: str | None = None
        self._signal_seq = 0
        self._signals_after = 0
        self._engine: replay.Engine | None = None
        self._recorder = Recorder(self._send_records, self._send_starts)
        self._refreshing = asyncio.Lock()

    # --- from claim to end -------------------------------------------------------------------------------------------
    async def run(self) -> Conclusion:
        """Claims, runs and ends; when it returns no task body runs and the claim is no longer refreshed."""
        claim = await self._claim()
        if isinstance(claim, Conclusion):
            return claim
        self._grant = claim.grant
        self._hold = self._held(claim.sent_at)
        self._claimed = True
        try:
            self._context.refresher.hold(self._hold)
            return await self._execute()
        except Abandoned:
            return self._abandoned()
        finally:
            await self._recorder.stop()
            self._context.refresher.drop(self._hold)

    def drain(self) -> None:
        """Stops at the next task boundary and releases the run with reason `drain`."""
        if self._reason == "handoff":
            self._reason = "drain"
        self._leave()

    def expire(self) -> None:
        """The time of the drain is up: `async def` bodies are cancelled and the run is released.

        While the body of a `def` task runs nothing is sent: it cannot be ended, so neither can the run.
        """
        self.drain()
        if self._engine is not None:
            self._engine.leave_now()

    @property
    def refreshed_at(self) -> float | None:
        """When the last accepted call for the claim was sent, on the SDK's clock; None before there is a claim."""
        return self._hold.sent_at if self._claimed else None

    async def _claim(self) -> Claim | Conclusion:
        if isinstance(self.work, Claim):
            return self.work
        context = self._context
        call = calls.claim(self.work, identity.new("clm"), context.executor, context.refresh_interval_ms)
        # Nothing is held yet, so nothing is lost by giving up before the margin begins.
        try:
            outcome, sent_at = await self._exchange.settle(
                call, _CLAIM_PATIENCE, self._host.time_left, self._host.within(1)
            )
        except Abandoned:
            return Conclusion("retry", "the claim got no answer")
        if not isinstance(outcome, calls.Accepted):
            return self._concluded("settled", f"claim refused: {outcome.code}")
        return Claim(outcome.value, sent_at)

    async def _execute(self) -> Conclusion:
        self._signal_seq = self._grant.signal_seq
        if self._reason == "drain":
            return await self._end(messages.Release("drain"))
        grant = self._grant = await pages.whole(self._settle, self._grant)
        self._signals_after = max((record.seq for record in grant.records), default=0)
        workflow = self._context.registry.find(grant.run.workflow, grant.run.version)
        if workflow is None:
            return await self._end(messages.Release("unknown_version"))
        self._stop_asked(grant.stop)
        try:
            grant = self._context.envelope.open_grant(grant)
        except PayloadError as error:
            return await self._end(messages.Stall("divergence", {"recorded": [], "new": [], "message": str(error)}))
        self._engine = replay.Engine(workflow, grant, self, idle_seconds=self._host.share(replay.IDLE_SECONDS))
        if self._leaving_asked():
            self._engine.leave()
        timer = self._host.call_at_margin(self._leave)
        try:
            ended = await self._engine.run()
        finally:
            if timer is not None:
                timer.cancel()
        return await self._conclude(ended)

    async def _conclude(self, ended: replay.Ended) -> Conclusion:
        ending = ending_of(ended, self._reason)
        if ending is not None:
            return await self._end(ending)
        return self._concluded("settled", "park") if isinstance(ended, replay.Parked) else self._abandoned()

    async def _end(self, ending: messages.Ending) -> Conclusion:
        await self._recorder.idle()
        if self._lost is not None:
            raise Abandoned
        # From here on only the answer to this write decides; a loss reported meanwhile may be its own effect.
        self._ending = True
        outcome = await self._write_ending(ending)
        if isinstance(outcome, calls.Refused):
            error = messages.ErrorObject(outcome.code, outcome.message, retryable=False)
            outcome = await self._write_ending(messages.Fail(error))
        if isinstance(outcome, calls.Refused):
            return self._concluded("retry", f"ending refused: {outcome.code}")
        if isinstance(outcome, calls.Loss):
            return self._concluded("settled", f"claim lost: {outcome.code}")
        return self._concluded("settled", type(ending).__name__.lower())

    async def _write_ending(
        self, ending: messages.Ending
    ) -> calls.Accepted[messages.Progressed] | calls.Refused | calls.Loss:
        try:
            sealed = self._context.envelope.seal_ending(ending)
        except Exception as error:  # the user's codec raises what it likes; recovery has it tried again
            _log.exception("the codec cannot encode how a run ends", extra={"run_id": self._grant.run.id})
            raise Abandoned from error
        call = self._progress(ending=sealed)
        outcome, _ = await self._exchange.settle(
            call, self._idle_timeout, self._host.time_left, self._host.within(_ANSWERING)
        )
        return outcome

    def _abandoned(self) -> Conclusion:
        if self._lost is not None:
            return self._concluded("settled", f"claim lost: {self._lost}")
        return self._concluded("retry", "a write got no answer")

    def _concluded(self, result: Literal["settled", "retry"], what: str) -> Conclusion:
        work = self.work
        if isinstance(work, Claim):
            fence = {"run_id": work.grant.run.id, "revision": work.grant.revision}
        else:
            fence = {"run_id": work.run_id, "revision": work.revision}
        _log.info("delivery handled: %s", what, extra=fence)
        return Conclusion(result, what)

    # --- the engine's port -------------------------------------------------------------------------------------------
    async def write(self, record: messages.RecordIn) -> None:
        """Returns once *record* is acknowledged; see Recorder.write."""
        await self._recorder.write(self._context.envelope.seal_record(record))

    async def start_children(
        self, starts: Sequence[child_messages.ChildStart]
    ) -> Sequence[child_messages.StartedChild]:
        """What became of *starts*; see Recorder.start."""
        return await self._recorder.start([self._context.envelope.seal_child(start) for start in starts])

    async def child_outcomes(self, parent_call: str) -> Sequence[child_messages.ChildOutcome]:
        """What became of the children of *parent_call*, read page by page."""
        found = await pages.child_outcomes(self._settle, self._grant, parent_call)
        return [self._context.envelope.open_child(outcome) for outcome in found]

    async def park(self, waits: Sequence[messages.WaitFor], *, told: bool = False) -> Sequence[messages.Record] | None:
        """None once the run is parked; otherwise what the dispatcher recorded meanwhile. See Port.park."""
        await self._recorder.idle()
        if self._lost is not None:
            raise Abandoned
        # As for every ending, only the answer decides; but a refused park ends nothing.
        self._ending = True
        outcome = await self._write_ending(messages.Park(list(waits), told=told))
        self._ending = False
        if isinstance(outcome, calls.Refused):
            raise RecordRefused(outcome.code, outcome.message)
        if isinstance(outcome, calls.Loss):
            self._lose(outcome.code)
            raise Abandoned
        answer = outcome.value
        if answer.parked or answer.revision > self._grant.revision:
            self._ending = True
            return None
        return self._heard(answer)

    async def fence(self) -> None:
        """Returns when a task body may start now: the last accepted call was sent less than 0.8 idle timeouts ago.

        Refreshes first otherwise. Raises Abandoned when the claim is lost or no refresh is answered in time.
        """
        while not self._fresh():
            async with self._refreshing:
                if not self._fresh():
                    await self._refresh()

    def leaving(self) -> bool:
        """Whether no further task may start here: the host's time is nearly up, or it drains, or a pause is asked."""
        return self._leaving_asked() or self._host.nearly_up()

    # --- writes ------------------------------------------------------------------------------------------------------
    async def _send_records(self, encoded: Sequence[bytes]) -> calls.Refused | None:
        note = self._note()
        call = self._progress(encoded)
        outcome, sent_at = await self._settle(call)
        if isinstance(outcome, calls.Refused):
            return outcome
        self._hold.accepted(sent_at)
        self._noted = note
        self._hear(outcome.value)
        return None

    async def _send_starts(self, encoded: Sequence[bytes]) -> calls.Refused | Sequence[child_messages.StartedChild]:
        call = calls.start_children(self._grant, encoded, self._signals_after)
        outcome, sent_at = await self._settle(call)
        if isinstance(outcome, calls.Refused):
            return outcome
        self._hold.accepted(sent_at)
        self._hear(outcome.value)
        children: list[child_messages.StartedChild] = outcome.value.children
        return children

    def _hear(self, answer: messages.Progressed | child_messages.ChildrenStarted) -> None:
        """The outcomes an answer brings are numbered before what it acknowledges, and handed out before."""
        if (signals := self._heard(answer)) and self._engine is not None:
            self._engine.hear(signals)

    def _heard(self, answer: messages.Progressed | child_messages.ChildrenStarted) -> list[messages.Record]:
        """Notes what *answer* says beside its verdict; the outcomes it brings, in their order."""
        self._signal_seq = answer.signal_seq
        self._stop_asked(answer.stop, answer.stop_reason if isinstance(answer, messages.Progressed) else None)
        signals = self._context.envelope.open_records(sorted(answer.signals, key=lambda record: record.seq))
        self._signals_after = max(self._signals_after, *(record.seq for record in signals), 0)
        return signals

    def _progress(
        self, encoded: Sequence[bytes] = (), ending: messages.Ending | None = None
    ) -> calls.Call[messages.Progressed]:
        note = self._note()
        return calls.progress(
            self._grant,
            identity.new("req"),
            signal_seq=self._signal_seq,
            signals_after=self._signals_after,
            encoded=encoded,
            ending=ending,
            note=note if note != self._noted else None,
        )

    def _note(self) -> str | None:
        return None if self._engine is None else self._engine.note

    async def _settle(self, call: calls.Call[Any]) -> tuple[calls.Accepted[Any] | calls.Refused, float]:
        """The outcome of *call* unless it is a loss; that, and an outcome never known, raise Abandoned."""
        outcome, sent_at = await self._exchange.settle(
            call, self._idle_timeout, self._going, self._host.within(_ANSWERING)
        )
        if isinstance(outcome, calls.Loss):
            self._lose(outcome.code)
            raise Abandoned
        return outcome, sent_at

    async def _refresh(self) -> None:
        claim = self._hold.claim
        call = calls.refresh([claim])
        verdict = calls.Call(
            call.method, call.path, call.headers, call.body, lambda status, body: _verdict(call, claim, status, body)
        )
        outcome, sent_at = await self._settle(verdict)
        assert isinstance(outcome, calls.Accepted)
        self._hold.accepted(sent_at)
        self._stop_asked(outcome.value)

    def _fresh(self) -> bool:
        if self._hold.lost is not None:
            # Known to the refresher's thread, and still on its way into a loop that user code had blocked.
            self._lose(self._hold.lost)
        if self._lost is not None:
            raise Abandoned
        return self._now() - self._hold.sent_at < _FENCE * self._idle_timeout

    @property
    def _idle_timeout(self) -> float:
        return self._grant.idle_timeout_ms / 1000

    def _going(self) -> bool:
        return self._lost is None and self._host.time_left()

    # --- what the claim hears while it is held -----------------------------------------------------------------------
    def _held(self, sent_at: float) -> refresher.Hold:
        grant, loop = self._grant, asyncio.get_running_loop()

        def into_the_loop(callback: Callable[[Any], None], argument: object) -> None:
            try:
                loop.call_soon_threadsafe(callback, argument)
            except RuntimeError:
                _log.debug("a verdict came after the loop was closed")

        left = self.remaining()
        return refresher.Hold(
            self._exchange.url,
            messages.HeldClaim(grant.run.id, grant.revision, grant.claim_id, grant.token),
            refresher.interval(
                grant, self._context.refresh_interval_ms, None if left is None else left.total_seconds()
            ),
            sent_at,
            lambda code: into_the_loop(self._lose, code),
            lambda stop: into_the_loop(self._stop_asked, stop),
            lambda: None if self._engine is None else self._engine.step,
        )

    def _lose(self, code: str) -> None:
        if self._ending or self._lost is not None:
            return
        self._lost = code
        if self._engine is not None:
            self._engine.lose()

    def _stop_asked(self, stop: messages.Stop | None, reason: str | None = None) -> None:
        if stop == "cancel" and self._engine is not None:
            self._engine.cancel(reason)
        if stop == "pause":
            self._reason = "pause"
            self._leave()

    def _leave(self) -> None:
        if self._engine is not None:
            self._engine.leave()

    def _leaving_asked(self) -> bool:
        return self._reason != "handoff"


def _verdict(
    call: calls.Call[messages.Refreshed], claim: messages.HeldClaim, status: int, body: bytes
) -> calls.Outcome[messages.Stop | None]:
    outcome = call.outcome(status, body)
    if isinstance(outcome, calls.Accepted):
        return calls.held(claim, outcome.value)
    return calls.Unknown(f"status {status}")
