"""Redis: a delivery is a member of its queue's sorted set, scored by rank; the set keeps a republished one once.

A member is the JSON of `{"headers", "body"}`, signed as of when its run became queued at the delivery's revision: a
republish of the same revision under the same keys is the same member, which ZADD does not add again. A set to which
nothing was added for a week is gone: what nobody read, of an old version say, is not kept for ever.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, Protocol, Self

import msgspec

from endpoint_sdk.wire.messages import Signed
from endpoint_sdk.wire.queues import redis_key
from publishers import faults
from publishers.base import Due, Health, Outcome, Target
from publishers.faults import Fault
from publishers.message import signed

PROBE_KEY: Final = "pointsman:check"

_encode: Final = msgspec.json.Encoder().encode
_LOST: Final = Fault("unknown", "The connection to Redis was lost after the delivery was sent.")
_LOADING: Final = Fault("broker_unreachable", "Redis is loading its data set.")
_REFUSED: Final = Fault("credentials_refused", "Redis refused the user name, the password or the permission.")
_REPLICA: Final = Fault("queue_wrong_kind", "Redis is a read-only replica; publish to its primary.")
_NO_REDIS: Final = Fault("queue_wrong_kind", "What answers there does not speak Redis's protocol.")
_FULL: Final = Fault("throttled", "Redis is at its memory limit (OOM).")
_MASTER_DOWN: Final = Fault("broker_unreachable", "Redis is a replica without its primary (MASTERDOWN).")
_CLUSTER: Final = "Redis is a node of a cluster ({}), which is not supported."
_BY_WORD: Final[Mapping[str, Fault]] = {
    "WRONGTYPE": Fault("queue_wrong_kind", "The queue's key holds something else than a sorted set (WRONGTYPE)."),
    "MISCONF": Fault("broker_unreachable", "Redis takes no writes, because it cannot save them (MISCONF)."),
    "NOREPLICAS": Fault("broker_unreachable", "Redis takes no writes without enough replicas (NOREPLICAS)."),
    "BUSY": Fault("broker_unreachable", "Redis is busy with a script (BUSY)."),
}

_KEEP_SECONDS: Final = 7 * 86_400


class Pipeline(Protocol):
    """What the publisher needs of `redis.asyncio`'s pipeline."""

    def zadd(self, name: str, mapping: Mapping[bytes, float]) -> Any: ...
    def expire(self, name: str, time: int) -> Any: ...
    async def execute(self, raise_on_error: bool = True) -> list[Any]: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...


class Client(Protocol):
    """What the publisher needs of `redis.asyncio.Redis`."""

    def client(self) -> Any: ...
    def pipeline(self, transaction: bool = True) -> Any: ...
    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]: ...


