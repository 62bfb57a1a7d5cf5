"""Sends calls until their outcome is known: the same request again and again, never a new one."""

import asyncio
import logging
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

_CONNECT_TIMEOUT: Final = 5.0
_TIMEOUT: Final = 10.0
_SHORTEST_TIMEOUT: Final = 1.0
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

    async def once(self, call: calls.Call[T], patience: float) -> calls.Outcome[T]:
        """The outcome of sending *call* one time; *patience* (seconds) bounds the wait, between 1 and 10."""
        timeout = min(max(patience, _SHORTEST_TIMEOUT), _TIMEOUT)
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
            return calls.Unknown(type(error).__name__)
        return call.outcome(answer.status, answer.body)

    async def settle(
        self, call: calls.Call[T], patience: float, going: Callable[[], bool]
    ) -> tuple[calls.Accepted[T] | calls.Refused | calls.Loss, float]:
        """The known outcome of *call*, and when it was first sent.

        Sends it again after 50 ms, then after twice as long each time, jittered, at most 2 s. Raises Abandoned when
        the outcome is still unknown after *patience* seconds, or once *going* says no. The first sending counts, not
        the accepted one: the dispatcher may have done it then, and its claim clock runs from there.
        """
        first_sent = self.times.now()
        pause = _FIRST_PAUSE
        while True:
            outcome = await self.once(call, patience / 3)
            if not isinstance(outcome, calls.Unknown):
                return outcome, first_sent
            wait = pause * self.times.jitter(0.5, 1.5)
            if not going() or self.times.now() + wait - first_sent > patience:
                _log.warning("giving up a call without a known outcome", extra={"path": call.path, "why": outcome.why})
                raise Abandoned
            await self.times.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE)
