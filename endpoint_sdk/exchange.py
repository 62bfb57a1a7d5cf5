"""Sends calls until their outcome is known: the same request again and again, never a new one."""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from endpoint_sdk import calls, monotonic
from endpoint_sdk.transport import Answer, TransportError

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

# A grant carries the input and up to 4 MiB of records, each with its envelope.
MAX_ANSWER: Final = 32 * 1024 * 1024
LONGEST_TIMEOUT: Final = 10.0

_CONNECT_TIMEOUT: Final = 5.0
_SHORTEST_TIMEOUT: Final = 1.0
# What is sent again has at least so long to be answered.
_LEAST_WAIT: Final = 0.05
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0

Sleep = Callable[[float], Awaitable[None]]


class Abandoned(BaseException):
    """The claim is given up, quietly: it is lost, or a write never got an answer and recovery has to decide.

    A BaseException, so that nothing between the port and the engine takes it for a failure of the user's.
    """


class Transport(Protocol):
    """What an exchange needs of a transport."""

    async def request(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes,
        *,
        connect_timeout: float,
        timeout: float,
        max_body: int,
    ) -> Answer: ...


class Times(Struct, frozen=True):
    """Where time comes from; tests put their own clock here."""

    now: monotonic.Clock = monotonic.now
    sleep: Sleep = asyncio.sleep
    jitter: Callable[[float, float], float] = random.uniform


class Exchange:
    """Calls to one dispatcher at *url*."""

    def __init__(self, transport: Transport, url: str, times: Times) -> None:
        self.url = url.rstrip("/")
        self.times = times
        self._transport = transport

    async def once(self, call: calls.Call[T], patience: float, *, longest: float = LONGEST_TIMEOUT) -> calls.Outcome[T]:
        """The outcome of sending *call* one time; *patience* bounds the wait, between 1 and *longest* seconds."""
        timeout = min(max(patience, _SHORTEST_TIMEOUT), longest)
        try:
            answer = await self._transport.request(
                call.method,
                self.url + call.path,
                call.headers,
                call.body,
                connect_timeout=min(timeout, _CONNECT_TIMEOUT),
                timeout=timeout,
                max_body=MAX_ANSWER,
            )
        except TransportError as error:
            return calls.Unknown(type(error).__name__, error.sent)
        return call.outcome(answer.status, answer.body)

    async def settle(
        self, call: calls.Call[T], patience: float, going: Callable[[], bool], within: float = math.inf
    ) -> tuple[calls.Accepted[T] | calls.Refused | calls.Loss, float]:
        """The known outcome of *call*, and when it was first sent.

        Sends it again after 50 ms, then after twice as long each time, jittered, at most 2 s. Raises Abandoned when
        the outcome is still unknown after *patience* seconds, or once *going* says no, and waits for no answer longer
        than *within* seconds from now. The first sending counts, not the accepted one: the dispatcher may have done it
        then, and its claim clock runs from there.
        """
        first_sent = self.times.now()
        end = first_sent + within
        pause = _FIRST_PAUSE
        while True:
            longest = min(LONGEST_TIMEOUT, max(end - self.times.now(), 0))
            outcome = await self.once(call, patience / 3, longest=longest)
            if not isinstance(outcome, calls.Unknown):
                return outcome, first_sent
            again = self.times.now() + pause * self.times.jitter(0.5, 1.5)
            if not going() or again > min(first_sent + patience, end - _LEAST_WAIT):
                _log.warning("giving up a call without a known outcome", extra={"path": call.path, "why": outcome.why})
                raise Abandoned
            await self.times.sleep(again - self.times.now())
            pause = min(pause * 2, _LONGEST_PAUSE)
