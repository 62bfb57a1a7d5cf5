"""Alembic migrations: expand first, contract a release later."""
