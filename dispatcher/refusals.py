"""Brokers that take nothing, for whatever reason lies with them: left alone for a while, then tried with one delivery.

Meanwhile their backlog is pending and due: the next publisher of a route or any poller may have it, and nothing but
what the broker was tried with has to wait out a backoff once it is back.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from dispatcher import backoff
from dispatcher.outcomes import UNKNOWN
from publishers.base import Outcome

# What they are about is the broker; `broker_refused` and `too_large` are about one delivery.
REASONS: Final = frozenset(
    {"broker_unreachable", "queue_missing", "queue_wrong_kind", "credentials_refused", "throttled", "closed"}
)

_FIRST_MS: Final = 1_000
_LONGEST_MS: Final = 30_000


class Refusal(NamedTuple):
    """How many batches in a row were refused, and the monotonic time at which the broker may be tried again."""

    batches: int
    until: float


class Refusals:
    """The brokers that took nothing since they last refused, by publisher id; *clock* is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, Refusal] = {}

    def __contains__(self, publisher_id: str) -> bool:
        return publisher_id in self._known

    def is_paused(self, publisher_id: str) -> bool:
        """Whether the broker is not to be tried yet."""
        refusal = self._known.get(publisher_id)
        return refusal is not None and self._clock() < refusal.until

    def note(self, publisher_id: str, outcomes: Sequence[Outcome]) -> bool:
        """A batch of the broker ended so; answers whether it begins to refuse, or to take, with that.

        What was refused for itself, or perhaps arrived, says nothing of the broker. Batches under way together are
        refused together, and lengthen the pause once.
        """
        known = publisher_id in self._known
        if any(outcome.kind == "published" and outcome.row != UNKNOWN for outcome in outcomes):
            self._known.pop(publisher_id, None)
            return known
        if not any(outcome.kind == "failed" and outcome.row in REASONS for outcome in outcomes):
            return False
        if not self.is_paused(publisher_id):
            batches = self._known[publisher_id].batches + 1 if known else 1
            pause_ms = backoff.after_failures(
                batches,
                _FIRST_MS,
                _LONGEST_MS,
                random.random(),  # noqa: S311 - jitter, not a secret
            )
            self._known[publisher_id] = Refusal(batches, self._clock() + pause_ms / 1_000)
        return not known
