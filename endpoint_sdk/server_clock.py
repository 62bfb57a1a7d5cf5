"""The dispatcher's time, carried on from a grant: records of all executors are stamped by one clock."""

from endpoint_sdk import monotonic
from endpoint_sdk.wire import clock


class ServerClock:
    """Starts at *server_time*, the moment the dispatcher granted the claim; steps of the host's clock do not matter."""

    def __init__(self, server_time: str) -> None:
        self._start_ms = clock.from_wire(server_time)
        self._start = monotonic.now()

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return self._start_ms + int((monotonic.now() - self._start) * 1000)

    def elapsed(self) -> float:
        """Seconds since some moment before the grant."""
        return monotonic.now()
