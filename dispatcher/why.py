"""Why a run is not moving: one sentence derived from what is stored, the facts behind it, and the next command."""

from typing import Any, NamedTuple

import msgspec

from dispatcher import lifecycle, routing, unserved, why_held, why_stalled, why_waiting
from dispatcher.queues import Queue
from dispatcher.registry import Registry
from dispatcher.runs import find, waits_of
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, overview, runs, served, transitions, waits
from dispatcher.store.entries import Entry
from endpoint_sdk.wire import clock
from endpoint_sdk.wire.operating import Warned, Why


class Seen(NamedTuple):
    """What the rows say of a run; *alike* counts what waits in its queue, *polled* says when pollers asked for what."""

    run: runs.Row
    entry: Entry | None
    last: transitions.Transition | None
    waiting: list[waits.Row]
    of_children: why_waiting.Awaited | None
    alike: int
    polled: dict[tuple[str, str], int]
    place: why_held.Place | None
    now: int


async def why(store: Store, registry: Registry, settings: Settings, namespace: str, run_id: str) -> Why:
    """The sentence the API, the command line and the dashboard all show; raises NotFound."""

    def operation(session: Session) -> Seen:
        run, entry = find(session, namespace, run_id)
        waiting = waits_of(session, run)
        of_children = why_waiting.awaited(session, run_id, waiting)
        alike, polled = 0, {}
        if entry is not None and entry.status != "claimed":
            alike, polled = overview.waiting(session, entry.queue), served.seen_in(session, namespace)
        last = transitions.last(session, run_id)
        place = None if entry is None else why_held.place(session, run, entry)
        return Seen(run, entry, last, waiting, of_children, alike, polled, place, session.now())

    seen = await store.transact(operation)
    run, entry, now = seen.run, seen.entry, seen.now
    if run.status in lifecycle.PARKED or run.status in {"scheduled", "paused"}:
        return why_waiting.why(run, seen.waiting, now, seen.of_children)
    if entry is None:
        return _without_entry(run, seen.last)
    if entry.status == "claimed":
        return _claimed(run, entry, settings, now)
    if seen.place is not None:
        return why_held.why(run, seen.place)
    queue, targets = _queue(run), await registry.targets()
    names = [target.name for target in routing.targets_for(queue, settings.routes, targets)]
    serving = unserved.Serving(settings.routes, targets, seen.polled, now)
    warned = serving.warning(queue, seen.alike)
    return _queued(run, entry, names, seen.polled.get((run.workflow, run.version)), warned, now)


def _queue(run: runs.Row) -> Queue:
    return Queue(run.namespace, run.workflow, run.version, run.pool)


def _without_entry(run: runs.Row, last: transitions.Transition | None) -> Why:
    details: dict[str, Any] = msgspec.json.decode(last.details) if last and last.details else {}
    return (why_stalled.stalled if run.status == "stalled" else why_stalled.ended)(run, details)


def _claimed(run: runs.Row, entry: Entry, settings: Settings, now: int) -> Why:
    assert entry.refreshed_at is not None
    executor = msgspec.json.decode(entry.executor or "{}")
    silent_ms = max(0, now - entry.refreshed_at)
    idle_ms = settings.recovery.claim_idle_timeout_ms
    facts = {
        "executor": executor,
        "claimedAt": clock.to_wire(entry.claimed_at or 0),
        "silentMs": silent_ms,
        "idleTimeoutMs": idle_ms,
    }
    name = executor.get("id", "an executor")
    if silent_ms <= idle_ms:
        sentence = f"The run is being executed by {name}, last heard of {silent_ms} ms ago{_asked(run)}."
        return Why(sentence, facts, None)
    return Why(
        f"The run is held by {name}, silent for {silent_ms} ms; recovery releases it at its next turn.",
        facts,
        f"pointsman run release {run.id}",
    )


def _asked(run: runs.Row) -> str:
    if run.stop == "cancel":
        until = "" if run.cancel_forced_at is None else f" by {clock.to_wire(run.cancel_forced_at)}"
        return f", and was asked to cancel itself{until}"
    return ", and was asked to pause" if run.stop == "pause" else ""


def _queued(
    run: runs.Row, entry: Entry, endpoints: list[str], polled_at: int | None, warned: Warned | None, now: int
) -> Why:
    wait_ms = max(0, entry.next_publish_at - now)
    facts: dict[str, Any] = {
        "endpoints": endpoints,
        "polledAgoMs": None if polled_at is None else max(0, now - polled_at),
        "deliveries": entry.push_number,
        "failuresInARow": entry.failures,
        "endingsWithoutProgress": entry.endings,
        "kills": entry.kills,
        "nextPublishAt": clock.to_wire(entry.next_publish_at),
    }
    if warned is not None:
        return _unserved(warned, facts)
    if entry.status == "published":
        return Why(f"The run was pushed; its claim is awaited for another {wait_ms} ms.", facts, None)
    if not endpoints:
        return _unpublished(run, facts, wait_ms)
    if wait_ms:
        return Why(
            f"The run waits {wait_ms} ms before its next delivery, after {entry.failures} failed in a row"
            f" and {entry.kills} kills.",
            facts,
            f"pointsman endpoint test {endpoints[0]}",
        )
    return Why(
        f"The run is due and waits for room at {', '.join(endpoints)}.",
        facts,
        f"pointsman endpoint show {endpoints[0]}",
    )


def _unserved(warned: Warned, facts: dict[str, Any]) -> Why:
    """Delayed, never failed: the run goes on once somebody serves its version."""
    return Why(warned.message, {**facts, "warning": warned}, "pointsman endpoint list")


def _unpublished(run: runs.Row, facts: dict[str, Any], wait_ms: int) -> Why:
    """Nobody is told of the run: it waits for somebody who asks."""
    what = f"{run.workflow} {run.version}"
    if wait_ms:
        return Why(f"The run waits {wait_ms} ms before a poller may take it.", facts, "pointsman executor list")
    return Why(
        f"The run is due and waits for a poller; one was last seen asking for {what} {facts['polledAgoMs']} ms ago.",
        facts,
        "pointsman executor list",
    )
