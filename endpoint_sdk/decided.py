"""How an execution ends, and how that goes to the dispatcher."""

import asyncio
from typing import Literal

from endpoint_sdk import port
from endpoint_sdk.wire import messages


def ending_of(ended: port.Ended, leaving: Literal["handoff", "drain", "pause"]) -> messages.Ending | None:
    """The ending that is still to be written; *leaving* is why a suspended run is released.

    None where there is none: a park is written already, and a lost claim can write nothing.
    """
    if isinstance(ended, port.Suspended):
        return messages.Release(leaving)
    if isinstance(ended, port.Diverged):
        return messages.Stall("divergence", ended.details)
    return _of_the_handler(ended) if isinstance(ended, port.Decided) else None


def _of_the_handler(decided: port.Decided) -> messages.Ending:
    match decided:
        case port.Completed(result):
            return messages.Complete(result)
        case port.Failed(error):
            return messages.Fail(error)
        case port.Retried(error, delay_ms):
            return messages.Retry(error, delay_ms)
        case port.Restarted(value):
            return messages.Restart(value)
        case port.Cancelled():
            return messages.Cancelled()


class End:
    """How an execution ends, once that is decided."""

    def __init__(self) -> None:
        self.known = asyncio.Event()
        self._ended: port.Ended | None = None

    @property
    def final(self) -> port.Ended:
        """How it ended; only once that is known."""
        assert self._ended is not None
        return self._ended

    @property
    def by_the_handler(self) -> bool:
        """Whether what the handler did has ended the run."""
        return isinstance(self._ended, port.Decided)

    def decide(self, ended: port.Ended) -> None:
        """The first end stands, but a park or a loss overrules it: what was decided cannot be written any more."""
        overrules = isinstance(ended, port.Parked | port.Lost) and not isinstance(self._ended, port.Parked)
        if self._ended is None or overrules:
            self._ended = ended
        self.known.set()
