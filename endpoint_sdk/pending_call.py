"""One thing a workflow asked for, from the asking to its outcome."""

import contextvars
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from endpoint_sdk.addresses import Address, Key
from endpoint_sdk.wire import messages

if TYPE_CHECKING:
    import asyncio

# parked: without a record while records are unconsumed · held: ready, but no task may start · retry: until its next
# attempt · waiting: a sleep or an event · busy: writing a record or making sure of the claim · body, thread: user code
Stage = Literal["parked", "held", "retry", "waiting", "busy", "body", "thread"]


class Outcome(msgspec.Struct, frozen=True):
    """What a call gives back: a value, or an error to raise; `finished_ms` is the record's time."""

    value: Any
    error: Exception | None
    finished_ms: int


class Call(ABC):
    """A call the workflow made and has no outcome of yet; `deliver` hands it over, once.

    Bodies see the context variables of the code that called. `key` is known once the call is numbered; `due_ms` is
    when its wait is over by itself, in epoch milliseconds, None for never.
    """

    key: Key
    # Whether an outcome is read only after `HandOut` has fetched what belongs to it.
    fetches = False

    def __init__(self, address: Address, preview: str | None) -> None:
        self.address = address
        self.preview = preview
        self.context = contextvars.copy_context()
        self.deliver: Callable[[Outcome], None] = _nobody
        self.stage: Stage = "parked"
        # The task of the branch that made it; of a `def` handler, what its thread blocks on.
        self.waiter: object = None
        self.driver: asyncio.Task[None] | None = None
        self.due_ms: int | None = None
        self.dropped = False
        self.answered = False

    def keyed(self, number: Callable[[Address], Key]) -> Key:
        """The key of this call, which *number* gives the next one at its address."""
        return number(self.address)

    @abstractmethod
    def read(self, record: messages.Record, run_id: str) -> Outcome:
        """What the workflow sees of *record*; raises PayloadError when the code can no longer read it."""

    @abstractmethod
    def wait(self) -> messages.WaitFor:
        """What a parked run waits for on behalf of this call."""

    @property
    def rests(self) -> bool:
        """Whether nothing but time or the dispatcher can move this call on."""
        return self.stage in ("retry", "waiting")

    def drop(self) -> None:
        """Nobody waits for this call any more: its waits and an `async def` body end, other steps finish unheard."""
        if self.dropped:
            return  # a second cancellation would cut short how the body unwinds
        self.dropped = True
        if self.driver is not None and self.stage in ("held", "retry", "waiting", "body"):
            self.driver.cancel()

    def answer(self) -> None:
        """The dispatcher has recorded the outcome: what waits for it here ends."""
        self.answered = True
        if self.driver is not None and self.rests:
            self.driver.cancel()

    def view(self) -> dict[str, Any]:
        """The call for people."""
        return {
            "kind": self.address.kind,
            "name": self.address.name,
            "ordinal": self.key.ordinal,
            "preview": self.preview,
        }


def _nobody(_: Outcome) -> None:
    """The taker of an outcome before there is one."""
