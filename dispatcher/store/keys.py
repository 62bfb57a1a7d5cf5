"""API keys in the store; only their SHA-256 is kept."""

from typing import Final

import msgspec
import sqlalchemy as sa
from sqlalchemy import bindparam

from dispatcher.store import schema
from dispatcher.store.session import Session, Statement, columns_of


class KeyRow(msgspec.Struct, frozen=True):
    """A row of `api_key`; *scopes* are separated by spaces, *revoked_at* is None while the key is good."""

    id: str
    name: str
    namespace: str
    scopes: str
    hash: bytes
    created_at: int
    revoked_at: int | None


_KEY: Final = schema.api_key.c
_COLUMNS: Final = columns_of(KeyRow, schema.api_key)
_BY_HASH: Final = Statement(sa.select(*_COLUMNS).where(_KEY.hash == bindparam("digest"), _KEY.revoked_at.is_(None)))
_ALL: Final = Statement(sa.select(*_COLUMNS).order_by(_KEY.id))
_ADMIN: Final = Statement(
    sa.select(_KEY.id).where(_KEY.revoked_at.is_(None), (" " + _KEY.scopes + " ").like("% admin %")).limit(1)
)
_INSERT: Final = Statement(
    sa.insert(schema.api_key)
    .values(
        id=bindparam("id"),
        name=bindparam("name"),
        namespace=bindparam("namespace"),
        scopes=bindparam("scopes"),
        hash=bindparam("digest"),
        created_at=schema.now,
        revoked_at=sa.null(),
    )
    .returning(*_COLUMNS)
)
_REVOKE: Final = Statement(
    sa.update(schema.api_key)
    .where(_KEY.id == bindparam("key_id"))
    .values(revoked_at=sa.func.coalesce(_KEY.revoked_at, schema.now))
    .returning(*_COLUMNS)
)


def by_hash(session: Session, digest: bytes) -> KeyRow | None:
    """The key with this hash, unless it was revoked."""
    row = session.one(_BY_HASH, digest=digest)
    return None if row is None else KeyRow(*row)


def all_keys(session: Session) -> list[KeyRow]:
    """Every key, revoked ones too, the oldest first."""
    return [KeyRow(*row) for row in session.all(_ALL)]


def has_admin(session: Session) -> bool:
    """Whether a key of scope admin is good."""
    return session.one(_ADMIN) is not None


def insert(session: Session, key_id: str, name: str, namespace: str, scopes: str, digest: bytes) -> KeyRow:
    """The new key, stored."""
    row = session.one(_INSERT, id=key_id, name=name, namespace=namespace, scopes=scopes, digest=digest)
    assert row is not None
    return KeyRow(*row)


def revoke(session: Session, key_id: str) -> KeyRow | None:
    """The key, revoked now or already before; None when there is none of that id."""
    row = session.one(_REVOKE, key_id=key_id)
    return None if row is None else KeyRow(*row)
