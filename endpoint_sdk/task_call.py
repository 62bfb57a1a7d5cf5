"""One call of a task, from the workflow's asking to its outcome."""

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from endpoint_sdk.addresses import Address, Key
from endpoint_sdk.tasks import Definition

# parked: without a record while records are unconsumed · held: ready, but no task may start · retry: until its next
# attempt · busy: writing a record or making sure of the claim · body, thread: user code runs
Stage = Literal["parked", "held", "retry", "busy", "body", "thread"]


class Outcome(msgspec.Struct, frozen=True):
    """What a call gives back: a value, or an error to raise; `finished_ms` is the record's time."""

    value: Any
    error: Exception | None
    finished_ms: int


class Call:
    """A call the workflow made and has no outcome of yet; `deliver` hands it over, once.

    Bodies see the context variables of the code that called. `key` is known once the call is numbered.
    """

    key: Key

    def __init__(
        self,
        definition: Definition,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        address: Address,
        preview: str,
    ) -> None:
        self.definition = definition
        self.args = args
        self.kwargs = kwargs
        self.address = address
        self.preview = preview
        self.context = contextvars.copy_context()
        self.deliver: Callable[[Outcome], None] = _nobody
        self.stage: Stage = "parked"
        self.driver: asyncio.Task[None] | None = None
        self.retry_at_ms = 0
        self.dropped = False

    def drop(self) -> None:
        """Nobody waits for this call any more: its waits and an `async def` body end, other steps finish unheard."""
        if self.dropped:
            return  # a second cancellation would cut short how the body unwinds
        self.dropped = True
        if self.driver is not None and self.stage in ("held", "retry", "body"):
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
