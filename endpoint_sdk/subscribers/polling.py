"""Asks the dispatcher itself for runs: they come claimed, in the answer.

Each question has a request id of its own. One whose answer never came may have claimed runs all the same: once the
dispatcher can claim nothing more for it, it is asked again under the same id and with limit 0, which takes over what it
holds and takes nothing new (infra/docs/protocol.md, I6). New questions do not wait for that.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct

from endpoint_sdk import calls
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.exchange import Abandoned, Exchange
from endpoint_sdk.subscribers.base import Claim, Message, Setup, SubscriberFailed
from endpoint_sdk.subscribers.pools import checked
from endpoint_sdk.wire import identity, limits, messages

_log: Final = logging.getLogger(__name__)

# The dispatcher claims nothing for a question later than its wait and two seconds.
_SETTLES: Final = 5.0
_ANSWER: Final = 5.0
_RELEASE_PATIENCE: Final = 5.0
# A question that was cut off is asked about at once, and again when a claim under way then must have been stored.
_CUT_OFF: Final = (0.0, 0.5)
_REMEMBERED: Final = 20


class _Question(Struct, eq=False):
    """A question on its way; `due` is when it may be asked again."""

    wanted: messages.ClaimMany
    sent_at: float
    due: float


class PollSubscriber:
    """Takes claimed runs of *pools*; each question may wait up to *wait*, 1 to 20 seconds.

    Raises ConfigurationError for a wait or pools that could not work.
    """

    def __init__(
        self, *, pools: Sequence[str] = ("default",), wait: timedelta = timedelta(milliseconds=limits.MAX_WAIT_MS)
    ) -> None:
        self._pools = checked(pools)
        self._wait = _checked_wait(wait)
        self._unanswered: list[_Question] = []
        self._background: set[asyncio.Task[None]] = set()

    @property
    def pools(self) -> Sequence[str]:
        """The pools runs are taken from."""
        return self._pools

    async def open(self, setup: Setup) -> None:
        """The dispatcher can be asked. Raises SubscriberFailed without its URL and an API key."""
        if setup.exchange is None or setup.api_key is None:
            raise SubscriberFailed("polling needs the dispatcher's URL and an API key of scope execute")
        self._setup = setup
        self._exchange: Exchange = setup.exchange
        self._api_key = setup.api_key

    async def receive(self, limit: int) -> Sequence[Message | Claim]:
        """Up to *limit* claimed runs as soon as there are any, none when the wait is over.

        Raises SubscriberFailed. When it is cancelled the question is withdrawn, and what it claimed is released.
        """
        late = await self._late(limit)
        return late or await self._ask(limit)

    async def done(self, item: Message | Claim) -> None:
        """Nothing is left to say: the run's own ending said it."""

    async def back(self, item: Message | Claim, delay: float = 0) -> None:
        """The run is released: somebody may have it after *delay* seconds."""
        assert isinstance(item, Claim)
        call = calls.release(item.grant, identity.new("req"), int(delay * 1000))
        with contextlib.suppress(Abandoned):
            # Without an answer recovery takes the run over.
            await self._exchange.settle(call, _RELEASE_PATIENCE, lambda: True)

    def held_for(self, item: Message | Claim) -> float | None:  # noqa: ARG002 - the contract's
        """None: the claim is the only hold."""
        return None

    async def close(self, timeout: float) -> None:
        """Nothing is asked any more; waits at most *timeout* seconds until what questions without an answer hold is
        released."""
        unanswered, self._unanswered = self._unanswered, []
        for question in unanswered:
            self._aside(self._withdraw(question))
        if self._background:
            await asyncio.wait(self._background, timeout=max(timeout, 0))
        for task in list(self._background):
            task.cancel()

    # --- questions ---------------------------------------------------------------------------------------------------
    async def _ask(self, limit: int) -> Sequence[Claim]:
        question = self._question(min(limit, limits.MAX_CLAIMS))
        wait = question.wanted.wait_ms / 1000
        try:
            outcome = await self._send(question.wanted, wait + _ANSWER)
        except asyncio.CancelledError:
            self._aside(self._withdraw(question))
            raise
        if isinstance(outcome, calls.Accepted):
            return self._within(question, outcome.value, limit)
        if isinstance(outcome, calls.Unknown):
            if outcome.sent:
                self._unanswered = [*self._unanswered, question][-_REMEMBERED:]
            raise SubscriberFailed(f"the dispatcher gave no answer ({outcome.why})")
        raise SubscriberFailed(f"the dispatcher refuses to be polled: {calls.told(outcome)}{_hint(outcome)}")

    def _question(self, limit: int) -> _Question:
        now = self._exchange.times.now()
        # No later than the next question that is due to be asked again: its claims are ageing.
        soonest = min((question.due for question in self._unanswered), default=now + self._wait)
        wait_ms = int(min(self._wait, max(soonest - now, 0)) * 1000)
        wanted = messages.ClaimMany(
            list(self._setup.workflows),
            identity.new("req"),
            self._setup.executor,
            self._setup.refresh_interval_ms,
            list(self._pools),
            limit,
            wait_ms,
        )
        return _Question(wanted, now, now + wait_ms / 1000 + _SETTLES)

    async def _late(self, limit: int) -> Sequence[Claim]:
        """What an unanswered question, asked again when it was due, turns out to hold."""
        now = self._exchange.times.now()
        for question in [each for each in self._unanswered if each.due <= now]:
            outcome = await self._send(_again(question.wanted), _ANSWER)
            if isinstance(outcome, calls.Unknown):
                raise SubscriberFailed(f"the dispatcher gave no answer ({outcome.why})")
            self._unanswered.remove(question)
            if isinstance(outcome, calls.Accepted) and outcome.value.claims:
                return self._within(question, outcome.value, limit)
        return ()

    async def _withdraw(self, question: _Question) -> None:
        """Releases what *question*, whose connection was cut, claimed before the dispatcher noticed."""
        for pause in _CUT_OFF:
            await asyncio.sleep(pause)
            outcome = await self._send(_again(question.wanted), _ANSWER)
            if isinstance(outcome, calls.Accepted):
                for claim in self._claims(question, outcome.value):
                    await self.back(claim)

    async def _send(self, wanted: messages.ClaimMany, timeout: float) -> calls.Outcome[messages.Claimed]:
        call = calls.poll(wanted, self._api_key, self._setup.namespace)
        return await self._exchange.once(call, timeout, longest=timeout)

    def _within(self, question: _Question, answer: messages.Claimed, limit: int) -> Sequence[Claim]:
        claims = self._claims(question, answer)
        for excess in claims[limit:]:
            self._aside(self.back(excess))
        return claims[:limit]

    def _claims(self, question: _Question, answer: messages.Claimed) -> list[Claim]:
        # The first sending counts: the claims are at least as old as the dispatcher's answer to it.
        return [Claim(grant, question.sent_at) for grant in answer.claims]

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _checked_wait(wait: object) -> float:
    longest = timedelta(milliseconds=limits.MAX_WAIT_MS)
    if not isinstance(wait, timedelta) or not timedelta(seconds=1) <= wait <= longest:
        raise ConfigurationError("poll(wait=) is a timedelta from 1 to 20 seconds")
    return wait.total_seconds()


def _hint(outcome: calls.Refused | calls.Loss) -> str:
    if outcome.code not in {"unauthorized", "forbidden"}:
        return ""
    return "; POINTSMAN_API_KEY or Worker(api_key=) has to be a key of scope execute in this namespace"


def _again(wanted: messages.ClaimMany) -> messages.ClaimMany:
    from msgspec.structs import replace

    return replace(wanted, limit=0, wait_ms=0)
