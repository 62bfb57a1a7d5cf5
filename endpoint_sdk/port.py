"""The seam between a run's replay and the claim it runs under."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from endpoint_sdk.wire import child_messages, messages


class Port(Protocol):
    """What an engine needs of its claim."""

    async def write(self, record: messages.RecordIn) -> None:
        """Returns once *record* is acknowledged; requests go out one at a time, in the order of the calls.

        Raises RecordRefused on a definite refusal, and any other exception when the outcome will never be known: the
        engine then stops quietly.
        """

    async def fence(self) -> None:
        """Returns when a task body may start now; raises when the claim is lost."""

    async def park(self, waits: Sequence[messages.WaitFor], *, told: bool = False) -> Sequence[messages.Record] | None:
        """Gives the run up until one of *waits* is answered: None once it is parked, and the claim is gone.

        *told* says that the workflow's code has been told of a standing cancel.

        A refused park leaves the claim as it was; the outcomes the dispatcher has recorded since, in their order.
        Raises RecordRefused when the dispatcher will never take these waits, and as `write` otherwise. No other call
        is made before it returns.
        """

    async def start_children(
        self, starts: Sequence[child_messages.ChildStart]
    ) -> Sequence[child_messages.StartedChild]:
        """The children of *starts*, in their order, or why one was refused.

        Requests go out in the order of the calls, those of `write` among them, and what is asked for at once shares
        one; at most 500 starts a call. Raises as `write`.
        """

    async def child_outcomes(self, parent_call: str) -> Sequence[child_messages.ChildOutcome]:
        """What became of all children of *parent_call* ("kind:args_hash:ordinal:name"), by index.

        Raises PayloadError where this process cannot read one, and as `fence`.
        """

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


class Retried(msgspec.Struct, frozen=True):
    """The handler raised, and the run is to begin its next attempt in *delay_ms*."""

    error: messages.ErrorObject
    delay_ms: int


class Restarted(msgspec.Struct, frozen=True):
    """The run begins anew with this input."""

    value: msgspec.Raw


class Cancelled(msgspec.Struct, frozen=True):
    """The handler has undone what it wanted undone, and the cancel it was told of takes effect."""


class Suspended(msgspec.Struct, frozen=True):
    """No task may start here, and the run could go on at once elsewhere."""


class Parked(msgspec.Struct, frozen=True):
    """Every branch waits, the dispatcher knows for what, and the claim is given up."""


class Diverged(msgspec.Struct, frozen=True):
    """The code does not fit the records; `details` says what is recorded and what is new."""

    details: dict[str, Any]


class Lost(msgspec.Struct, frozen=True):
    """The claim is gone, or a write's outcome will never be known: recovery takes over."""


Decided = Completed | Failed | Retried | Restarted | Cancelled
Ended = Decided | Suspended | Parked | Diverged | Lost
