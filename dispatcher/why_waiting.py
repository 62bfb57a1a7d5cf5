"""Why a run waits: what it waits for, until when, and the command that ends it."""

import shlex
from collections.abc import Sequence
from typing import Final

from dispatcher.store import runs, waits
from endpoint_sdk.wire import clock
from endpoint_sdk.wire.operating import Why

_SHOWN: Final = 20
_WORDS: Final = {
    "event": "for the event {name!r}",
    "child": "for the child {name!r}",
    "children": "for its children {name!r}",
    "retry": "to try {name!r} again",
    "sleep": "in {name!r}",
}


def why(run: runs.Row, waiting: Sequence[waits.Row], now: int) -> Why:
    """The sentence for a run that is scheduled, parked or paused."""
    facts = {
        "status": run.status,
        "waits": [_fact(wait) for wait in waiting[:_SHOWN]],
        "waitsInAll": len(waiting),
        "wakeAt": None if run.wake_at is None else clock.to_wire(run.wake_at),
    }
    if run.status == "paused":
        return Why(f"The run is paused; it was {run.parked_as}.", facts, f"pointsman run resume {run.id}")
    until = "" if run.wake_at is None else f", {_until(run.wake_at, now)}"
    if run.status == "scheduled":
        return Why(f"The run is scheduled{until}.", facts, f"pointsman run wake {run.id}")
    leading = _leading(waiting)
    others = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    what = _WORDS[leading.kind].format(name=leading.name)
    sentence = f"The run {'sleeps' if run.status == 'sleeping' else 'waits'} {what}{others}{until}."
    if leading.kind == "event":
        return Why(sentence, facts, f"pointsman run send {run.id} {shlex.quote(leading.name)} VALUE")
    return Why(sentence, facts, f"pointsman run wake {run.id}")


def _leading(waiting: Sequence[waits.Row]) -> waits.Row:
    """The wait that names the status: of several, the one that ends first."""
    kinds = list(_WORDS)
    return min(waiting, key=lambda wait: (kinds.index(wait.kind), wait.deadline_at or 2**63, wait.ordinal))


def _fact(wait: waits.Row) -> dict[str, object]:
    deadline = None if wait.deadline_at is None else clock.to_wire(wait.deadline_at)
    return {"kind": wait.kind, "name": wait.name, "ordinal": wait.ordinal, "deadline": deadline}


def _until(moment: int, now: int) -> str:
    return f"until {clock.to_wire(moment)} (in {max(0, moment - now)} ms)"
