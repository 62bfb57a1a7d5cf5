"""The statuses of a run and every legal move between them (infra/docs/protocol.md, "Lifecycle").

Pure: this table decides, the store only guards.
"""

from typing import Final

from endpoint_sdk.wire.messages import Status

TERMINAL: Final[frozenset[Status]] = frozenset({"completed", "failed", "cancelled"})
PARKED: Final[frozenset[Status]] = frozenset({"sleeping", "awaiting_event", "awaiting_retry", "awaiting_child"})
DELIVERABLE: Final[frozenset[Status]] = frozenset({"queued", "running"})

_FROM_WAIT: Final[frozenset[Status]] = frozenset({"queued", "paused", "cancelled"})

LEGAL: Final[dict[Status | None, frozenset[Status]]] = {
    None: frozenset({"queued", "scheduled"}),
    "scheduled": _FROM_WAIT,
    "queued": frozenset({"running", "paused", "cancelled", "stalled"}),
    "running": PARKED.union(("completed", "failed", "cancelled", "queued", "paused", "stalled")),
    "sleeping": _FROM_WAIT,
    "awaiting_event": _FROM_WAIT,
    "awaiting_retry": _FROM_WAIT,
    "awaiting_child": _FROM_WAIT,
    "paused": PARKED.union(("queued", "scheduled", "cancelled")),
    "stalled": frozenset({"queued", "cancelled"}),
    "completed": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}


def is_legal(before: Status | None, after: Status) -> bool:
    """Whether a run may move from *before* (None: not yet born) to *after*."""
    return after in LEGAL[before]


def is_terminal(status: Status) -> bool:
    """Whether a run in *status* has ended for good."""
    return status in TERMINAL
