"""Receives from one subscriber, as much as there are free places for, and keeps trying while it fails."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from endpoint_sdk.exchange import Times
from endpoint_sdk.places import Places
from endpoint_sdk.subscribers.base import Claim, Message, Setup, Subscriber, SubscriberFailed
from endpoint_sdk.wire import limits

_log: Final = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 10.0
# A transport that answers "nothing" at once, as a dispatcher does that is shutting down, is not asked in a tight loop.
_IDLE_PAUSE: Final = 0.25
_AT_ONCE: Final = 0.05
# Two in a row either way, so that a transport that works now and then does not make a worker change sides each time.
_ENOUGH: Final = 2

Take = Callable[[Subscriber, Sequence[Message | Claim]], None]


class Health:
    """Whether the transport *name* can be received from, with some patience in both directions.

    *changed* hears of every change of mind.
    """

    def __init__(self, name: str, changed: Callable[[bool], None]) -> None:
        self.failing = False
        self._name = name
        self._changed = changed
        self._in_a_row = 0
        self._said = False

    def worked(self) -> None:
        """A receive ended without a failure."""
        if self._said:
            _log.info("%s receives again", self._name)
            self._said = False
        self._count(failing=False)

    def failed(self, why: str) -> None:
        """The transport failed: *why* is logged once until it works again."""
        if not self._said:
            _log.warning("%s cannot receive and tries again: %s", self._name, why)
            self._said = True
        self._count(failing=True)

    def _count(self, *, failing: bool) -> None:
        if failing == self.failing:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row >= _ENOUGH:
            self._in_a_row = 0
            self.failing = failing
            self._changed(failing)


class Intake:
    """The loop around one subscriber. While *allowed* is not set, nothing is received."""

    def __init__(
        self,
        subscriber: Subscriber,
        setup: Setup,
        places: Places,
        take: Take,
        times: Times,
        health: Health,
        *,
        allowed: asyncio.Event | None = None,
    ) -> None:
        self.subscriber = subscriber
        self._setup = setup
        self._places = places
        self._take = take
        self._times = times
        self._health = health
        self._allowed = allowed
        self._pause = _FIRST_PAUSE
        self.used = False

    async def run(self) -> None:
        """Receives until cancelled; opens the transport again after every failure."""
        while True:
            try:
                await self._enter()
                self.used = True
                await self.subscriber.open(self._setup)
                while True:
                    await self._receive()
            except SubscriberFailed as error:
                self._health.failed(str(error))
            except Exception as error:
                _log.exception("a subscriber raised what it should not")
                self._health.failed(type(error).__name__)
            await self._times.sleep(self._pause * self._times.jitter(0.5, 1.5))
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    async def _enter(self) -> None:
        if self._allowed is not None:
            await self._allowed.wait()

    async def _receive(self) -> None:
        await self._enter()
        # A transport that fails is tried with one place, the others are for the one that stands in for it.
        most = 1 if self._health.failing else limits.MAX_CLAIMS
        places = await self._places.reserve(most)
        unused = places
        started = self._times.now()
        try:
            items = await self.subscriber.receive(places)
            self._worked()
            taken = items[:places]
            unused = places - len(taken)
            self._take(self.subscriber, taken)
        finally:
            self._places.give_back(unused)
        for excess in items[places:]:
            await self.subscriber.back(excess)
        if not items and self._times.now() - started < _AT_ONCE:
            await self._times.sleep(_IDLE_PAUSE * self._times.jitter(0.5, 1.5))

    def _worked(self) -> None:
        self._pause = _FIRST_PAUSE
        self._health.worked()
