"""Schedules that will start nothing useful: nobody serves their workflow, or they have a problem already."""

from typing import Final

import msgspec

from dispatcher.pollers import ABSENT_MS
from dispatcher.store import Session, endpoints, served
from dispatcher.store import schedules as schedule_store
from dispatcher.store.schedules import Row
from endpoint_sdk.wire.messages import ServedWorkflow

_WORKFLOWS: Final = msgspec.json.Decoder(list[ServedWorkflow])


def doubtful(session: Session) -> tuple[int, list[str]]:
    """How many schedules of all namespaces are in force, and a sentence for each that starts nothing useful."""
    rows = schedule_store.in_force(session)
    listed = [
        (row.namespace, item) for row in endpoints.all_endpoints(session) for item in _WORKFLOWS.decode(row.workflows)
    ]
    polled = _polled(session, {row.namespace for row in rows})
    found = []
    for row in rows:
        if row.problem is not None:
            found.append(f"{row.name}: {row.problem}")
        elif not _is_served(row, listed, polled):
            found.append(f"{row.name}: nobody serves the workflow {row.workflow} {row.version or ''}".rstrip() + ".")
    return len(rows), found


def _polled(session: Session, namespaces: set[str]) -> set[tuple[str, str, str]]:
    """What pollers have asked for lately."""
    since = session.now() - ABSENT_MS
    return {
        (namespace, *pair)
        for namespace in sorted(namespaces)
        for pair, seen_at in served.seen_in(session, namespace).items()
        if seen_at >= since
    }


def _is_served(row: Row, listed: list[tuple[str, ServedWorkflow]], polled: set[tuple[str, str, str]]) -> bool:
    by_endpoint = any(
        namespace in {row.namespace, endpoints.EVERYWHERE}
        and item.name == row.workflow
        and row.version in {None, item.version, *item.accepts}
        for namespace, item in listed
    )
    return by_endpoint or any(
        (namespace, workflow) == (row.namespace, row.workflow) and row.version in {None, version}
        for namespace, workflow, version in polled
    )
