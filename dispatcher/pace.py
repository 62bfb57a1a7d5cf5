"""How often somebody is looked at: each minute while all is well, soon again and then ever later while it is not."""

from typing import Final, NamedTuple

_FIRST_RETRY: Final = 1.0
_LONGEST_RETRY: Final = 60.0
_REFRESH: Final = 60.0


class Pace(NamedTuple):
    """When to look next, and how long to wait should that look find a failure; monotonic seconds."""

    at: float = 0.0
    wait: float = _FIRST_RETRY

    def after(self, now: float, *, well: bool) -> "Pace":
        """The pace after a look at *now*: again in 60 s, or after 1 s, 2 s, 4 s … 60 s of failures in a row."""
        if well:
            return Pace(now + _REFRESH)
        return Pace(now + self.wait, min(self.wait * 2, _LONGEST_RETRY))
