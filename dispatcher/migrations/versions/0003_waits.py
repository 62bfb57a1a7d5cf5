"""Waits: what parked runs wait for, the events sent to them, and the moment at which a run is due.

Expands only: code of schema version 2 goes on working beside it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("wake_at", sa.BigInteger(), nullable=True))
    op.add_column("run", sa.Column("parked_as", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("cancel_reason", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("event_seq", sa.Integer(), server_default="0", nullable=False))
    op.add_column("outbox_entry", sa.Column("signals", sa.Integer(), server_default="0", nullable=False))
    op.create_index(
        "run_wake_at",
        "run",
        ["wake_at"],
        postgresql_where=sa.text("wake_at IS NOT NULL"),
        sqlite_where=sa.text("wake_at IS NOT NULL"),
    )
    op.create_index(
        "run_cancel_forced_at",
        "run",
        ["cancel_forced_at"],
        postgresql_where=sa.text("cancel_forced_at IS NOT NULL"),
        sqlite_where=sa.text("cancel_forced_at IS NOT NULL"),
    )
    op.create_table(
        "wait",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("args_hash", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("deadline_at", sa.BigInteger(), nullable=True),
        sa.Column("open", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "kind", "name", "args_hash", "ordinal"),
    )
    op.create_table(
        "event",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("consumed", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "number"),
        sa.UniqueConstraint("run_id", "name", "event_id", name="event_id"),
    )
    op.create_index(
        "event_unconsumed",
        "event",
        ["run_id", "name", "number"],
        postgresql_where=sa.text("consumed IS NULL"),
        sqlite_where=sa.text("consumed IS NULL"),
    )
    op.execute("UPDATE schema_version SET version = 3")


def downgrade() -> None:
    op.execute("UPDATE schema_version SET version = 2")
    op.drop_table("event")
    op.drop_table("wait")
    op.drop_index("run_cancel_forced_at", table_name="run")
    op.drop_index("run_wake_at", table_name="run")
    op.drop_column("outbox_entry", "signals")
    for column in ("event_seq", "cancel_reason", "parked_as", "wake_at"):
        op.drop_column("run", column)
