"""The seam between a run's replay and the claim it runs under."""

from datetime import timedelta
from typing import Any, Protocol

import msgspec

from endpoint_sdk.wire import messages


class Port(Protocol):
    """What an engine needs of its claim."""

    async def write(self, record: messages.RecordIn) -> None:
        """Returns once *record* is acknowledged; requests go out one at a time, in the order of the calls.

        Raises RecordRefused on a definite refusal, and any other exception when the outcome will never be known: the
        engine then stops quietly.
        """

    async def fence(self) -> None:
        """Returns when a task body may start now; raises when the claim is lost."""

    def remaining(self) -> timedelta | None:
        """The host's time left, None where it has no limit."""

    def leaving(self) -> bool:
        """Whether no further task may start on this executor."""


class Completed(msgspec.Struct, frozen=True):
    """The handler returned."""

    result: msgspec.Raw


class Failed(msgspec.Struct, frozen=True):
    """The handler raised, or its input or result does not fit."""

    error: messages.ErrorObject


class Suspended(msgspec.Struct, frozen=True):
    """Every branch waits; `delay` is None when the run could go on at once, else the time to its earliest retry."""

    delay: timedelta | None


class Diverged(msgspec.Struct, frozen=True):
    """The code does not fit the records; `details` says what is recorded and what is new."""

    details: dict[str, Any]


class Lost(msgspec.Struct, frozen=True):
    """The claim is gone, or a write's outcome will never be known: recovery takes over."""


Ended = Completed | Failed | Suspended | Diverged | Lost
