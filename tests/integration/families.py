"""Parents and children for the suites that need them: a parent's claim, what it starts, how its children end."""

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Raw

from dispatcher import children
from dispatcher.store import Session, Statement, schema
from dispatcher.store.children import Child, call_of, of_calls
from dispatcher.store.children import forget as forget_children
from dispatcher.store.waits import Address
from endpoint_sdk.wire.child_messages import ChildrenStarted, ChildStart, StartChildren
from endpoint_sdk.wire.messages import Complete, ErrorObject, Fail, WaitFor
from tests.integration.world import Claim, World

SHIP = Address("child", "ship", "ab", 0)
RESIZE = Address("children", "resize", "cd", 0)


def child(ordinal: int = 0, name: str = "ship", **fields: Any) -> ChildStart:
    """The start of a single child by the call number *ordinal* of its workflow."""
    return ChildStart("child", name, "1", "ab", ordinal, **{"input": Raw(b"1"), **fields})


def many(total: int, *, first: int = 0, count: int | None = None, **fields: Any) -> list[ChildStart]:
    """The starts of *count* of the *total* children of one call, from place *first* on, all by default."""
    last = total if count is None else first + count
    return [
        ChildStart(
            "children", "resize", "1", "cd", 0, **{"input": Raw(b"%d" % index), **fields}, index=index, total=total
        )
        for index in range(first, last)
    ]


def wait_for(address: Address = SHIP) -> WaitFor:
    """A wait for what *address* has started."""
    return WaitFor(address.kind, address.name, address.ordinal, address.args_hash)  # type: ignore[arg-type]


def ship(ordinal: int) -> Address:
    """The call that `child` of that number makes."""
    return SHIP._replace(ordinal=ordinal)


async def start(world: World, claim: Claim, *starts: ChildStart, signals_after: int = 0) -> ChildrenStarted:
    """The answer to the start of these children under *claim*."""
    request = StartChildren(claim.revision, claim.id, list(starts), signals_after)
    return await children.start(world.store, world.keys, claim.run_id, request, claim.token)


async def started(world: World, claim: Claim, *starts: ChildStart) -> list[str]:
    """The ids of these children, none of which is refused."""
    answer = await start(world, claim, *starts)
    ids = [started.id for started in answer.children]
    assert None not in ids, answer
    return [run_id for run_id in ids if run_id is not None]


async def completes(world: World, run_id: str, result: bytes = b"2") -> None:
    """The queued run is claimed and completes."""
    await world.write(await world.claim(run_id), ending=Complete(Raw(result)))


async def fails(world: World, run_id: str, error: ErrorObject | None = None) -> None:
    """The queued run is claimed and fails."""
    await world.write(await world.claim(run_id), ending=Fail(error or ErrorObject("Boom", "no", {"a": 1})))


async def parked(world: World, *starts: ChildStart, waits: Sequence[Address] = (SHIP,)) -> tuple[Claim, list[str]]:
    """A parent that has started these and waits for them, and their ids."""
    claim = await world.claim(await world.submit("family"))
    ids = await started(world, claim, *starts)
    answer = await world.park(claim, *map(wait_for, waits))
    assert answer.parked
    return claim, ids


def outcome(world: World, run_id: str, address: Address = SHIP) -> Any:
    """The value, or the error, of the ended record at *address*; None while there is none."""
    rows = [row for row in world.records(run_id) if row.phase == "ended" and row.kind == address.kind]
    mine = [row for row in rows if (row.name, row.args_hash, row.ordinal) == address[1:]]
    if not mine:
        return None
    [row] = mine
    if row.error is not None:
        return msgspec.json.decode(row.error, type=ErrorObject)
    return msgspec.json.decode(row.value or b"")


def children_of(world: World, run_id: str, address: Address = SHIP) -> list[Child]:
    """The children a call has started, by their place."""
    found = world.store.transact_blocking(lambda session: of_calls(session, run_id, [call_of(address)]))
    return sorted(found, key=lambda row: row.parent_index or 0)


def forget(world: World, run_id: str) -> None:
    """The run has forgotten what it started, as one that begins anew does."""

    def operation(session: Session) -> None:
        forget_children(session, run_id)
        session.run(Statement(sa.delete(schema.record).where(schema.record.c.run_id == run_id)))

    world.store.transact_blocking(operation)


def renumber(world: World, run_id: str, seq: int) -> None:
    """The run's only record has that number."""
    statement = Statement(sa.update(schema.record).where(schema.record.c.run_id == run_id).values(seq=seq))
    world.store.transact_blocking(lambda session: session.run(statement))
