"""When a daemon that waits for moments is to look next: at the earliest it knows of."""


class Alarm:
    """The earliest known moment, in epoch milliseconds; none at first."""

    def __init__(self) -> None:
        self._at: int | None = None

    def clear(self) -> None:
        """A look begins: what is announced from now on may have escaped it."""
        self._at = None

    def found(self, moment: int) -> None:
        """The look found *moment* to be the next; an earlier one announced meanwhile stands."""
        self._at = moment if self._at is None else min(moment, self._at)

    def hears(self, wake_at: str) -> bool:
        """Whether a look is needed for *wake_at*, which a write of this process announced: it is the earliest known."""
        moment = int(wake_at)
        if self._at is not None and self._at <= moment:
            return False
        self._at = moment
        return True
