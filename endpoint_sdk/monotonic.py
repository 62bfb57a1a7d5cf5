"""A clock that only moves forward and goes on while the machine is suspended.

A frozen sandbox or a sleeping laptop ages its claims all the same, so the self-fence (infra/docs/protocol.md, I15)
must see that time; `time.monotonic` on Linux does not count a suspended machine.
"""

import time
from collections.abc import Callable
from typing import Final

Clock = Callable[[], float]

_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Seconds since an arbitrary start, suspended time included where the platform can tell."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
