"""What fails a test rather than the run under test; all of it is an AssertionError, which no `except` of a workflow
turns into an ordinary failure of the run."""

from typing import Any


class WorkflowStuck(AssertionError):
    """The run waits for something that will not come by itself."""


class ReplayDiverged(AssertionError):
    """The code does not fit its history; `details` says what was recorded and what is new."""

    def __init__(self, message: str, details: dict[str, Any]) -> None:
        super().__init__(message)
        self.details = details


class StubUsedUp(AssertionError):
    """A stub was asked for more outcomes than it has."""


class Faults:
    """The first thing that fails the test, kept however the code under test takes it."""

    def __init__(self) -> None:
        self._first: Exception | None = None

    @property
    def any(self) -> bool:
        """Whether the test has failed."""
        return self._first is not None

    def note(self, fault: Exception) -> Exception:
        """*fault*, which is remembered unless there was one before."""
        self._first = self._first or fault
        return fault

    def check(self) -> None:
        """Raises what was noted, once."""
        fault, self._first = self._first, None
        if fault is not None:
            raise fault
