"""Children, schedules, keyed concurrency, run timeouts, bulk actions, and what the served code declares of itself.

Expands only: code of schema version 3 goes on working beside it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_PENDING = ["queue", "rank", "run_id", "next_publish_at"]
_INDEXES = {
    "run_parent_call": ("run", ["parent_id", "parent_call", "parent_index"], "parent_call IS NOT NULL", True),
    "run_of_parent": ("run", ["parent_id", "id"], "parent_id IS NOT NULL", False),
    "run_cascade": ("run", ["id"], "cascade = 1", False),
    "run_expires_at": ("run", ["expires_at"], "expires_at IS NOT NULL", False),
    "run_of_schedule": ("run", ["namespace", "schedule"], "schedule IS NOT NULL AND finished_at IS NULL", False),
    "outbox_entry_lane": ("outbox_entry", ["lane"], "lane IS NOT NULL AND held = 0", False),
    "outbox_entry_held": ("outbox_entry", ["lane", "rank", "run_id"], "held = 1", False),
}


def upgrade() -> None:
    op.add_column("run", sa.Column("parent_call", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("parent_index", sa.Integer(), nullable=True))
    op.add_column("run", sa.Column("children", sa.Integer(), server_default="0", nullable=False))
    op.add_column("run", sa.Column("cascade", sa.SmallInteger(), server_default="0", nullable=False))
    op.add_column("run", sa.Column("generation", sa.Integer(), server_default="0", nullable=False))
    op.add_column("run", sa.Column("lane", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("lane_limit", sa.Integer(), nullable=True))
    op.add_column("run", sa.Column("expires_at", sa.BigInteger(), nullable=True))
    op.add_column("run", sa.Column("schedule", sa.Text(), nullable=True))
    op.add_column("outbox_entry", sa.Column("lane", sa.Text(), nullable=True))
    op.add_column("outbox_entry", sa.Column("held", sa.SmallInteger(), server_default="0", nullable=False))
    _tables()
    op.add_column("outbox_entry", sa.Column("step", sa.Text(), nullable=True))
    for name, (table, columns, where, unique) in _INDEXES.items():
        op.create_index(
            name, table, columns, unique=unique, postgresql_where=sa.text(where), sqlite_where=sa.text(where)
        )
    _pending_index("status = 'pending' AND held = 0")
    op.execute("UPDATE schema_version SET version = 4")


def _tables() -> None:
    op.create_table(
        "workflow_declaration",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("declared", sa.Text(), nullable=False),
        sa.Column("declared_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "workflow", "version"),
    )
    op.create_table(
        "schedule",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("cron", sa.Text(), nullable=True),
        sa.Column("timezone", sa.Text(), server_default="UTC", nullable=False),
        sa.Column("every_ms", sa.BigInteger(), nullable=True),
        sa.Column("input", sa.LargeBinary(), nullable=False),
        sa.Column("pool", sa.Text(), server_default="default", nullable=False),
        sa.Column("tags", sa.Text(), server_default="{}", nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default="5", nullable=False),
        sa.Column("overlap", sa.Text(), nullable=False),
        sa.Column("catch_up", sa.Integer(), nullable=False),
        sa.Column("jitter_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("paused", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("active", sa.SmallInteger(), server_default="1", nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=True),
        sa.Column("wake_at", sa.BigInteger(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("last_at", sa.BigInteger(), nullable=True),
        sa.Column("last_run_id", sa.Text(), nullable=True),
        sa.Column("skipped", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("(cron IS NULL) <> (every_ms IS NULL)", name="schedule_one_rule"),
        sa.PrimaryKeyConstraint("namespace", "name"),
    )
    due = sa.text("wake_at IS NOT NULL AND paused = 0")
    op.create_index("schedule_wake_at", "schedule", ["wake_at"], postgresql_where=due, sqlite_where=due)
    op.create_table(
        "bulk_action",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("filter", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("cursor", sa.Text(), nullable=True),
        sa.Column("matched", sa.Integer(), nullable=False),
        sa.Column("applied", sa.Integer(), server_default="0", nullable=False),
        sa.Column("refused", sa.Integer(), server_default="0", nullable=False),
        sa.Column("slot_at", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
    )
    open_ = sa.text("finished_at IS NULL")
    op.create_index("bulk_action_open", "bulk_action", ["id"], postgresql_where=open_, sqlite_where=open_)


def _pending_index(where: str) -> None:
    op.drop_index("outbox_entry_pending", table_name="outbox_entry")
    op.create_index(
        "outbox_entry_pending",
        "outbox_entry",
        _PENDING,
        postgresql_where=sa.text(where),
        sqlite_where=sa.text(where),
    )


def downgrade() -> None:
    op.execute("UPDATE schema_version SET version = 3")
    _pending_index("status = 'pending'")
    for name, (table, *_) in _INDEXES.items():
        op.drop_index(name, table_name=table)
    for table in ("bulk_action", "schedule", "workflow_declaration"):
        op.drop_table(table)
    for column in ("step", "held", "lane"):
        op.drop_column("outbox_entry", column)
    for column in (
        "schedule",
        "expires_at",
        "lane_limit",
        "lane",
        "generation",
        "cascade",
        "children",
        "parent_index",
        "parent_call",
    ):
        op.drop_column("run", column)
