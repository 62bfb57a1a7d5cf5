"""Looking at children: the list people see, and the outcomes the claim holder of their parent reads."""

from itertools import accumulate
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from dispatcher import claims, lifecycle
from dispatcher.runs import find
from dispatcher.secrets import ServerKeys
from dispatcher.store import Session, Store, children
from dispatcher.store.children import Child
from endpoint_sdk.wire import clock, limits
from endpoint_sdk.wire.child_messages import ChildOutcome, ChildOutcomes
from endpoint_sdk.wire.messages import ErrorObject
from endpoint_sdk.wire.operating import ChildView

_ENVELOPE: Final = 256
_ERROR: Final = msgspec.json.Decoder(ErrorObject)


async def list_(
    store: Store, namespace: str, run_id: str, *, status: str | None, limit: int, after: str
) -> tuple[list[ChildView], str | None]:
    """Up to *limit* children of the run beyond the id *after*, oldest first, and the cursor of the next page.

    Raises NotFound.
    """

    def operation(session: Session) -> list[Child]:
        find(session, namespace, run_id)
        return children.page(session, run_id, status=status, after=after, limit=limit + 1)

    found = await store.transact(operation)
    return [_view(row) for row in found[:limit]], found[limit - 1].id if len(found) > limit else None


async def outcomes(store: Store, keys: ServerKeys, run_id: str, token: str, call: str, after: int) -> ChildOutcomes:
    """What became of the children of *call* beyond the place *after*, in order: at most 1 000 of them, or 4 MiB.

    Raises Unauthorized for a token that is not the current claim's, NotFound when there is no such run.
    """

    def operation(session: Session) -> tuple[list[Child], int | None]:
        claims.check_held(session, keys, run_id, token)
        sizes = children.sizes(session, run_id, call, after=after, limit=limits.GRANT_RECORDS + 1)
        count = _fitting([size for _place, size in sizes])
        if not count:
            return [], None
        last = sizes[count - 1][0]
        found = children.between(session, run_id, call, first=after + 1, last=last)
        return found, last if count < len(sizes) else None

    found, cursor = await store.transact(operation)
    return ChildOutcomes([_outcome(row) for row in found], cursor)


def _fitting(sizes: list[int]) -> int:
    """How many of the outcomes of these *sizes* a page holds; one always."""
    sums = accumulate(size + _ENVELOPE for size in sizes[: limits.GRANT_RECORDS])
    fitting = sum(total <= limits.GRANT_BYTES for total in sums)
    return max(fitting, min(len(sizes), 1))


def _outcome(row: Child) -> ChildOutcome:
    ended = lifecycle.is_terminal(row.status)
    return ChildOutcome(
        index=row.parent_index or 0,
        id=row.id,
        status=row.status,
        result=Raw(row.result or b"null") if row.status == "completed" else UNSET,
        error=_ERROR.decode(row.error) if ended and row.error is not None else None,
    )


def _view(row: Child) -> ChildView:
    address = None if row.parent_call is None else children.address_of(row.parent_call)
    return ChildView(
        id=row.id,
        workflow=row.workflow,
        version=row.version,
        status=row.status,
        reason=row.reason,
        kind=None if address is None else address.kind,  # type: ignore[arg-type]  # only wire values are ever stored
        name=None if address is None else address.name,
        args_hash=None if address is None else address.args_hash,
        ordinal=None if address is None else address.ordinal,
        index=row.parent_index if address is not None else None,
        created_at=clock.to_wire(row.created_at),
        finished_at=None if row.finished_at is None else clock.to_wire(row.finished_at),
    )
