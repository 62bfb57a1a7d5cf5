"""A queue is the backlog of one (namespace, workflow, version, pool), named by the same key everywhere."""

from typing import NamedTuple
from urllib.parse import quote, unquote

from dispatcher import errors
from endpoint_sdk.wire import limits, queues


class Queue(NamedTuple):
    """What decides by which route a run may be delivered."""

    namespace: str
    workflow: str
    version: str
    pool: str

    def key(self) -> str:
        """The parts, each percent-encoded, joined by colons; two queues never share a key."""
        return queues.key(*self)

    def checked_key(self) -> str:
        """As `key`. Raises Unprocessable `queue_too_long` for names that no database could index together."""
        key = self.key()
        if len(key) > limits.MAX_QUEUE_KEY:
            raise errors.Unprocessable(
                "queue_too_long",
                f"Namespace, workflow, version and pool have {len(key)} characters together, percent-encoded; "
                f"{limits.MAX_QUEUE_KEY} are possible.",
                hint="Choose shorter names, or names in ASCII.",
            )
        return key

    @staticmethod
    def prefix(namespace: str) -> str:
        """How the keys of all queues of *namespace*, and of no other, begin."""
        return quote(namespace, safe="") + ":"

    @classmethod
    def from_key(cls, key: str) -> "Queue":
        """The queue whose `key()` is *key*."""
        return cls(*(unquote(part) for part in key.split(":")))
