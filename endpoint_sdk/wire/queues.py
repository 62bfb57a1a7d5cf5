"""The name of a queue, the same for the dispatcher, its publishers and the subscribers of workers."""

from typing import Final
from urllib.parse import quote

_REDIS: Final = "pointsman:"


def key(namespace: str, workflow: str, version: str, pool: str) -> str:
    """The parts, each percent-encoded, joined by colons; two queues never share a key."""
    return ":".join(quote(part, safe="") for part in (namespace, workflow, version, pool))


def redis_key(namespace: str, workflow: str, version: str, pool: str) -> str:
    """The sorted set that holds the queue's deliveries, scored by rank."""
    return _REDIS + key(namespace, workflow, version, pool)
