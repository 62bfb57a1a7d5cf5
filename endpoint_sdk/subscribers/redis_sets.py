"""Takes deliveries from the sorted sets a Redis publisher fills, one for each queue this worker serves.

A member is gone from Redis once it was popped: what must not be handled here is put back, and what a process that died
had popped is published again by the dispatcher (infra/docs/protocol.md, I14). Written for Redis 6.2.
"""

import asyncio
import importlib.util
import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.subscribers.base import Claim, Message, Setup, SubscriberFailed
from endpoint_sdk.subscribers.pools import checked
from endpoint_sdk.wire import queues
from endpoint_sdk.wire.messages import Signed

if TYPE_CHECKING:
    from redis.asyncio import Redis

_log: Final = logging.getLogger(__name__)

MISSING: Final = "Redis needs redis-py: install pointsman[redis]"

# Short, because a pop that waits cannot be cut off without losing what it is about to get.
_WAIT: Final = 2
_CONNECT_TIMEOUT: Final = 2.0
_ANSWER: Final = 3.0
# Putting back holds up its worker no longer than this, and goes on by itself.
_PATIENCE: Final = 5.0

_decode: Final = msgspec.json.Decoder(Signed).decode


class _Popped(Struct, eq=False):
    """A member out of its set, and where it belongs."""

    key: bytes
    member: bytes
    score: float


