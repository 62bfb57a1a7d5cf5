"""The tables, one schema for PostgreSQL and SQLite.

Times are BIGINT milliseconds since the epoch, stamped with `pointsman_now()`: the database's clock judges every age and
deadline (infra/docs/protocol.md, I5). Payloads are JSON bytes, never looked into. The migrations build these tables; a
test compares the two.
"""

from typing import Any, Final

import sqlalchemy as sa

metadata: Final = sa.MetaData()

PENDING: Final[sa.ColumnClause[Any]] = sa.literal_column("'pending'")
PUBLISHED: Final[sa.ColumnClause[Any]] = sa.literal_column("'published'")
CLAIMED: Final[sa.ColumnClause[Any]] = sa.literal_column("'claimed'")

now: Final[sa.ColumnElement[Any]] = sa.func.pointsman_now()


def _flag(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.SmallInteger, nullable=False, server_default="0")


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, server_default="0")


run: Final = sa.Table(
    "run",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("workflow", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("priority", sa.SmallInteger, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("request_id", sa.Text),
    sa.Column("note", sa.Text),
    sa.Column("parent_id", sa.Text),
    sa.Column("scheduled_for", sa.BigInteger),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("queued_at", sa.BigInteger),
    sa.Column("due_at", sa.BigInteger),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Column("finished_at", sa.BigInteger),
    _count("signal_seq"),
    sa.Column("stop", sa.Text),
    sa.Column("cancel_forced_at", sa.BigInteger),
    _flag("ever_claimed"),
    _count("deliveries"),
    sa.Column("input", sa.LargeBinary, nullable=False),
    sa.Column("result", sa.LargeBinary),
    sa.Column("error", sa.LargeBinary),
    sa.Column("traceparent", sa.Text),
    # When a scheduled or parked run is due: its submit's time, or the earliest deadline of its waits. Of no other run.
    sa.Column("wake_at", sa.BigInteger),
    # The status a paused run goes back to.
    sa.Column("parked_as", sa.Text),
    sa.Column("cancel_reason", sa.Text),
    # The number of the newest event sent to the run.
    _count("event_seq"),
    sa.CheckConstraint(
        "(finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled'))", name="run_finished_at_end"
    ),
    sa.Index(
        "run_idempotency_key",
        "namespace",
        "workflow",
        "idempotency_key",
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
        sqlite_where=sa.text("idempotency_key IS NOT NULL"),
    ),
    sa.Index(
        "run_request_id",
        "namespace",
        "request_id",
        unique=True,
        postgresql_where=sa.text("request_id IS NOT NULL"),
        sqlite_where=sa.text("request_id IS NOT NULL"),
    ),
    sa.Index("run_listing", "namespace", "id"),
    sa.Index("run_by_status", "namespace", "status", "id"),
    sa.Index(
        "run_wake_at",
        "wake_at",
        postgresql_where=sa.text("wake_at IS NOT NULL"),
        sqlite_where=sa.text("wake_at IS NOT NULL"),
    ),
    sa.Index(
        "run_cancel_forced_at",
        "cancel_forced_at",
        postgresql_where=sa.text("cancel_forced_at IS NOT NULL"),
        sqlite_where=sa.text("cancel_forced_at IS NOT NULL"),
    ),
)

# Narrow and hot. refreshed_at is in no index, so that a refresh stays a heap-only update (its fillfactor is set by the
# first migration; Core has no word for it).
outbox_entry: Final = sa.Table(
    "outbox_entry",
    metadata,
    sa.Column("run_id", sa.Text, sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("rank", sa.BigInteger, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("next_publish_at", sa.BigInteger, nullable=False),
    sa.Column("queued_at", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    _count("push_number"),
    _count("publisher_index"),
    sa.Column("publisher", sa.Text),
    _count("failures"),
    _count("endings"),
    _count("kills"),
    sa.Column("claim_id", sa.Text),
    sa.Column("claim_push_number", sa.Integer),
    sa.Column("executor", sa.Text),
    sa.Column("claimed_at", sa.BigInteger),
    sa.Column("refreshed_at", sa.BigInteger),
    sa.Column("recorded_at", sa.BigInteger),
    # How and when it was last published: pollers may take what a broker has had for too long.
    sa.Column("route", sa.Text),
    sa.Column("published_at", sa.BigInteger),
    # Messages a broker was given since the run was last claimed: each doubles the time to the next.
    _count("copies"),
    # The number of the newest outcome of a wait that a refused park wrote under the present claim, 0 for none.
    _count("signals"),
    sa.CheckConstraint("status IN ('pending', 'published', 'claimed')", name="outbox_entry_status"),
    sa.CheckConstraint(
        "(status = 'claimed') = (claim_id IS NOT NULL AND claimed_at IS NOT NULL AND refreshed_at IS NOT NULL)",
        name="outbox_entry_claim",
    ),
    # The clock at the end, so that what is not due yet is passed over within the index.
    sa.Index(
        "outbox_entry_pending",
        "queue",
        "rank",
        "run_id",
        "next_publish_at",
        postgresql_where=sa.text("status = 'pending'"),
        sqlite_where=sa.text("status = 'pending'"),
    ),
    sa.Index(
        "outbox_entry_published",
        "next_publish_at",
        postgresql_where=sa.text("status = 'published'"),
        sqlite_where=sa.text("status = 'published'"),
    ),
    sa.Index(
        "outbox_entry_in_flight",
        "publisher",
        postgresql_where=sa.text("status <> 'pending'"),
        sqlite_where=sa.text("status <> 'pending'"),
    ),
    sa.Index("outbox_entry_queued", "queued_at"),
    sa.Index(
        "outbox_entry_published_queue",
        "queue",
        "rank",
        "run_id",
        "published_at",
        postgresql_where=sa.text("status = 'published'"),
        sqlite_where=sa.text("status = 'published'"),
    ),
    sa.Index(
        "outbox_entry_claim",
        "claim_id",
        postgresql_where=sa.text("status = 'claimed'"),
        sqlite_where=sa.text("status = 'claimed'"),
    ),
)

run_transition: Final = sa.Table(
    "run_transition",
    metadata,
    sa.Column("run_id", sa.Text, sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("revision", sa.Integer, primary_key=True),
    sa.Column("from_status", sa.Text),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("request_id", sa.Text),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("details", sa.Text),
)

record: Final = sa.Table(
    "record",
    metadata,
    sa.Column("run_id", sa.Text, sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("args_hash", sa.Text, nullable=False),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("claim_id", sa.Text, nullable=False),
    sa.Column("value", sa.LargeBinary),
    sa.Column("error", sa.LargeBinary),
    sa.Column("preview", sa.Text),
    sa.Column("started_at", sa.BigInteger),
    sa.Column("finished_at", sa.BigInteger),
    sa.Column("next_attempt_at", sa.BigInteger),
    sa.UniqueConstraint("run_id", "kind", "name", "args_hash", "ordinal", "attempt", "phase", name="record_address"),
)

# What a run waits for, from its park until the wait is answered: a wake-up by one wait leaves the others armed.
wait: Final = sa.Table(
    "wait",
    metadata,
    sa.Column("run_id", sa.Text, sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("args_hash", sa.Text, primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("deadline_at", sa.BigInteger),
    # Of a wait for many children: how many of them still run.
    sa.Column("open", sa.Integer),
)

# The mailbox of a run, numbered under the run's lock; `consumed` is the number of the record that handed it out.
event: Final = sa.Table(
    "event",
    metadata,
    sa.Column("run_id", sa.Text, sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("event_id", sa.Text, nullable=False),
    sa.Column("value", sa.LargeBinary, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("consumed", sa.Integer),
    sa.UniqueConstraint("run_id", "name", "event_id", name="event_id"),
    sa.Index(
        "event_unconsumed",
        "run_id",
        "name",
        "number",
        postgresql_where=sa.text("consumed IS NULL"),
        sqlite_where=sa.text("consumed IS NULL"),
    ),
)

fleet: Final = sa.Table(
    "fleet",
    metadata,
    sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("seen_at", sa.BigInteger, nullable=False),
    sa.Column("up_since", sa.BigInteger, nullable=False),
    sa.Column("release_slot_at", sa.BigInteger, nullable=False),
    sa.CheckConstraint("id = 1", name="fleet_one_row"),
)

endpoint: Final = sa.Table(
    "endpoint",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("platform", sa.Text, nullable=False),
    sa.Column("max_in_flight", sa.Integer, nullable=False),
    _flag("allow_http"),
    sa.Column("allow_addresses", sa.Text, nullable=False, server_default="[]"),
    sa.Column("owner", sa.Text, nullable=False, server_default="api"),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("sdk", sa.Text),
    sa.Column("build_id", sa.Text),
    sa.Column("workflows", sa.Text, nullable=False, server_default="[]"),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("discovered_at", sa.BigInteger),
    # push, sqs, redis or memory: every publisher has a row here, and its signing keys.
    sa.Column("type", sa.Text, nullable=False, server_default="push"),
    sa.Column("republish_ms", sa.BigInteger),
    sa.UniqueConstraint("namespace", "name", name="endpoint_name"),
)

# What pollers say they serve; with the endpoints' discovery it tells which version of a workflow is the latest.
served_workflow: Final = sa.Table(
    "served_workflow",
    metadata,
    sa.Column("namespace", sa.Text, primary_key=True),
    sa.Column("workflow", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, primary_key=True),
    sa.Column("first_seen_at", sa.BigInteger, nullable=False),
    sa.Column("seen_at", sa.BigInteger, nullable=False),
)

signing_key: Final = sa.Table(
    "signing_key",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("endpoint_id", sa.Text, sa.ForeignKey("endpoint.id", ondelete="CASCADE"), nullable=False),
    sa.Column("secret", sa.LargeBinary, nullable=False),
    sa.Column("hint", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
    sa.Index("signing_key_endpoint", "endpoint_id"),
)

api_key: Final = sa.Table(
    "api_key",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("hash", sa.LargeBinary, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("revoked_at", sa.BigInteger),
    sa.UniqueConstraint("hash", name="api_key_hash"),
)

schema_version: Final = sa.Table(
    "schema_version",
    metadata,
    sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("min_code", sa.Integer, nullable=False),
)
