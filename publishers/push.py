"""Push: a delivery is a signed POST, its connection held to the end of the handler."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from endpoint_sdk.transport.errors import TransportError
from endpoint_sdk.wire.messages import Delivery
from publishers import policy, post
from publishers.base import Due, Outcome, Target
from publishers.message import encode, message_id
from publishers.post import Transport

HOLD_SECONDS: Final = 900.0
"""How long a connection is held: the longest a Lambda function can run."""


class PushPublisher:
    """Pushes to one endpoint over *transport*, which it shares and never closes.

    The connection says early what the claim says for certain: only an answer that proves that no executor of ours has
    the delivery makes it anything but published. *hold_seconds* is how long a handler may keep its connection.
    """

    def __init__(
        self,
        target: Target,
        transport: Transport,
        *,
        hold_seconds: float = HOLD_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._target = target
        self._transport = transport
        self._hold_seconds = hold_seconds
        self._now = now

    async def publish(self, due: Sequence[Due]) -> list[Outcome]:
        """What became of each delivery, once its connection has ended; they are pushed side by side."""
        if len(due) == 1:
            return [await self._push(due[0].delivery)]
        return list(await asyncio.gather(*(self._push(each.delivery) for each in due)))

    async def close(self) -> None:
        """Does nothing: the transport belongs to whoever made it."""

    async def _push(self, delivery: Delivery) -> Outcome:
        try:
            answer = await post.signed(
                self._target,
                self._transport,
                message_id(delivery),
                encode(delivery),
                now=self._now(),
                timeout=self._hold_seconds,
                resend_idle=False,
            )
        except post.UrlRefused as error:
            return policy.not_answered(policy.URL_REFUSED, str(error))
        except TransportError as error:
            return policy.judge(error, self._now())
        return policy.judge(answer, self._now())
