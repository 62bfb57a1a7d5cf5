"""A run and its children over several claims, and the workflows and tasks they are made of."""

from collections.abc import Callable
from typing import Any

import msgspec

from endpoint_sdk import Run, Workflow, task, workflow
from endpoint_sdk.wire import messages
from tests.unit.sdk.nursery import Nursery
from tests.unit.sdk.replay_lab import MemoryPort, execute, plain


class Order(msgspec.Struct):
    """What the children are given."""

    id: str
    cents: int = 0


class Receipt(msgspec.Struct):
    """What they return."""

    number: str


@workflow("kid", version="1.2.0")
async def kid(run: Run, order: Order) -> Receipt:
    return Receipt(order.id)


@workflow("tick")
async def tick(run: Run) -> None:
    del run


@task
async def echo(value: Any) -> Any:
    return value


class Family:
    """A run and its children over several claims; the port of each finds what the one before left."""

    def __init__(self, parent: Workflow[None, Any]) -> None:
        self.parent = parent
        self.port = MemoryPort()

    @property
    def nursery(self) -> Nursery:
        return self.port.nursery

    async def claim(self) -> Any:
        """How the next execution ends; what waits for children that have ended is answered before it."""
        for wait in self.port.parks[-1] if self.port.parks else []:
            outcome = self.nursery.outcome(wait, 2_000)
            known = {(each.kind, each.name, each.args_hash, each.ordinal, each.phase) for each in self.port.records}
            if outcome is not None and (*address(wait), "ended") not in known:
                self.port.records.append(outcome)
        ended, _ = await execute(self.parent, list(self.port.records), port=self.port)
        return plain(ended)

    def complete(self, values: Callable[[int], Any]) -> None:
        """Every child has returned what *values* has for its index."""
        for child in self.nursery.running:
            self.nursery.complete(child, values(child.index))


def address(wait: messages.WaitFor) -> tuple[str, str, str, int]:
    """The call that *wait* is of."""
    return wait.kind, wait.name, wait.args_hash, wait.ordinal