class RedisSubscriber:
    """Takes members of the queues of its worker's workflows and *pools* at the Redis of *url*, lowest rank first.

    *url* is `redis://`, `rediss://` or `unix://`, as redis-py reads it. Raises ConfigurationError for what could not
    work, and without redis-py.
    """

    def __init__(self, url: str, *, pools: Sequence[str] = ("default",)) -> None:
        self._url = _checked_url(url)
        self._where = _without_credentials(self._url)
        self._pools = checked(pools)
        self._keys: list[str] = []
        self._turn = 0
        self._client: Redis | None = None
        self._delayed: dict[asyncio.TimerHandle, _Popped] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._malformed = 0
        if importlib.util.find_spec("redis") is None:
            raise ConfigurationError(MISSING)

    @property
    def pools(self) -> Sequence[str]:
        """The pools whose queues are popped from."""
        return self._pools

    async def open(self, setup: Setup) -> None:
        """Redis answers. Raises SubscriberFailed."""
        self._keys = [
            queues.redis_key(setup.namespace, workflow.name, version, pool)
            for pool in self._pools
            for workflow in setup.workflows
            for version in workflow.versions
        ]
        if self._client is None:
            self._client = self._connected()
        try:
            await self._client.ping()
        except Exception as error:
            raise self._failure(error) from None

    async def receive(self, limit: int) -> Sequence[Message | Claim]:
        """Up to *limit* messages; none when there were none for two seconds.

        Raises SubscriberFailed. Cancelled, it leaves the pop to itself, which puts back what it gets.
        """
        if self._client is None:
            raise SubscriberFailed("the subscriber is closed")
        pop = asyncio.create_task(self._pop(self._client, limit))
        self._track(pop)
        try:
            await asyncio.wait([pop])
        except asyncio.CancelledError:
            self._aside(self._restore(pop))
            raise
        try:
            return self._messages(pop.result())
        except Exception as error:
            raise self._failure(error) from None

    async def done(self, item: Message | Claim) -> None:
        """Nothing is left to say: the member is gone since it was popped."""

    async def back(self, item: Message | Claim, delay: float = 0) -> None:
        """The member is in its set again, under the same rank, after *delay* seconds or when this is closed."""
        if not isinstance(item, Message) or not isinstance(item.receipt, _Popped):
            return
        if delay <= 0 or self._client is None:
            await asyncio.wait([self._aside(self._put([item.receipt]))], timeout=_PATIENCE)
            return
        due: asyncio.TimerHandle = asyncio.get_running_loop().call_later(delay, lambda: self._due(due))
        self._delayed[due] = item.receipt

    def held_for(self, item: Message | Claim) -> float | None:  # noqa: ARG002 - the contract's
        """None: Redis holds nothing for anybody."""
        return None

    async def close(self, timeout: float) -> None:
        """Everything not handled is back in its set; waits at most *timeout* seconds for pops under way."""
        waiting = list(self._delayed.values())
        for timer in self._delayed:
            timer.cancel()
        self._delayed.clear()
        client = self._client
        if client is None:
            return
        if waiting:
            self._aside(self._put(waiting))
        deadline = asyncio.get_running_loop().time() + max(timeout, 0)
        while self._under_way and (left := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._under_way, timeout=left)
        for task in list(self._under_way):
            task.cancel()
        self._client = None
        await client.aclose()

    # --- popping -----------------------------------------------------------------------------------------------------
    async def _pop(self, client: "Redis", limit: int) -> list[_Popped]:
        """The first member of any queue, as soon as there is one, and more that are there then, a share of each."""
        keys = self._rotated()
        first: Any = await client.bzpopmin(keys, timeout=_WAIT)
        if first is None:
            return []
        key, member, score = first
        popped = [_Popped(key, member, score)]
        try:
            while keys and len(popped) < limit:
                more, keys = await self._share(client, keys, limit - len(popped))
                popped += more
        except Exception as error:
            # What was popped is worth more than the reason: the next receive fails by itself.
            _log.warning("Redis failed in the middle of a receive: %s", type(error).__name__)
        return popped

    async def _share(self, client: "Redis", keys: list[str], places: int) -> tuple[list[_Popped], list[str]]:
        """Pops an equal share from each queue, together at most *places*; and the queues that may hold more."""
        asked = keys[:places]
        share = places // len(asked)
        pipeline = client.pipeline(transaction=False)
        for key in asked:
            pipeline.zpopmin(key, share)
        popped: list[_Popped] = []
        full = keys[places:]
        failure: Exception | None = None
        for key, found in zip(asked, await pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(found, Exception):
                failure = found
                continue
            popped += [_Popped(key.encode(), member, score) for member, score in found]
            if len(found) == share:
                full.append(key)
        if failure is not None and not popped:
            raise failure
        return popped, full

    def _rotated(self) -> list[str]:
        # BZPOPMIN takes from the first key that holds something: each is first in turn, so that none starves.
        self._turn = (self._turn + 1) % len(self._keys)
        return self._keys[self._turn :] + self._keys[: self._turn]

    def _messages(self, popped: Sequence[_Popped]) -> list[Message]:
        found = []
        for each in popped:
            try:
                signed = _decode(each.member)
                found.append(Message(signed.headers, signed.body.encode(), None, each))
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                self._drop_malformed()
        return found

    def _drop_malformed(self) -> None:
        """Counts it, and says so at the first, second, fourth, eighth … one: there may be a flood of them."""
        self._malformed += 1
        if self._malformed & (self._malformed - 1) == 0:
            _log.warning("a member that is no signed delivery was dropped", extra={"count": self._malformed})

    # --- putting back ------------------------------------------------------------------------------------------------
    async def _restore(self, pop: "asyncio.Task[list[_Popped]]") -> None:
        await asyncio.wait([pop])
        if not pop.cancelled() and pop.exception() is None:
            await self._put(pop.result())

    async def _put(self, popped: Sequence[_Popped]) -> None:
        client = self._client
        if not popped or client is None:
            return
        pipeline = client.pipeline(transaction=False)
        for each in popped:
            # A copy that was published meanwhile stays as it is.
            pipeline.zadd(each.key, {each.member: each.score}, nx=True)
        try:
            await pipeline.execute()
        except Exception as error:
            # The dispatcher publishes them again in a minute.
            extra = {"count": len(popped)}
            _log.warning("deliveries could not be put back: %s", type(error).__name__, extra=extra)

    def _due(self, timer: asyncio.TimerHandle) -> None:
        popped = self._delayed.pop(timer, None)
        if popped is not None:
            self._aside(self._put([popped]))

    def _aside(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._track(task)
        return task

    def _track(self, task: "asyncio.Task[Any]") -> None:
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    # --- the connection ----------------------------------------------------------------------------------------------
    def _connected(self) -> "Redis":
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import ConnectionError as Disconnected
        except ImportError:
            raise SubscriberFailed(MISSING) from None
        return Redis.from_url(
            self._url,
            socket_connect_timeout=_CONNECT_TIMEOUT,
            socket_timeout=_WAIT + _ANSWER,
            socket_keepalive=True,
            # For a connection that was closed while it was idle; what fails twice is the worker's to try again.
            retry=Retry(NoBackoff(), 1, supported_errors=(Disconnected,)),
            decode_responses=False,
        )

    def _failure(self, error: Exception) -> SubscriberFailed:
        """*error* as a sentence; its own text is not used, a driver may have put the URL there."""
        name, word = type(error).__name__, str(error).partition(" ")[0]
        if name in _REFUSED or word in _REFUSED:
            return SubscriberFailed(f"Redis at {self._where} refuses the credentials of this worker ({name})")
        if word in _BY_WORD:
            return SubscriberFailed(f"Redis at {self._where} {_BY_WORD[word]} ({word})")
        if isinstance(error, OSError) or name in _UNREACHABLE:
            return SubscriberFailed(f"Redis at {self._where} cannot be reached ({name})")
        return SubscriberFailed(f"Redis at {self._where} cannot be used ({name})")

    def __repr__(self) -> str:
        return f"RedisSubscriber({self._where!r})"


_UNREACHABLE: Final = {"ConnectionError", "TimeoutError", "MaxConnectionsError"}
_REFUSED: Final = {
    "AuthenticationError",
    "AuthenticationWrongNumberOfArgsError",
    "AuthorizationError",
    "NoPermissionError",
    "NOAUTH",
    "NOPERM",
    "WRONGPASS",
}
_BY_WORD: Final = {
    "WRONGTYPE": "holds something else than a sorted set under a queue's key",
    "READONLY": "is a read-only replica: name its primary",
    "MOVED": "is a node of a cluster, which is not supported",
    "CROSSSLOT": "is a node of a cluster, which is not supported",
}


def _checked_url(url: object) -> str:
    if isinstance(url, str) and url.isprintable():
        try:
            parts = urlsplit(url)
            parts.port  # noqa: B018 - reading it checks it
        except ValueError:
            parts = urlsplit("")
        if parts.scheme in ("redis", "rediss") or (parts.scheme == "unix" and parts.path):
            return url
    raise ConfigurationError("redis(url) is a URL like redis://host:6379/0")


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
