"""Brokers and pollers: which route a delivery took and when, what pollers serve, publishers of more than one type.

Expands only: code of schema version 1 goes on working beside it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("endpoint", sa.Column("type", sa.Text(), server_default="push", nullable=False))
    op.add_column("endpoint", sa.Column("republish_ms", sa.BigInteger(), nullable=True))
    op.add_column("outbox_entry", sa.Column("route", sa.Text(), nullable=True))
    op.add_column("outbox_entry", sa.Column("published_at", sa.BigInteger(), nullable=True))
    op.add_column("outbox_entry", sa.Column("copies", sa.Integer(), server_default="0", nullable=False))
    op.execute("UPDATE outbox_entry SET route = 'push', published_at = queued_at WHERE status = 'published'")
    _pending("queue", "rank", "run_id", "next_publish_at")
    op.create_index(
        "outbox_entry_published_queue",
        "outbox_entry",
        ["queue", "rank", "run_id", "published_at"],
        postgresql_where=sa.text("status = 'published'"),
        sqlite_where=sa.text("status = 'published'"),
    )
    op.create_index(
        "outbox_entry_claim",
        "outbox_entry",
        ["claim_id"],
        postgresql_where=sa.text("status = 'claimed'"),
        sqlite_where=sa.text("status = 'claimed'"),
    )
    op.create_table(
        "served_workflow",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("first_seen_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "workflow", "version"),
    )
    op.execute("UPDATE schema_version SET version = 2")


def downgrade() -> None:
    op.execute("UPDATE schema_version SET version = 1")
    op.drop_table("served_workflow")
    op.drop_index("outbox_entry_claim", table_name="outbox_entry")
    op.drop_index("outbox_entry_published_queue", table_name="outbox_entry")
    _pending("queue", "rank", "run_id")
    op.drop_column("outbox_entry", "copies")
    op.drop_column("outbox_entry", "published_at")
    op.drop_column("outbox_entry", "route")
    op.drop_column("endpoint", "republish_ms")
    op.drop_column("endpoint", "type")


def _pending(*columns: str) -> None:
    """The index that finds the first pending entry of a queue holds *columns*."""
    op.drop_index("outbox_entry_pending", table_name="outbox_entry")
    op.create_index(
        "outbox_entry_pending",
        "outbox_entry",
        list(columns),
        postgresql_where=sa.text("status = 'pending'"),
        sqlite_where=sa.text("status = 'pending'"),
    )
