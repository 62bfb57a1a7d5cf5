"""Who executes runs, who starts them and who may: publishers, workflows, schedules, bulk actions, keys."""

from typing import Final

import sqlalchemy as sa

from dispatcher.store.schema.base import count, flag, metadata

endpoint: Final = sa.Table(
    "endpoint",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("platform", sa.Text, nullable=False),
    sa.Column("max_in_flight", sa.Integer, nullable=False),
    flag("allow_http"),
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

# What the code of a workflow says of itself beside its name (ServedWorkflow as JSON): by discovery, or by a poller.
workflow_declaration: Final = sa.Table(
    "workflow_declaration",
    metadata,
    sa.Column("namespace", sa.Text, primary_key=True),
    sa.Column("workflow", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, primary_key=True),
    sa.Column("declared", sa.Text, nullable=False),
    sa.Column("declared_at", sa.BigInteger, nullable=False),
)

# When a workflow is started by the clock: by a cron expression in a time zone, or every so often.
schedule: Final = sa.Table(
    "schedule",
    metadata,
    sa.Column("namespace", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("workflow", sa.Text, nullable=False),
    sa.Column("version", sa.Text),
    sa.Column("cron", sa.Text),
    sa.Column("timezone", sa.Text, nullable=False, server_default="UTC"),
    sa.Column("every_ms", sa.BigInteger),
    sa.Column("input", sa.LargeBinary, nullable=False),
    sa.Column("pool", sa.Text, nullable=False, server_default="default"),
    sa.Column("tags", sa.Text, nullable=False, server_default="{}"),
    sa.Column("priority", sa.SmallInteger, nullable=False, server_default="5"),
    sa.Column("overlap", sa.Text, nullable=False),
    sa.Column("catch_up", sa.Integer, nullable=False),
    sa.Column("jitter_ms", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("owner", sa.Text, nullable=False),
    flag("paused"),
    # Whether its owner still wants it: code that no longer declares a schedule leaves it behind, out of force.
    sa.Column("active", sa.SmallInteger, nullable=False, server_default="1"),
    # The next occurrence, and when it is looked at: then, or later after a problem.
    sa.Column("next_at", sa.BigInteger),
    sa.Column("wake_at", sa.BigInteger),
    sa.Column("problem", sa.Text),
    sa.Column("last_at", sa.BigInteger),
    sa.Column("last_run_id", sa.Text),
    count("skipped"),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.CheckConstraint("(cron IS NULL) <> (every_ms IS NULL)", name="schedule_one_rule"),
    sa.Index(
        "schedule_wake_at",
        "wake_at",
        postgresql_where=sa.text("wake_at IS NOT NULL AND paused = 0"),
        sqlite_where=sa.text("wake_at IS NOT NULL AND paused = 0"),
    ),
)

# What an operator does to many runs: applied a few at a time, in the order of the ids, from `cursor` on.
bulk_action: Final = sa.Table(
    "bulk_action",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("filter", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("cursor", sa.Text),
    sa.Column("matched", sa.Integer, nullable=False),
    count("applied"),
    count("refused"),
    # The pace: when the next run may be acted on.
    sa.Column("slot_at", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("finished_at", sa.BigInteger),
    sa.Index(
        "bulk_action_open",
        "id",
        postgresql_where=sa.text("finished_at IS NULL"),
        sqlite_where=sa.text("finished_at IS NULL"),
    ),
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
