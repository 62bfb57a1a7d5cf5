"""Reads what does not fit into one answer, page by page."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from endpoint_sdk import calls
from endpoint_sdk.exchange import Abandoned
from endpoint_sdk.wire import child_messages, messages

T = TypeVar("T")

# Sends a call until its outcome is known, which is neither a loss nor silence; and when it was sent.
Settle = Callable[[calls.Call[Any]], Awaitable[tuple[calls.Accepted[Any] | calls.Refused, float]]]


async def whole(settle: Settle, grant: messages.Grant) -> messages.Grant:
    """*grant* with all records of its run; raises Abandoned where a page is refused, and as *settle*."""
    records, after = list(grant.records), grant.records_after
    cursor: int | str | None = after
    while cursor is not None:
        page = await _read(settle, calls.records(grant, cursor))
        records += page.items
        cursor = page.next
    return grant if after is None else msgspec.structs.replace(grant, records=records, records_after=None)


async def child_outcomes(settle: Settle, grant: messages.Grant, parent_call: str) -> list[child_messages.ChildOutcome]:
    """What became of every child of *parent_call*, by index; raises as `whole`."""
    found: list[child_messages.ChildOutcome] = []
    after: int | None = None
    while True:
        page = await _read(settle, calls.child_outcomes(grant, parent_call, after))
        found += page.items
        after = page.next
        if after is None:
            return found


async def _read(settle: Settle, call: calls.Call[T]) -> T:
    outcome, _ = await settle(call)
    if isinstance(outcome, calls.Refused):
        raise Abandoned
    value: T = outcome.value
    return value
