"""Alembic's environment: runs the versions on the connection the store hands over."""

from alembic import context

from dispatcher.store import schema

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=schema.metadata, render_as_batch=False)
with context.begin_transaction():
    context.run_migrations()
