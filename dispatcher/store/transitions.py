"""The history of a run: one row per status move, which is also the table of request ids (I6)."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from dispatcher.store.schema import now
from dispatcher.store.schema import run_transition as t
from dispatcher.store.session import Session, Statement, columns_of


class Transition(msgspec.Struct, frozen=True):
    run_id: str
    revision: int
    from_status: str | None
    status: str
    reason: str | None
    actor: str
    request_id: str | None
    at: int
    details: str | None


_COLUMNS: Final = columns_of(Transition, t)
_APPEND: Final = Statement(
    sa.insert(t).values(
        run_id=sa.bindparam("b_run_id"),
        revision=sa.bindparam("b_revision"),
        from_status=sa.bindparam("b_from"),
        status=sa.bindparam("b_status"),
        reason=sa.bindparam("b_reason"),
        actor=sa.bindparam("b_actor"),
        request_id=sa.bindparam("b_request_id"),
        at=now,
        details=sa.bindparam("b_details"),
    )
)
_AT: Final = Statement(
    sa.select(*_COLUMNS).where(t.c.run_id == sa.bindparam("b_run_id"), t.c.revision == sa.bindparam("b_revision"))
)
_PAGE: Final = Statement(
    sa.select(*_COLUMNS)
    .where(t.c.run_id == sa.bindparam("b_run_id"), t.c.revision > sa.bindparam("b_after", type_=sa.Integer()))
    .order_by(t.c.revision)
    .limit(sa.bindparam("b_limit", type_=sa.Integer()))
)
_LAST: Final = Statement(
    sa.select(*_COLUMNS).where(t.c.run_id == sa.bindparam("b_run_id")).order_by(t.c.revision.desc()).limit(1)
)


def append(
    session: Session,
    run_id: str,
    revision: int,
    before: str | None,
    after: str,
    *,
    reason: str | None,
    actor: str,
    request_id: str | None,
    details: dict[str, Any] | None = None,
) -> None:
    """The move to *revision* is in the run's history."""
    session.run(
        _APPEND,
        b_run_id=run_id,
        b_revision=revision,
        b_from=before,
        b_status=after,
        b_reason=reason,
        b_actor=actor,
        b_request_id=request_id,
        b_details=msgspec.json.encode(details).decode() if details else None,
    )


def append_births(session: Session, run_ids: Iterable[str], *, reason: str, actor: str) -> None:
    """The births of these runs, queued at revision 0 by no request of their own, are in their histories."""
    born = {
        "b_revision": 0,
        "b_from": None,
        "b_status": "queued",
        "b_reason": reason,
        "b_actor": actor,
        "b_request_id": None,
        "b_details": None,
    }
    session.run_many(_APPEND, [{"b_run_id": run_id, **born} for run_id in run_ids])


def at(session: Session, run_id: str, revision: int) -> Transition | None:
    """The move that took the run to *revision*."""
    row = session.one(_AT, b_run_id=run_id, b_revision=revision)
    return Transition(*row) if row else None


def carries(session: Session, run_id: str, revision: int, request_id: str) -> bool:
    """Whether the move to *revision* was made by this request: then the request is a repeat (I6)."""
    found = at(session, run_id, revision)
    return found is not None and found.request_id == request_id


def page(session: Session, run_id: str, *, after: int, limit: int) -> list[Transition]:
    """The moves beyond revision *after*, oldest first."""
    return [Transition(*row) for row in session.all(_PAGE, b_run_id=run_id, b_after=after, b_limit=limit)]


def last(session: Session, run_id: str) -> Transition | None:
    """The newest move."""
    row = session.one(_LAST, b_run_id=run_id)
    return Transition(*row) if row else None
