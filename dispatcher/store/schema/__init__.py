"""The tables, one schema for PostgreSQL and SQLite.

Times are BIGINT milliseconds since the epoch, stamped with `pointsman_now()`: the database's clock judges every age and
deadline (infra/docs/protocol.md, I5). Payloads are JSON bytes, never looked into. The migrations build these tables; a
test compares the two.
"""

from dispatcher.store.schema.base import metadata, now
from dispatcher.store.schema.registry import (
    api_key,
    bulk_action,
    endpoint,
    schedule,
    schema_version,
    served_workflow,
    signing_key,
    workflow_declaration,
)
from dispatcher.store.schema.runs import (
    CLAIMED,
    HAS_PLACE,
    PENDING,
    PUBLISHED,
    event,
    fleet,
    outbox_entry,
    record,
    run,
    run_transition,
    wait,
)

__all__ = [
    "CLAIMED",
    "HAS_PLACE",
    "PENDING",
    "PUBLISHED",
    "api_key",
    "bulk_action",
    "endpoint",
    "event",
    "fleet",
    "metadata",
    "now",
    "outbox_entry",
    "record",
    "run",
    "run_transition",
    "schedule",
    "schema_version",
    "served_workflow",
    "signing_key",
    "wait",
    "workflow_declaration",
]
