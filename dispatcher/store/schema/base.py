"""What the tables are made with."""

from typing import Any, Final

import sqlalchemy as sa

metadata: Final = sa.MetaData()

now: Final[sa.ColumnElement[Any]] = sa.func.pointsman_now()


def flag(name: str) -> sa.Column[int]:
    """A column that is 0 or 1, 0 by default."""
    return sa.Column(name, sa.SmallInteger, nullable=False, server_default="0")


def count(name: str) -> sa.Column[int]:
    """A column that counts from 0."""
    return sa.Column(name, sa.Integer, nullable=False, server_default="0")
