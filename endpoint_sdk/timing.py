"""How time passes for an execution, and what it leaves to chance: what a test replaces, so that waits cost nothing."""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import msgspec

from endpoint_sdk.server_clock import ServerClock


class Timing(msgspec.Struct, frozen=True):
    """*clock* makes the dispatcher's clock of a grant's server time, *chance* is in [0, 1) and spreads retries.

    A run is parked rather than held for a wait that takes longer than *longest_wait*.
    """

    clock: Callable[[str], ServerClock] = ServerClock
    chance: Callable[[], float] = random.random
    longest_wait: timedelta = timedelta(seconds=10)


REAL: Final = Timing()
