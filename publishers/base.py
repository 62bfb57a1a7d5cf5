"""The contract of every publisher: deliveries in, one outcome each out."""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from endpoint_sdk.wire.messages import Delivery, Platform

Kind = Literal["published", "deferred", "failed", "declined"]


class Outcome(Struct, frozen=True):
    """What became of one delivery.

    published: handed over, the claim decides · deferred: try again after `delay_ms`, nobody's fault · failed: try again
    with the relay's backoff, or after `delay_ms` · declined: not this route's. `row` names the rule that applied;
    `counted` says whether it is an ending (infra/docs/protocol.md, I10). `detail` holds no payload and no secret.
    """

    kind: Kind
    row: str
    counted: bool = False
    delay_ms: int | None = None
    status: int | None = None
    detail: str | None = None


class Due(Struct, frozen=True):
    """One delivery to hand over: *rank* orders it within its queue, the lower the sooner.

    *queued_at* says when its run became queued at the delivery's revision, in milliseconds since the epoch; *pool* is
    the part of the queue's name that no delivery carries.
    """

    delivery: Delivery
    rank: int
    queued_at: int
    pool: str = "default"


class Health(Struct, frozen=True):
    """What a publisher's check found. `code` and `message` name the cause unless the state is active.

    active: deliveries can be handed over · unreachable: nobody answers · misconfigured: somebody does, and it is not
    what the configuration says (a missing queue, one of another kind, refused credentials).
    """

    state: Literal["active", "unreachable", "misconfigured"]
    code: str | None = None
    message: str | None = None


class Target(Struct, frozen=True):
    """Whom to hand to: an address, its host's platform, and the decoded signing secrets valid now, newest first.

    *url* is an endpoint's URL, a queue's URL, or a Redis URL without its password.
    """

    name: str
    url: str
    platform: Platform
    secrets: tuple[bytes, ...]
    allow_http: bool = False
    allow_addresses: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Target(name={self.name!r}, url={self.url!r}, {len(self.secrets)} secrets)"


class Publisher(Protocol):
    """Hands deliveries to one route."""

    async def publish(self, due: Sequence[Due]) -> list[Outcome]:
        """One outcome per delivery, in order. The relay takes an exception, or one missing, for `failed`."""
        ...

    async def close(self) -> None:
        """Nothing is open any more."""
        ...
