"""One time a worker serves: from the first receive to the end of its drain.

    intake ── message ──> admission ──> claim, run, end ──> done or back
       └───── claim (from a poll) ──────────^

On a drain nothing more is received, what is not claimed goes back at once, and claims are refreshed until their runs
have stopped at a task boundary and are released. What has not stopped shortly before the time is up is cut short: an
`async def` body is cancelled and its run released; while a `def` body runs nothing is said, and recovery decides.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, Literal

from msgspec import Struct

from endpoint_sdk import calls
from endpoint_sdk.admission import Admission, TurnedAway, retry_delay
from endpoint_sdk.exchange import Times
from endpoint_sdk.executor import Executor, run_of
from endpoint_sdk.intake import Health, Intake
from endpoint_sdk.places import Places
from endpoint_sdk.subscribers.base import Claim, Message, Setup, Subscriber
from endpoint_sdk.wire import identity, messages

_log: Final = logging.getLogger(__name__)

_MINUTE: Final = 60.0
_ANNOUNCE_TIMEOUT: Final = 5.0
_ANNOUNCE_AGAIN: Final = 5.0
# Before the drain's time is up: to cancel bodies, to unwind what they were called from, and to write the release.
_CUT: Final = 2.0
_LAST_MOMENT: Final = 0.5
_LONGEST_RECEIVE: Final = 1.0

Item = Message | Claim


class Plan(Struct, frozen=True):
    """What a shift is made of; `fallback` stands in for `subscriber` while that fails."""

    executor: Executor
    subscriber: Subscriber
    fallback: Subscriber | None
    admission: Admission | None
    setup: Setup
    max_concurrent_runs: int
    drain_timeout: timedelta
    times: Times


class Shift:
    """Serves until `end` is called."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._executor = plan.executor
        self._times = plan.times
        self._places = Places(plan.max_concurrent_runs)
        self._ending = asyncio.Event()
        self._handling: set[asyncio.Task[None]] = set()
        # By the identity of the work: copies of one run may be here at the same time.
        self._held: dict[int, tuple[Subscriber, Item]] = {}
        self._turned: Counter[str] = Counter()
        self._stand_in = asyncio.Event()
        self._announced: bool | None = None
        self._intakes = self._made_intakes()

    def end(self) -> None:
        """Drains: `run` returns within the drain's time. Can be repeated."""
        self._ending.set()

    async def run(self) -> int:
        """Serves until `end`, then drains; the number of runs that had to be left to recovery.

        Cancelled, it drains as well; cancelled while it drains, it drops everything where it stands.
        """
        loops = [asyncio.create_task(intake.run()) for intake in self._intakes]
        loops.append(asyncio.create_task(self._every_minute()))
        try:
            await self._ending.wait()
        finally:
            try:
                left = await self._drain(loops)
            except asyncio.CancelledError:
                self._drop(loops)
                raise
        return left

    def holding(self) -> list[tuple[str, float, float | None]]:
        """See Worker.holding."""
        held = []
        for work, seconds in self._executor.refreshed():
            subscriber, item = self._held.get(id(work), (None, None))
            hold = None if subscriber is None or item is None else subscriber.held_for(item)
            held.append((run_of(work), seconds, hold))
        return held

    # --- what is received --------------------------------------------------------------------------------------------
    def _made_intakes(self) -> list[Intake]:
        plan = self._plan
        shared = (plan.setup, self._places, self._take, plan.times)
        intakes = [Intake(plan.subscriber, *shared, Health(_name(plan.subscriber), self._changed))]
        if plan.fallback is not None:
            other = Health(_name(plan.fallback), lambda _failing: None)
            intakes.append(Intake(plan.fallback, *shared, other, allowed=self._stand_in))
        return intakes

    def _changed(self, failing: bool) -> None:
        name = _name(self._plan.subscriber)
        if self._plan.fallback is None:
            if failing and self._plan.setup.api_key is None:
                hint = "with POINTSMAN_URL and POINTSMAN_API_KEY the dispatcher would be polled meanwhile"
                _log.warning("%s fails, and nobody else can be asked: %s", name, hint)
        elif failing:
            self._stand_in.set()
            _log.warning("%s fails: the dispatcher is polled until it works again", name)
        else:
            self._stand_in.clear()
            _log.info("%s works again", name)

    def _take(self, subscriber: Subscriber, items: Sequence[Item]) -> None:
        for item in items:
            task = asyncio.create_task(self._handle(subscriber, item))
            self._handling.add(task)
            task.add_done_callback(self._handled)

    def _handled(self, task: asyncio.Task[None]) -> None:
        self._handling.discard(task)
        self._places.give_back(1)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a subscriber raised what it should not", exc_info=error)

    async def _handle(self, subscriber: Subscriber, item: Item) -> None:
        delay = await (self._claimed(subscriber, item) if isinstance(item, Claim) else self._message(subscriber, item))
        if delay is None:
            await subscriber.done(item)
        else:
            await subscriber.back(item, delay)

    async def _claimed(self, subscriber: Subscriber, claim: Claim) -> float | None:
        """None once the run is settled or left to recovery; 0 if it has to go back."""
        if self._ending.is_set():
            return 0
        await self._execute(subscriber, claim, claim)
        return None

    async def _message(self, subscriber: Subscriber, message: Message) -> float | None:
        """None once the message is settled, else in how many seconds it may come again."""
        assert self._plan.admission is not None
        verdict = await self._plan.admission.judge(message)
        if isinstance(verdict, TurnedAway):
            return self._turned_away(verdict)
        if self._ending.is_set():
            return 0
        settled = await self._execute(subscriber, message, verdict)
        return None if settled == "settled" else retry_delay(message)

    async def _execute(
        self, subscriber: Subscriber, item: Item, work: messages.Delivery | Claim
    ) -> Literal["settled", "retry"]:
        self._held[id(work)] = (subscriber, item)
        try:
            return (await self._executor.execute(work, lambda: None)).result
        except Exception:
            return "retry"  # the executor has logged it
        finally:
            del self._held[id(work)]

    def _turned_away(self, verdict: TurnedAway) -> float:
        """Logs the first of a kind in a minute; the others are counted."""
        if not self._turned[verdict.code]:
            _log.warning("a message is not taken here: %s", verdict.why, extra={"code": verdict.code})
        self._turned[verdict.code] += 1
        return verdict.delay

    # --- once a minute -----------------------------------------------------------------------------------------------
    async def _every_minute(self) -> None:
        while True:
            announced = await self._announce()
            turned, self._turned = self._turned, Counter()
            for code, count in turned.items():
                if count > 1:
                    _log.warning("messages not taken here: %s", code, extra={"count": count})
            self._say_what_is_held()
            await self._times.sleep(_MINUTE if announced else _ANNOUNCE_AGAIN)

    def _say_what_is_held(self) -> None:
        try:
            for run_id, refreshed, held in self.holding():
                ages = {"run_id": run_id, "refreshed_seconds": refreshed, "transport_held_seconds": held}
                _log.debug("holding", extra=ages)
        except Exception:
            _log.exception("a subscriber raised what it should not")

    async def _announce(self) -> bool:
        """Tells the dispatcher what is served here, so that it routes by it and warns where nobody serves a version."""
        setup = self._plan.setup
        if setup.exchange is None or setup.api_key is None:
            return True
        wanted = messages.ClaimMany(
            list(setup.workflows),
            identity.new("req"),
            setup.executor,
            setup.refresh_interval_ms,
            list(self._plan.subscriber.pools),
            limit=0,
            declares=list(setup.declares),
        )
        outcome = await setup.exchange.once(calls.poll(wanted, setup.api_key, setup.namespace), _ANNOUNCE_TIMEOUT)
        known, self._announced = self._announced, isinstance(outcome, calls.Accepted)
        if not isinstance(outcome, calls.Accepted) and known is not False:
            _log.warning("the dispatcher could not be told what is served here: %s", calls.told(outcome))
        return self._announced

    # --- drain -------------------------------------------------------------------------------------------------------
    async def _drain(self, loops: Sequence[asyncio.Task[None]]) -> int:
        self._ending.set()
        total = self._plan.drain_timeout.total_seconds()
        deadline = self._times.now() + total
        self._executor.drain()
        for loop in loops:
            loop.cancel()
        await _ended(loops, min(_LONGEST_RECEIVE, total / 4))
        await _ended(self._handling, deadline - self._times.now() - min(_CUT, total / 4))
        if self._handling:
            _log.warning("the drain's time is nearly up", extra={"runs": len(self._handling)})
            self._executor.expire()
            await _ended(self._handling, deadline - self._times.now() - min(_LAST_MOMENT, total / 10))
        left = await self._abandon()
        await self._close(deadline)
        return left

    async def _abandon(self) -> int:
        left = self._executor.abandon()
        if left:
            _log.error("runs whose task goes on are left to recovery", extra={"runs": left})
        for task in list(self._handling):
            task.cancel()
        await _ended(self._handling, _LAST_MOMENT)
        return left

    def _drop(self, loops: Iterable[asyncio.Task[None]]) -> None:
        self._executor.abandon()
        for task in (*loops, *self._handling):
            task.cancel()
        self._executor.stop_refreshing()

    async def _close(self, deadline: float) -> None:
        timeout = max(deadline - self._times.now(), _LAST_MOMENT)
        used = [intake.subscriber for intake in self._intakes if intake.used]
        closing = [asyncio.create_task(subscriber.close(timeout)) for subscriber in used]
        await _ended(closing, timeout)
        for task in closing:
            if not task.cancel() and not task.cancelled() and (error := task.exception()) is not None:
                _log.error("a subscriber could not be closed", exc_info=error)
        await self._executor.close()


async def _ended(tasks: Iterable[asyncio.Task[None]], timeout: float) -> None:
    """Waits until *tasks* have ended, at most *timeout* seconds."""
    if under_way := list(tasks):
        await asyncio.wait(under_way, timeout=max(timeout, 0))


def _name(subscriber: Subscriber) -> str:
    return type(subscriber).__name__
