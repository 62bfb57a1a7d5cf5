"""Many births at once, in a few statements: runs that are due now, without a key or a request id of their own."""

from collections.abc import Sequence

from dispatcher.queues import Queue
from dispatcher.store import Session, entries, runs, transitions
from dispatcher.submission import PRIORITY_STEP_MS


def bear(session: Session, births: Sequence[runs.Birth], actor: str, now: int) -> None:
    """Every run of *births* is stored and queued, its birth in its history; their ids and places are new."""
    born = runs.insert_many(session, births, now)
    assert born == len(births), "what makes a child unique is new under its parent's lock"
    transitions.append_births(session, [birth.id for birth in births], reason="submitted", actor=actor)
    entries.insert_many(session, [_entry(birth, now) for birth in births])
    for birth in births:
        if birth.expires_at is not None:
            session.announce("timed", str(birth.expires_at))


def _entry(birth: runs.Birth, now: int) -> entries.New:
    queue = Queue(birth.namespace, birth.workflow, birth.version, birth.pool).key()
    return entries.New(birth.id, 0, queue, now - birth.priority * PRIORITY_STEP_MS, now, 1, birth.lane)
