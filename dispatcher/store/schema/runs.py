"""A run and what belongs to it: its entry, history, records, waits and mailbox; and the fleet that serves them."""

from typing import Any, Final

import sqlalchemy as sa

from dispatcher.store.schema.base import count, flag, metadata

PENDING: Final[sa.ColumnClause[Any]] = sa.literal_column("'pending'")
PUBLISHED: Final[sa.ColumnClause[Any]] = sa.literal_column("'published'")
CLAIMED: Final[sa.ColumnClause[Any]] = sa.literal_column("'claimed'")

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
    count("signal_seq"),
    sa.Column("stop", sa.Text),
    sa.Column("cancel_forced_at", sa.BigInteger),
    flag("ever_claimed"),
    count("deliveries"),
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
    count("event_seq"),
    # Which call of its parent started the run ("kind:args_hash:ordinal:name"), and which of its children it is. Gone
    # when the parent forgets that call, at a run retry or a restart.
    sa.Column("parent_call", sa.Text),
    sa.Column("parent_index", sa.Integer),
    # How many children it has started, and whether those that still run are to be cancelled.
    count("children"),
    flag("cascade"),
    # How often the run has begun anew with another input.
    count("generation"),
    # The lane of a run whose workflow bounds how many run at once, and that bound.
    sa.Column("lane", sa.Text),
    sa.Column("lane_limit", sa.Integer),
    # When the run is to be cancelled because its time is up.
    sa.Column("expires_at", sa.BigInteger),
    # The schedule that started it.
    sa.Column("schedule", sa.Text),
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
    sa.Index(
        "run_parent_call",
        "parent_id",
        "parent_call",
        "parent_index",
        unique=True,
        postgresql_where=sa.text("parent_call IS NOT NULL"),
        sqlite_where=sa.text("parent_call IS NOT NULL"),
    ),
    sa.Index(
        "run_of_parent",
        "parent_id",
        "id",
        postgresql_where=sa.text("parent_id IS NOT NULL"),
        sqlite_where=sa.text("parent_id IS NOT NULL"),
    ),
    sa.Index(
        "run_cascade",
        "id",
        postgresql_where=sa.text("cascade = 1"),
        sqlite_where=sa.text("cascade = 1"),
    ),
    sa.Index(
        "run_expires_at",
        "expires_at",
        postgresql_where=sa.text("expires_at IS NOT NULL"),
        sqlite_where=sa.text("expires_at IS NOT NULL"),
    ),
    sa.Index(
        "run_of_schedule",
        "namespace",
        "schedule",
        postgresql_where=sa.text("schedule IS NOT NULL AND finished_at IS NULL"),
        sqlite_where=sa.text("schedule IS NOT NULL AND finished_at IS NULL"),
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
    count("push_number"),
    count("publisher_index"),
    sa.Column("publisher", sa.Text),
    count("failures"),
    count("endings"),
    count("kills"),
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
    count("copies"),
    # The number of the newest outcome of a wait that a refused park wrote under the present claim, 0 for none.
    count("signals"),
    # The lane of its run, if it has one, and whether it is held back until the lane has a place.
    sa.Column("lane", sa.Text),
    flag("held"),
    # The task the holder of the claim said it was in when it last refreshed.
    sa.Column("step", sa.Text),
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
        postgresql_where=sa.text("status = 'pending' AND held = 0"),
        sqlite_where=sa.text("status = 'pending' AND held = 0"),
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
    # The places of a lane that are taken, and who waits for one, in their order.
    sa.Index(
        "outbox_entry_lane",
        "lane",
        postgresql_where=sa.text("lane IS NOT NULL AND held = 0"),
        sqlite_where=sa.text("lane IS NOT NULL AND held = 0"),
    ),
    sa.Index(
        "outbox_entry_held",
        "lane",
        "rank",
        "run_id",
        postgresql_where=sa.text("held = 1"),
        sqlite_where=sa.text("held = 1"),
    ),
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

HAS_PLACE: Final[sa.ColumnElement[bool]] = outbox_entry.c.held == sa.literal_column("0")
"""The entry is not held back: its lane, if it has one, has a place for it. In the words of the partial indexes."""

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
