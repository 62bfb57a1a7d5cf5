"""Why a run that is queued is held back: who has the places of its lane, and how many get one before it."""

import shlex
from typing import NamedTuple

import msgspec

from dispatcher import lane_keys
from dispatcher.lanes import Limits
from dispatcher.store import Session, lanes, runs
from dispatcher.store.entries import Entry
from endpoint_sdk.wire.operating import Why


class Place(NamedTuple):
    """How many places of a lane are taken, how many there are (None: no bound), and who comes before a held run."""

    lane: str
    taken: int
    limit: int | None
    ahead: int


def place(session: Session, run: runs.Row, entry: Entry) -> Place | None:
    """What the *entry* of *run* waits for, None if it is not held back."""
    if not entry.held or entry.lane is None:
        return None
    limit = Limits(session).of(entry.lane, run.lane_limit)
    ahead = lanes.ahead(session, entry.lane, entry.rank, entry.run_id)
    return Place(entry.lane, lanes.taken(session, entry.lane), limit, ahead)


def why(run: runs.Row, found: Place) -> Why:
    """The sentence for a run that waits for a place."""
    facts = {"lane": found.lane, "taken": found.taken, "limit": found.limit, "ahead": found.ahead}
    others, following = _others(run, found.lane)
    if found.limit is None or found.taken < found.limit:
        return Why(f"The run waits for a place and gets one in a moment{_before(found)}.", facts, following)
    taken = f"{found.taken} of {found.limit} {others} are under way"
    return Why(f"The run waits for a place: {taken}{_before(found)}.", facts, following)


def _before(found: Place) -> str:
    return f"; {found.ahead} come{'s' if found.ahead == 1 else ''} before it" if found.ahead else ""


def _others(run: runs.Row, lane: str) -> tuple[str, str]:
    """Who shares the lane, in words and as the command that lists them."""
    named = lane_keys.of_workflow(lane)
    if named is None:
        parent = lane_keys.parent_of(lane)
        return f"children of a call of {parent}", f"pointsman run show {parent}"
    listing = f"pointsman run list --workflow {shlex.quote(run.workflow)}"
    if not named.tag:
        return f"runs of {run.workflow}", listing
    key, _, value = named.tag.partition("=")
    tags = msgspec.json.decode(run.tags, type=dict[str, str])
    if tags.get(key) != value:
        # Without the tag, or with one that is too long to be told from its digest.
        return f"runs of {run.workflow} alike in their tag", listing
    return f"runs of {named.tag}", f"{listing} --tag {shlex.quote(named.tag)}"