class RedisPublisher:
    """Publishes to one Redis database over *client*, which it shares and never closes.

    The client retries nothing by itself (`retry=Retry(NoBackoff(), 0)`), takes at most 2 s to connect
    (`socket_connect_timeout`) and 4 s to answer (`socket_timeout`), and has connections for four calls at once. It does
    not decode responses, or does: nothing here depends on it.
    """

    def __init__(self, target: Target, client: Client) -> None:
        self._target = target
        self._client = client
        self._closed = False

    async def publish(self, due: Sequence[Due]) -> list[Outcome]:
        """What became of each delivery: one round trip for all of them, 20 s at most."""
        if not due:
            return []
        if self._closed or not self._target.secrets:
            fault = faults.CLOSED if self._closed else faults.UNSIGNED
            return [fault.outcome()] * len(due)
        queues: dict[str, dict[bytes, float]] = {}
        for each in due:
            queues.setdefault(queue_key(each), {})[self._member(each)] = each.rank
        found = await self._add(queues)
        return [found[queue_key(each)] for each in due]

    async def check(self) -> Health:
        """Whether Redis takes deliveries: within 5 s, by adding nothing to a sorted set of ours."""
        if self._closed:
            return faults.CLOSED.health()
        try:
            async with asyncio.timeout(faults.CHECK_SECONDS):
                fault = await self._probe()
                if fault is not None and fault.code == "broker_unreachable":
                    fault = await self._probe()  # The first may have met a connection Redis closed while it was idle.
        except TimeoutError:
            fault = faults.NO_ANSWER
        return fault.health() if fault else faults.ACTIVE

    async def close(self) -> None:
        """Nothing is published any more; the client belongs to whoever made it. Can be repeated."""
        self._closed = True

    async def _probe(self) -> Fault | None:
        try:
            # Removing a member nobody added needs the permission to write, and changes nothing.
            await self._client.execute_command("ZREM", PROBE_KEY, "")
        except Exception as error:
            return _reason(error, connected=False)
        return None

    async def _add(self, queues: Mapping[str, Mapping[bytes, float]]) -> dict[str, Outcome]:
        try:
            async with asyncio.timeout(faults.PUBLISH_SECONDS):
                found = await self._try(queues)
                if found is _LOST:
                    # Most likely a connection that Redis closed while it was idle. Adding what is there adds nothing.
                    found = await self._try(queues)
        except TimeoutError:
            found = faults.SILENT
        if isinstance(found, Fault):
            return dict.fromkeys(queues, found.outcome())
        return {key: _outcome(result) for key, result in zip(queues, found, strict=True)}

    async def _try(self, queues: Mapping[str, Mapping[bytes, float]]) -> list[Any] | Fault:
        try:
            # Until a connection is there nothing was sent, for certain; the pipeline takes the one returned here.
            async with asyncio.timeout(faults.PUBLISH_SECONDS / 2), self._client.client():
                pass
        except TimeoutError:
            return faults.unreachable("Redis")
        except Exception as error:
            return _reason(error, connected=False)
        try:
            return await self._execute(queues)
        except Exception as error:
            return _reason(error, connected=True)

    async def _execute(self, queues: Mapping[str, Mapping[bytes, float]]) -> list[Any]:
        pipeline: Pipeline
        async with self._client.pipeline(transaction=False) as pipeline:
            for key, members in queues.items():
                pipeline.zadd(key, members)
                pipeline.expire(key, _KEEP_SECONDS)
            # What became of the expiry is nobody's concern: a user without the permission leaves sets behind.
            return (await pipeline.execute(raise_on_error=False))[::2]

    def _member(self, due: Due) -> bytes:
        headers, body = signed(due.delivery, self._target.secrets, due.queued_at // 1000)
        return _encode(Signed(headers, body.decode()))

    def __repr__(self) -> str:
        return f"RedisPublisher({self._target!r})"


def queue_key(due: Due) -> str:
    """The key of the sorted set a delivery belongs to: `pointsman:` and the percent-encoded parts of its queue."""
    delivery = due.delivery
    return redis_key(delivery.namespace, delivery.workflow, delivery.version, due.pool)


def _outcome(result: object) -> Outcome:
    if isinstance(result, Exception):
        return _reason(result, connected=True).outcome()
    return faults.ACCEPTED


def _reason(error: Exception, *, connected: bool) -> Fault:
    from redis import exceptions

    nobody = faults.unreachable("Redis", error)
    by_type: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Fault], ...] = (
        (exceptions.BusyLoadingError, _LOADING),
        ((exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError), _REFUSED),
        (exceptions.ReadOnlyError, _REPLICA),
        (exceptions.OutOfMemoryError, _FULL),
        (exceptions.AskError, Fault("queue_wrong_kind", _CLUSTER.format("MOVED"))),
        (exceptions.MasterDownError, _MASTER_DOWN),
        (exceptions.ClusterDownError, Fault("queue_wrong_kind", _CLUSTER.format("CLUSTERDOWN"))),
        (exceptions.InvalidResponse, _NO_REDIS),
        (exceptions.TimeoutError, faults.SILENT if connected else nobody),
        ((exceptions.ConnectionError, OSError), _LOST if connected else nobody),
    )
    for kinds, fault in by_type:
        if isinstance(error, kinds):
            return fault
    # An error's first word is Redis's machine code; the rest may quote what was sent.
    word = str(error).partition(" ")[0]
    known = _BY_WORD.get(word)
    shown = word if word.isalpha() and word.isupper() and len(word) <= 40 else type(error).__name__
    return known or Fault("broker_refused", f"Redis refused the command ({shown}).")
