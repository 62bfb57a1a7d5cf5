"""What a run was doing when its executor died: the step that kills it, if it is always the same."""

from typing import Any, NamedTuple

import msgspec

from dispatcher.store import Session, entries, records, transitions

_LOOK_BACK = 100


class Kill(NamedTuple):
    """The step the claim was in, as far as anybody knows, how it ended, and how long it was held."""

    step: str | None
    cause: str
    held_ms: int

    def told(self) -> dict[str, Any]:
        """The kill as it stands in a run's history."""
        return {"step": self.step, "cause": self.cause, "heldMs": self.held_ms}


def of(session: Session, entry: entries.Entry, cause: str, now: int) -> Kill:
    """The kill that ends the claim *entry* was locked with.

    Its step is the task its executor last said it was in; else the one whose record is the newest and has no end: it
    had been started, or was to be tried again.
    """
    held_ms = max(0, now - (entry.claimed_at or now))
    return Kill(entry.step or _next(session, entry.run_id), cause, held_ms)


def same_step(session: Session, entry: entries.Entry, kill: Kill, kills: int) -> bool:
    """Whether this *kill* and those before it that are counted, *kills* in all, came in one known step."""
    if kill.step is None:
        return False
    earlier = transitions.page(session, entry.run_id, after=entry.revision - _LOOK_BACK, limit=_LOOK_BACK)
    steps = [found["killed"]["step"] for found in map(_details, earlier) if "killed" in found]
    return all(step == kill.step for step in steps[len(steps) - (kills - 1) :]) if kills > 1 else True


def _details(move: transitions.Transition) -> dict[str, Any]:
    found: dict[str, Any] = {} if move.details is None else msgspec.json.decode(move.details)
    return found


def _next(session: Session, run_id: str) -> str | None:
    last = records.last(session, run_id)
    if last is None or last.kind != "task":
        return None
    return last.name if last.phase == "started" or last.next_attempt_at is not None else None
