"""Telling a parent that a child has ended, whichever way, and waking it if it waits (infra/docs/protocol.md, I9).

The last thing a transaction that ends a child does before its commit, with the parent's row locked after its own: a
parent that is not parked then locks that row for its next park, and reads there what has ended.
"""

from typing import Final

import msgspec

from dispatcher import lifecycle, waking
from dispatcher.store import Session, children, runs, transitions, waits

_ACTOR: Final = "child"
_PAUSE_MS: Final = 1_000


def tell(session: Session, child: runs.Row) -> None:
    """The parent of *child*, which has ended in this transaction, is queued if that ends a wait of its.

    Of children that are waited for together, only the last, or the first that is unsuccessful, ends it. Those waited
    for one by one wake their parent once a second at most while more than one of them is waited for.
    """
    assert child.parent_id is not None
    assert child.parent_call is not None
    parent = runs.lock(session, child.parent_id)
    if parent is None or not _waits(parent):
        return
    address = children.address_of(child.parent_call)
    if not _ends(session, parent.id, address, child) or parent.status == "paused":
        return
    now = session.now()
    later = _not_before(session, parent) if address.kind == "child" else None
    if later is not None and later > now:
        if parent.wake_at is None or parent.wake_at > later:
            runs.set_wake_at(session, parent.id, later)
            session.announce("timed", str(later))
        return
    waiting = waits.of_run(session, parent.id)
    waking.wake(session, parent, "child", actor=_ACTOR, now=now, waiting=waiting)


def _waits(run: runs.Row) -> bool:
    return run.status in lifecycle.PARKED or run.parked_as in lifecycle.PARKED


def _ends(session: Session, parent_id: str, address: waits.Address, child: runs.Row) -> bool:
    """Whether the end of *child* ends a wait of its parent."""
    if address.kind == "child":
        return waits.at(session, parent_id, address) is not None
    left = waits.close_one(session, parent_id, address)
    return left is not None and (left == 0 or child.status != "completed")


def _not_before(session: Session, parent: runs.Row) -> int | None:
    """When the parked *parent* may be woken again by one of several children: a second after the last time.

    None if no child woke it for the claim that parked, or if it waited for that one alone and does so again.
    """
    woken = transitions.at(session, parent.id, parent.revision - 2)
    left = None if woken is None else msgspec.json.decode(woken.details or "{}").get("left")
    if woken is None or left is None or (left == 0 and waits.count(session, parent.id, "child") == 1):
        return None
    return woken.at + _PAUSE_MS
