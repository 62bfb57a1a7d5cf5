"""The contract of every subscriber: how a worker takes deliveries from a transport and says what became of them.

A worker calls `open` once, then `receive` again and again, and for everything it received exactly one of `done` and
`back`; `close` comes last, after which what a receive under way still brings goes back by itself. From `receive` to
`done` or `back` the subscriber keeps the transport from handing the same message to somebody else, as far as the
transport can: that hold is a matter between the two, and no claim of a run depends on it.

A subscriber never looks into a message: the worker verifies its signature and claims its run.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from endpoint_sdk.exchange import Exchange
from endpoint_sdk.wire.messages import ExecutorInfo, Grant, ServedWorkflow, WantedWorkflow


class Message(Struct, eq=False):
    """A signed delivery as the transport handed it over.

    *sent_at* is when the transport took it in, in seconds since the epoch by the transport's clock: the age of its
    signature is judged then, and not at all when it is None. *receipt* is the subscriber's own. *receives* is how
    often the transport has handed this message out, this time included, where it counts that: what keeps failing waits
    longer.
    """

    headers: Mapping[str, str]
    body: bytes
    sent_at: float | None = None
    receipt: Any = None
    receives: int = 1


class Claim(Struct, eq=False):
    """A run that came claimed, from a poll; *sent_at* is when the poll was sent, on the SDK's monotonic clock."""

    grant: Grant
    sent_at: float


class Setup(Struct, frozen=True):
    """What a worker tells its subscriber: what it serves, in which namespace, and how to reach the dispatcher.

    *workflows* names every version the worker can run, those its workflows accept included. *api_key* is None where
    the worker has none: then only a subscriber that does not call the dispatcher can be used. *declares* is what the
    worker's own announcement says of its workflows.
    """

    namespace: str
    workflows: Sequence[WantedWorkflow]
    executor: ExecutorInfo
    refresh_interval_ms: int
    exchange: Exchange | None = None
    api_key: str | None = None
    declares: Sequence[ServedWorkflow] = ()


class SubscriberFailed(Exception):
    """The transport cannot be used now, or not as it is set up; the message says why and holds no secret."""


class Subscriber(Protocol):
    """Takes deliveries from one transport for one worker. All methods are called on the worker's event loop."""

    @property
    def pools(self) -> Sequence[str]:
        """The pools this subscriber takes runs from; the worker polls the same ones while the transport fails."""
        ...

    async def open(self, setup: Setup) -> None:
        """The transport can be received from. Raises SubscriberFailed, and may be called again after that."""
        ...

    async def receive(self, limit: int) -> Sequence[Message | Claim]:
        """Up to *limit* deliveries, at least 1, as soon as there are any; none when the transport's wait ends first.

        Raises SubscriberFailed. May be cancelled: what it was about to return goes back.
        """
        ...

    async def done(self, item: Message | Claim) -> None:
        """The delivery is settled: it does not come again. Failing to say so costs a duplicate and is not raised."""
        ...

    async def back(self, item: Message | Claim, delay: float = 0) -> None:
        """The delivery was not handled here: somebody may have it after *delay* seconds. Never raises."""
        ...

    def held_for(self, item: Message | Claim) -> float | None:
        """Seconds since the transport's hold on *item* was last confirmed; None where the transport has no hold."""
        ...

    async def close(self, timeout: float) -> None:
        """Nothing is received or held any more; waits at most *timeout* seconds for a receive that cannot be cut off.

        Whatever that receive still brings goes back at once. Can be repeated.
        """
        ...
