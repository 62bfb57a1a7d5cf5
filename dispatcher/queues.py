"""A queue is the backlog of one (namespace, workflow, version, pool), named by the same key everywhere."""

from typing import NamedTuple
from urllib.parse import quote, unquote


class Queue(NamedTuple):
    """What decides by which route a run may be delivered."""

    namespace: str
    workflow: str
    version: str
    pool: str

    def key(self) -> str:
        """The parts, each percent-encoded, joined by colons; two queues never share a key."""
        return ":".join(quote(part, safe="") for part in self)

    @classmethod
    def from_key(cls, key: str) -> "Queue":
        """The queue whose `key()` is *key*."""
        return cls(*(unquote(part) for part in key.split(":")))
