"""Discarding what the code of a diverged run does not ask for any more."""

from typing import Any

import msgspec

from dispatcher import errors
from dispatcher.store import Session, children, events, records, runs, transitions, waits
from endpoint_sdk.wire.messages import OF_CHILDREN


def discard(session: Session, run: runs.Row) -> int:
    """The records that the stall of *run* lists as recorded but not asked for are gone, with their calls' attempts.

    Events they handed out are back in the mailbox; children they started go on by themselves. Answers how many records
    there were. Raises Unprocessable `nothing_to_discard` when the stall lists none.
    """
    listed = _listed(session, run)
    if not listed:
        raise errors.Unprocessable(
            "nothing_to_discard",
            "the run's stall names no record that its code does not ask for",
            hint="pointsman run requeue ID, without discarding",
        )
    found = records.with_their_calls(session, run.id, listed)
    # A child that was started and is asked for stays: its end alone was not.
    dropped = [row for row in found if row.kind not in OF_CHILDREN or row.seq in listed]
    for row in dropped:
        if row.kind in OF_CHILDREN and row.phase == "started":
            call = children.call_of(waits.Address(row.kind, row.name, row.args_hash, row.ordinal))
            children.forget(session, run.id, call)
    numbers = [row.seq for row in dropped]
    events.give_back(session, run.id, numbers)
    return records.delete(session, run.id, numbers)


def _listed(session: Session, run: runs.Row) -> set[int]:
    last = transitions.last(session, run.id)
    details: dict[str, Any] = msgspec.json.decode(last.details) if last and last.details else {}
    recorded = details.get("recorded")
    views = recorded if isinstance(recorded, list) else []
    # What an executor wrote, so anything may stand there.
    numbers = [view.get("seq") for view in views if isinstance(view, dict)]
    every = details.get("unconsumed")
    numbers += every if isinstance(every, list) else []
    return {number for number in numbers if type(number) is int and 0 < number < 2**31}
