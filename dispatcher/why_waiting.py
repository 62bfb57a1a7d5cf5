"""Why a run waits: what it waits for, until when, and the command that ends it or tells more."""

import shlex
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dispatcher.store import Session, children, runs, waits
from endpoint_sdk.wire import clock
from endpoint_sdk.wire.messages import OF_CHILDREN, ErrorObject
from endpoint_sdk.wire.operating import Why

_SHOWN: Final = 20
_WORDS: Final = {
    "event": "for the event {name!r}",
    "child": "for the child {name!r}",
    "children": "for its children {name!r}",
    "retry": "to try {name!r} again",
    "sleep": "in {name!r}",
}


class Awaited(NamedTuple):
    """The children that the wait in the lead is for: in words, as a fact, and the command that tells more of them."""

    words: str
    fact: dict[str, Any]
    command: str


def awaited(session: Session, run_id: str, waiting: Sequence[waits.Row]) -> Awaited | None:
    """The children the run waits for, None if it waits for something else first."""
    leading = _leading(waiting) if waiting else None
    if leading is None or leading.kind not in OF_CHILDREN:
        return None
    call = children.call_of(leading.address)
    if leading.kind == "children":
        tally = children.tally(session, run_id, call)
        words = f"for {tally.open} of its {tally.total} children {leading.name!r}"
        return Awaited(words, {"total": tally.total, "open": tally.open}, f"pointsman run children {run_id}")
    for child in children.of_calls(session, run_id, [call]):
        words = f"for the child {leading.name!r} ({child.id}), which is {child.status}"
        return Awaited(words, {"id": child.id, "status": child.status}, f"pointsman run why {child.id}")
    return None


def why(run: runs.Row, waiting: Sequence[waits.Row], now: int, of_children: Awaited | None = None) -> Why:
    """The sentence for a run that is scheduled, parked or paused."""
    facts: dict[str, Any] = {
        "status": run.status,
        "waits": [_fact(wait) for wait in waiting[:_SHOWN]],
        "waitsInAll": len(waiting),
        "wakeAt": None if run.wake_at is None else clock.to_wire(run.wake_at),
    }
    if of_children is not None:
        facts["children"] = of_children.fact
    if run.status == "paused":
        return Why(f"The run is paused; it was {run.parked_as}.", facts, f"pointsman run resume {run.id}")
    until = "" if run.wake_at is None else f", {_until(run.wake_at, now)}"
    if run.status == "scheduled":
        return Why(f"The run is scheduled{until}.", facts, f"pointsman run wake {run.id}")
    if run.error is not None:
        failed = msgspec.json.decode(run.error, type=ErrorObject).type
        sentence = f"Attempt {run.attempt} failed ({failed}) and the run waits for its next{until}."
        return Why(sentence, facts, f"pointsman run wake {run.id}")
    leading = _leading(waiting)
    others = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    what = _WORDS[leading.kind].format(name=leading.name) if of_children is None else of_children.words
    sentence = f"The run {'sleeps' if run.status == 'sleeping' else 'waits'} {what}{others}{until}."
    if of_children is not None:
        return Why(sentence, facts, of_children.command)
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
    return f"until {clock.to_wire(moment)} (in {span(moment - now)})"


def span(ms: int) -> str:
    """*ms* as people say it, in its two largest units: 13 d 23 h, 7 h 59 min, 12 s; never less than 0 s."""
    minutes, seconds = divmod(max(ms, 0) // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{number} {unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s"))]
    first = next((place for place, part in enumerate(parts) if not part.startswith("0 ")), len(parts) - 1)
    return " ".join(part for part in parts[first : first + 2] if not part.startswith("0 ")) or "0 s"
