"""When a message that is not settled comes again, on every transport that lets its receiver say so."""

from collections.abc import Mapping
from typing import Final, Literal

Unsettled = Literal["retry", "busy", "unknown-workflow", "unauthorized", "invalid"]

# Seconds the first time and at most; they double with every receive in between.
_DELAYS: Final[Mapping[Unsettled, tuple[int, int]]] = {
    "retry": (5, 900),
    "busy": (0, 0),
    "unknown-workflow": (30, 30),
    "unauthorized": (60, 900),
    "invalid": (60, 900),
}


def delay(result: Unsettled, receives: int) -> int:
    """Seconds until a message received *receives* times (from 1) should come again; 0 is at once."""
    first, most = _DELAYS[result]
    return min(first << min(max(receives, 1) - 1, 16), most)
