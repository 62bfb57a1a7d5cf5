"""The pool of publishers: one for a target, made anew when something changed, what was replaced closed later."""

from collections.abc import Sequence
from typing import Any

import pytest

from dispatcher import publisher_pool
from dispatcher.broker_clients import BrokerClients
from dispatcher.endpoints import RelayTarget
from dispatcher.publisher_pool import PublisherPool
from dispatcher.settings import BrokerPublisher, Settings
from endpoint_sdk.wire.operating import PublisherType
from publishers.base import Due, Health, Outcome, Target

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Made:
    """A publisher that only remembers whether it was closed."""

    def __init__(self, target: Target, described: BrokerPublisher | None, clients: BrokerClients | None) -> None:
        self.target = target
        self.described = described
        self.closed = False
        if described is not None and clients is not None and described.type == "redis":
            self.client = clients.redis(described.url)

    async def publish(self, due: Sequence[Due]) -> list[Outcome]:
        return [Outcome("published", "accepted") for _ in due]

    async def check(self) -> Health:
        return Health("active")

    async def close(self) -> None:
        self.closed = True


def described(**publishers: dict[str, Any]) -> dict[str, BrokerPublisher]:
    sections = {name: {"secret": SECRET, **item} for name, item in publishers.items()}
    return Settings.model_validate({"publishers": sections}).broker_publishers


def redis(url: str = "redis://x", **more: Any) -> dict[str, Any]:
    return {"type": "redis", "url": url, **more}


def item(name: str, kind: PublisherType = "redis", *, secret: bytes = b"k" * 32, url: str = "redis://x") -> RelayTarget:
    target = Target(name, url, "generic", (secret,))
    return RelayTarget(name, None, target, 0, [], 0, f"ep_{name}", None, kind, None)


def pool(**publishers: dict[str, Any]) -> PublisherPool:
    return PublisherPool(lambda target: Made(target, None, None), Made, described(**publishers))


async def test_one_publisher_for_a_target() -> None:
    """The same target has the same publisher each time; another secret makes another."""
    made = pool(fast=redis())
    for kind in ("redis", "push"):
        first = made.publisher(item("fast", kind))
        assert made.publisher(item("fast", kind)) is first
        assert made.publisher(item("fast", kind, secret=b"n" * 32)) is not first
    assert await made.check(item("fast")) == Health("active")
    await made.close()


async def test_a_broker_the_file_does_not_describe() -> None:
    """There is no publisher to a broker this process knows nothing of."""
    with pytest.raises(KeyError):
        pool().publisher(item("fast"))


async def test_what_is_replaced_is_closed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced publisher may end its calls: it is closed by a later sweep, or at the end."""
    made = pool(fast=redis())
    before = made.publisher(item("fast"))
    made.reload(described(fast=redis("redis://y")))
    after = made.publisher(item("fast", url="redis://y"))
    assert isinstance(before, Made)
    assert isinstance(after, Made)
    assert after is not before
    await made.sweep()
    assert not before.closed
    monkeypatch.setattr(publisher_pool, "_RETIRING_SECONDS", -1.0)
    await made.sweep()
    assert (before.closed, after.closed) == (True, False)
    await made.close()
    assert after.closed


async def test_what_left_the_file_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is described no more is retired at the reload; the others keep their publishers."""
    made = pool(fast=redis(), slow=redis())
    fast, slow = made.publisher(item("fast")), made.publisher(item("slow"))
    made.reload(described(slow=redis()))
    monkeypatch.setattr(publisher_pool, "_RETIRING_SECONDS", -1.0)
    await made.sweep()
    assert isinstance(fast, Made)
    assert isinstance(slow, Made)
    assert (fast.closed, slow.closed) == (True, False)
    assert made.publisher(item("slow")) is slow
    await made.close()


async def test_clients_are_shared_by_place() -> None:
    """Publishers to one place have one client, also over a reload; a place nobody names any more is given up."""
    clients = BrokerClients()
    first, other = clients.redis("redis://x"), clients.redis("redis://y")
    queue = clients.sqs("eu-west-1", None)
    assert clients.redis("redis://x") is first
    assert clients.sqs("eu-west-1", None) is queue
    assert clients.sqs("eu-west-2", None) is not queue

    sqs = {"type": "sqs", "queueUrl": "https://sqs.eu-west-1.amazonaws.com/1/q"}
    left = clients.without(described(a=redis("redis://x"), b=sqs))
    assert clients.redis("redis://x") is first
    assert clients.sqs("eu-west-1", None) is queue
    assert left.redis("redis://y") is other
    assert clients.redis("redis://y") is not other
    await left.close()
    await clients.close()
