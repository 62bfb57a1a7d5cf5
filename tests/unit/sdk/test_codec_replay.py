"""What a workflow sees of a result is the same on the first run and on every replay of it."""

import dataclasses
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pytest

from endpoint_sdk import Run, Workflow, task, workflow
from endpoint_sdk.testing import WorkflowTester


@dataclasses.dataclass
class Paid:
    cents: int


@dataclasses.dataclass
class Declined:
    cents: int


@attrs.define
class Line:
    sku: str
    price: Decimal


class Parcel(msgspec.Struct):
    id: UUID
    lines: list[Line]
    sent: date | None = None


VALUES: list[tuple[Any, Any]] = [
    (Paid | Declined, Declined(5)),
    (list[Paid | Declined], [Paid(1), Declined(2)]),
    (Parcel, Parcel(UUID(int=7), [Line("tea", Decimal("1.10"))], date(2026, 12, 1))),
    (dict[int, timedelta], {1: timedelta(days=1, microseconds=5)}),
    (datetime, datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Rome"))),
    (tuple[bytes, set[int]], (b"\x00", {1, 2})),
    (Any, Paid(5)),
    (Any, (1, {2: "two"})),
]


def _returning(annotation: Any, value: Any, seen: list[Any]) -> Workflow[None, str]:
    async def give() -> Any:
        return value

    give.__annotations__["return"] = annotation
    given = task(name="give")(give)

    @workflow("giving")
    async def giving(run: Run) -> str:
        seen.append(await run.task(given))
        await run.sleep("a day", timedelta(days=1))
        return "done"

    return giving


@pytest.mark.parametrize(("annotation", "value"), VALUES)
def test_a_replay_sees_what_the_first_run_saw(annotation: Any, value: Any) -> None:
    """Equal and of the same types, down to what an unannotated dataclass or tuple turns into."""
    seen: list[Any] = []

    assert WorkflowTester().run(_returning(annotation, value, seen)) == "done"

    first, *replayed = seen
    assert replayed
    for again in replayed:
        assert (again, repr(again)) == (first, repr(first))
    if annotation is not Any:
        assert (first, type(first)) == (value, type(value))
