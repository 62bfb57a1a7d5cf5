"""Why a run is not moving: one sentence derived from what is stored, the facts behind it, and the next command."""

from typing import Any, Final

import msgspec

from dispatcher import lifecycle, routing, why_waiting
from dispatcher.queues import Queue
from dispatcher.registry import Registry
from dispatcher.runs import find, waits_of
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, runs, transitions, waits
from dispatcher.store.entries import Entry
from endpoint_sdk.wire import clock
from endpoint_sdk.wire.operating import Why

_STALLED: Final = {
    "crash_loop": "The run is stalled: its executor died {kills} times with nothing recorded between"
    " (last record: {last}).",
    "undeliverable": "The run is stalled: {deliveries} deliveries and {endings} endings brought no progress.",
    "too_old": "The run is stalled: it waited {waited} ms and nobody claimed it.",
    "divergence": "The run is stalled: the code asks for other tasks than the ones recorded.",
}

Seen = tuple[runs.Row, Entry | None, transitions.Transition | None, list[waits.Row], int]


async def why(store: Store, registry: Registry, settings: Settings, namespace: str, run_id: str) -> Why:
    """The sentence the API, the command line and the dashboard all show; raises NotFound."""

    def operation(session: Session) -> Seen:
        run, entry = find(session, namespace, run_id)
        return run, entry, transitions.last(session, run_id), waits_of(session, run), session.now()

    run, entry, last, waiting, now = await store.transact(operation)
    if run.status in lifecycle.PARKED or run.status in {"scheduled", "paused"}:
        return why_waiting.why(run, waiting, now)
    if entry is None:
        return _without_entry(run, last)
    if entry.status == "claimed":
        return _claimed(run, entry, settings, now)
    names = [target.name for target in routing.targets_for(_queue(run), settings.routes, await registry.targets())]
    polled = {item.version: item.seen_at for item in await registry.pollers.versions(namespace, run.workflow)}
    return _queued(run, entry, names, polled.get(run.version), now)


def _queue(run: runs.Row) -> Queue:
    return Queue(run.namespace, run.workflow, run.version, run.pool)


def _without_entry(run: runs.Row, last: transitions.Transition | None) -> Why:
    details: dict[str, Any] = msgspec.json.decode(last.details) if last and last.details else {}
    facts = {"status": run.status, "reason": run.reason, **details}
    if run.status != "stalled":
        return Why(f"The run is {run.status}: nothing is left to do.", facts, None)
    too_old = run.reason == "undeliverable" and "waitedMs" in details and not details.get("endings")
    last_record = details.get("lastRecord") or {}
    words = _STALLED.get("too_old" if too_old else run.reason or "", "The run is stalled: {reason}.").format(
        waited=details.get("waitedMs"),
        kills=details.get("kills", "several"),
        endings=details.get("endings", "too many"),
        deliveries=details.get("deliveries", run.deliveries),
        last=last_record.get("name", "none"),
        reason=run.reason,
    )
    return Why(words, facts, f"pointsman run requeue {run.id}")


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
        return Why(f"The run is being executed by {name}, last heard of {silent_ms} ms ago.", facts, None)
    return Why(
        f"The run is held by {name}, silent for {silent_ms} ms; recovery releases it at its next turn.",
        facts,
        f"pointsman run release {run.id}",
    )


def _queued(run: runs.Row, entry: Entry, endpoints: list[str], polled_at: int | None, now: int) -> Why:
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


def _unpublished(run: runs.Row, facts: dict[str, Any], wait_ms: int) -> Why:
    """Nobody is told of the run: it waits for somebody who asks."""
    what = f"{run.workflow} {run.version}"
    if facts["polledAgoMs"] is None:
        return Why(
            f"Nobody serves {what}: no endpoint lists it, no route names one, no poller has asked for it.",
            facts,
            "pointsman endpoint add",
        )
    if wait_ms:
        return Why(f"The run waits {wait_ms} ms before a poller may take it.", facts, "pointsman executor list")
    return Why(
        f"The run is due and waits for a poller; one was last seen asking for {what} {facts['polledAgoMs']} ms ago.",
        facts,
        "pointsman executor list",
    )
