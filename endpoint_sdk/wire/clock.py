"""Times on the wire: RFC 3339 in UTC with milliseconds; inside, integers of milliseconds since the epoch."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = 253_402_300_799_999


def to_wire(epoch_ms: int) -> str:
    """*epoch_ms* as `2026-12-01T10:00:00.000Z`; clamped to the years 1970 to 9999."""
    moment = _EPOCH + timedelta(milliseconds=min(max(epoch_ms, 0), _LAST))
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def from_wire(text: str) -> int:
    """Milliseconds since the epoch of an RFC 3339 time that names its offset.

    Raises ValueError for anything else, a time without an offset included.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time needs its offset from UTC")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def known_ms(text: str | None) -> int:
    """Milliseconds since the epoch of *text*; 0 where there is none."""
    return 0 if text is None else from_wire(text)
