"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


_NOW = """
    CREATE FUNCTION pointsman_now() RETURNS bigint LANGUAGE sql VOLATILE
    AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint'
"""

# Room on each page keeps refreshes heap-only; the table is small and busy, so vacuum comes early and does not pause.
_HOT = """
    ALTER TABLE outbox_entry SET (
        fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0
    )
"""


def upgrade() -> None:
    postgresql = op.get_bind().dialect.name == "postgresql"
    if postgresql:
        op.execute(_NOW)
    op.create_table(
        "api_key",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hash", name="api_key_hash"),
    )
    op.create_table(
        "endpoint",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("max_in_flight", sa.Integer(), nullable=False),
        sa.Column("allow_http", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("allow_addresses", sa.Text(), server_default="[]", nullable=False),
        sa.Column("owner", sa.Text(), server_default="api", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("sdk", sa.Text(), nullable=True),
        sa.Column("build_id", sa.Text(), nullable=True),
        sa.Column("workflows", sa.Text(), server_default="[]", nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("discovered_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("namespace", "name", name="endpoint_name"),
    )
    op.create_table(
        "fleet",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("up_since", sa.BigInteger(), nullable=False),
        sa.Column("release_slot_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name="fleet_one_row"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("scheduled_for", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("queued_at", sa.BigInteger(), nullable=True),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("signal_seq", sa.Integer(), server_default="0", nullable=False),
        sa.Column("stop", sa.Text(), nullable=True),
        sa.Column("cancel_forced_at", sa.BigInteger(), nullable=True),
        sa.Column("ever_claimed", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("deliveries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("input", sa.LargeBinary(), nullable=False),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("error", sa.LargeBinary(), nullable=True),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled'))", name="run_finished_at_end"
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("run_by_status", "run", ["namespace", "status", "id"], unique=False)
    op.create_index(
        "run_idempotency_key",
        "run",
        ["namespace", "workflow", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
        sqlite_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index("run_listing", "run", ["namespace", "id"], unique=False)
    op.create_index(
        "run_request_id",
        "run",
        ["namespace", "request_id"],
        unique=True,
        postgresql_where=sa.text("request_id IS NOT NULL"),
        sqlite_where=sa.text("request_id IS NOT NULL"),
    )
    op.create_table(
        "schema_version",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("min_code", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "outbox_entry",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("next_publish_at", sa.BigInteger(), nullable=False),
        sa.Column("queued_at", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("push_number", sa.Integer(), server_default="0", nullable=False),
        sa.Column("publisher_index", sa.Integer(), server_default="0", nullable=False),
        sa.Column("publisher", sa.Text(), nullable=True),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("endings", sa.Integer(), server_default="0", nullable=False),
        sa.Column("kills", sa.Integer(), server_default="0", nullable=False),
        sa.Column("claim_id", sa.Text(), nullable=True),
        sa.Column("claim_push_number", sa.Integer(), nullable=True),
        sa.Column("executor", sa.Text(), nullable=True),
        sa.Column("claimed_at", sa.BigInteger(), nullable=True),
        sa.Column("refreshed_at", sa.BigInteger(), nullable=True),
        sa.Column("recorded_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "(status = 'claimed') = (claim_id IS NOT NULL AND claimed_at IS NOT NULL AND refreshed_at IS NOT NULL)",
            name="outbox_entry_claim",
        ),
        sa.CheckConstraint("status IN ('pending', 'published', 'claimed')", name="outbox_entry_status"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_index(
        "outbox_entry_in_flight",
        "outbox_entry",
        ["publisher"],
        unique=False,
        postgresql_where=sa.text("status <> 'pending'"),
        sqlite_where=sa.text("status <> 'pending'"),
    )
    op.create_index(
        "outbox_entry_pending",
        "outbox_entry",
        ["queue", "rank", "run_id"],
        unique=False,
        postgresql_where=sa.text("status = 'pending'"),
        sqlite_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "outbox_entry_published",
        "outbox_entry",
        ["next_publish_at"],
        unique=False,
        postgresql_where=sa.text("status = 'published'"),
        sqlite_where=sa.text("status = 'published'"),
    )
    op.create_index("outbox_entry_queued", "outbox_entry", ["queued_at"], unique=False)
    op.create_table(
        "record",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("args_hash", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("claim_id", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=True),
        sa.Column("error", sa.LargeBinary(), nullable=True),
        sa.Column("preview", sa.Text(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq"),
        sa.UniqueConstraint(
            "run_id", "kind", "name", "args_hash", "ordinal", "attempt", "phase", name="record_address"
        ),
    )
    op.create_table(
        "run_transition",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("from_status", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("details", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "revision"),
    )
    op.create_table(
        "signing_key",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["endpoint_id"], ["endpoint.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("signing_key_endpoint", "signing_key", ["endpoint_id"], unique=False)
    if postgresql:
        op.execute(_HOT)
    op.execute("INSERT INTO fleet (id, seen_at, up_since, release_slot_at) VALUES (1, 0, 0, 0)")
    op.execute("INSERT INTO schema_version (id, version, min_code) VALUES (1, 1, 1)")


def downgrade() -> None:
    op.drop_index("signing_key_endpoint", table_name="signing_key")
    op.drop_table("signing_key")
    op.drop_table("run_transition")
    op.drop_table("record")
    op.drop_index("outbox_entry_queued", table_name="outbox_entry")
    op.drop_index(
        "outbox_entry_published",
        table_name="outbox_entry",
        postgresql_where=sa.text("status = 'published'"),
        sqlite_where=sa.text("status = 'published'"),
    )
    op.drop_index(
        "outbox_entry_pending",
        table_name="outbox_entry",
        postgresql_where=sa.text("status = 'pending'"),
        sqlite_where=sa.text("status = 'pending'"),
    )
    op.drop_index(
        "outbox_entry_in_flight",
        table_name="outbox_entry",
        postgresql_where=sa.text("status <> 'pending'"),
        sqlite_where=sa.text("status <> 'pending'"),
    )
    op.drop_table("outbox_entry")
    op.drop_table("schema_version")
    op.drop_index(
        "run_request_id",
        table_name="run",
        postgresql_where=sa.text("request_id IS NOT NULL"),
        sqlite_where=sa.text("request_id IS NOT NULL"),
    )
    op.drop_index("run_listing", table_name="run")
    op.drop_index(
        "run_idempotency_key",
        table_name="run",
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
        sqlite_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.drop_index("run_by_status", table_name="run")
    op.drop_table("run")
    op.drop_table("fleet")
    op.drop_table("endpoint")
    op.drop_table("api_key")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION pointsman_now()")
