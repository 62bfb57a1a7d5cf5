"""The publishers, endpoints among them, and their signing keys in the store. Secrets come and go encrypted."""

from typing import Final

import msgspec
import sqlalchemy as sa
from sqlalchemy import bindparam

from dispatcher.store import schema
from dispatcher.store.session import Session, Statement, columns_of

EVERYWHERE: Final = "*"
"""The namespace of an endpoint of the configuration file: it serves all."""


class EndpointRow(msgspec.Struct, frozen=True):
    """A row of `endpoint`: a publisher of any type; *workflows* and *allow_addresses* are JSON lists."""

    id: str
    namespace: str
    name: str
    url: str
    platform: str
    max_in_flight: int
    allow_http: int
    allow_addresses: str
    owner: str
    state: str
    reason: str | None
    sdk: str | None
    build_id: str | None
    workflows: str
    created_at: int
    discovered_at: int | None
    type: str
    republish_ms: int | None


class KeyRow(msgspec.Struct, frozen=True):
    """A row of `signing_key`; good until *expires_at*, for ever when None."""

    id: str
    endpoint_id: str
    secret: bytes
    hint: str
    created_at: int
    expires_at: int | None


_E: Final = schema.endpoint.c
_K: Final = schema.signing_key.c
_COLUMNS: Final = columns_of(EndpointRow, schema.endpoint)
_KEY_COLUMNS: Final = columns_of(KeyRow, schema.signing_key)
_ALL: Final = Statement(sa.select(*_COLUMNS).order_by(_E.id))
_VISIBLE: Final = Statement(
    sa.select(*_COLUMNS).where(_E.namespace.in_([bindparam("namespace"), sa.literal_column("'*'")])).order_by(_E.id)
)
_NAMED: Final = Statement(
    sa.select(*_COLUMNS)
    .where(_E.namespace.in_([bindparam("namespace"), sa.literal_column("'*'")]), _E.name == bindparam("name"))
    .order_by(_E.namespace.desc())
)
_INSERT: Final = Statement(
    sa.insert(schema.endpoint).values(
        id=bindparam("id"),
        namespace=bindparam("namespace"),
        name=bindparam("name"),
        url=bindparam("url"),
        platform=bindparam("platform"),
        max_in_flight=bindparam("max_in_flight"),
        allow_http=bindparam("allow_http"),
        allow_addresses=bindparam("allow_addresses"),
        type=bindparam("type"),
        republish_ms=bindparam("republish_ms"),
        owner=bindparam("owner"),
        state=sa.literal_column("'unverified'"),
        workflows=sa.literal_column("'[]'"),
        created_at=schema.now,
    )
)
_SAME: Final = sa.and_(_E.url == bindparam("url"), _E.type == bindparam("type"))
_CONFIGURE: Final = Statement(
    sa.update(schema.endpoint)
    .where(_E.id == bindparam("endpoint_id"))
    .values(
        url=bindparam("url"),
        platform=bindparam("platform"),
        max_in_flight=bindparam("max_in_flight"),
        allow_http=bindparam("allow_http"),
        allow_addresses=bindparam("allow_addresses"),
        type=bindparam("type"),
        republish_ms=bindparam("republish_ms"),
        state=sa.case((_SAME, _E.state), else_=sa.literal_column("'unverified'")),
        reason=sa.case((_SAME, _E.reason), else_=sa.null()),
        workflows=sa.case((_E.type == bindparam("type"), _E.workflows), else_=sa.literal_column("'[]'")),
    )
)
_DELETE_KEYS: Final = Statement(sa.delete(schema.signing_key).where(_K.endpoint_id == bindparam("endpoint_id")))
_DELETE: Final = Statement(sa.delete(schema.endpoint).where(_E.id == bindparam("endpoint_id")))
_DISCOVERED: Final = Statement(
    sa.update(schema.endpoint)
    .where(_E.id == bindparam("endpoint_id"))
    .values(
        state=sa.literal_column("'active'"),
        reason=sa.null(),
        sdk=bindparam("sdk"),
        build_id=bindparam("build_id"),
        workflows=bindparam("workflows"),
        discovered_at=sa.case(
            (
                sa.and_(
                    _E.discovered_at.is_not(None),
                    _E.build_id == bindparam("build_id"),
                    _E.workflows == bindparam("workflows"),
                ),
                _E.discovered_at,
            ),
            else_=schema.now,
        ),
    )
)
_UNREACHED: Final = Statement(
    sa.update(schema.endpoint).where(_E.id == bindparam("endpoint_id")).values(reason=bindparam("reason"))
)
_CHECKED: Final = Statement(
    sa.update(schema.endpoint)
    .where(_E.id == bindparam("endpoint_id"))
    .values(state=bindparam("state"), reason=bindparam("reason"))
)
_KEYS: Final = Statement(
    sa.select(*_KEY_COLUMNS)
    .where(sa.or_(_K.expires_at.is_(None), _K.expires_at > schema.now))
    .order_by(_K.created_at.desc(), _K.id.desc())
)
_INSERT_KEY: Final = Statement(
    sa.insert(schema.signing_key).values(
        id=bindparam("id"),
        endpoint_id=bindparam("endpoint_id"),
        secret=bindparam("secret"),
        hint=bindparam("hint"),
        created_at=schema.now,
        expires_at=sa.null(),
    )
)
_EXPIRE_KEYS: Final = Statement(
    sa.update(schema.signing_key)
    .where(_K.endpoint_id == bindparam("endpoint_id"), _K.expires_at.is_(None))
    .values(expires_at=schema.now + bindparam("grace_ms", type_=sa.BigInteger))
)


class Configuration(msgspec.Struct, frozen=True):
    """What a registration or the configuration file says of a publisher; most of it concerns endpoints only."""

    name: str
    url: str
    platform: str
    max_in_flight: int
    allow_http: bool
    allow_addresses: list[str]
    type: str = "push"
    republish_ms: int | None = None

    def columns(self) -> dict[str, str | int | None]:
        return {
            "url": self.url,
            "platform": self.platform,
            "max_in_flight": self.max_in_flight,
            "allow_http": int(self.allow_http),
            "allow_addresses": msgspec.json.encode(self.allow_addresses).decode(),
            "type": self.type,
            "republish_ms": self.republish_ms,
        }


def all_endpoints(session: Session) -> list[EndpointRow]:
    """Every publisher of every namespace, the oldest first."""
    return [EndpointRow(*row) for row in session.all(_ALL)]


def visible(session: Session, namespace: str) -> list[EndpointRow]:
    """The publishers that serve *namespace*, the oldest first."""
    return [EndpointRow(*row) for row in session.all(_VISIBLE, namespace=namespace)]


def named(session: Session, namespace: str, name: str) -> EndpointRow | None:
    """The publisher *name* of the namespace, else that of the configuration file."""
    row = session.one(_NAMED, namespace=namespace, name=name)
    return None if row is None else EndpointRow(*row)


def insert(session: Session, endpoint_id: str, namespace: str, owner: str, given: Configuration) -> None:
    """The endpoint is stored, unverified and without keys."""
    session.run(_INSERT, id=endpoint_id, namespace=namespace, name=given.name, owner=owner, **given.columns())


def configure(session: Session, endpoint_id: str, given: Configuration) -> None:
    """The publisher is as given; a new URL or type makes it unverified."""
    session.run(_CONFIGURE, endpoint_id=endpoint_id, **given.columns())


def delete(session: Session, endpoint_id: str) -> None:
    """The endpoint and its keys are gone."""
    session.run(_DELETE_KEYS, endpoint_id=endpoint_id)
    session.run(_DELETE, endpoint_id=endpoint_id)


def discovered(session: Session, endpoint_id: str, sdk: str, build_id: str, workflows: str) -> None:
    """The endpoint is active and serves *workflows*; the time of discovery moves only when something is new."""
    session.run(_DISCOVERED, endpoint_id=endpoint_id, sdk=sdk, build_id=build_id, workflows=workflows)


def unreached(session: Session, endpoint_id: str, reason: str) -> None:
    """Why the last probe failed is kept; what was discovered before stays."""
    session.run(_UNREACHED, endpoint_id=endpoint_id, reason=reason)


def checked(session: Session, endpoint_id: str, state: str, reason: str | None) -> None:
    """What a check of the publisher found is kept."""
    session.run(_CHECKED, endpoint_id=endpoint_id, state=state, reason=reason)


def keys(session: Session) -> dict[str, list[KeyRow]]:
    """The good signing keys by endpoint id, the newest first."""
    found: dict[str, list[KeyRow]] = {}
    for row in session.all(_KEYS):
        key = KeyRow(*row)
        found.setdefault(key.endpoint_id, []).append(key)
    return found


def add_key(session: Session, key_id: str, endpoint_id: str, secret: bytes, hint: str, grace_ms: int) -> None:
    """The key is the newest; older ones stay good for *grace_ms* more."""
    session.run(_EXPIRE_KEYS, endpoint_id=endpoint_id, grace_ms=grace_ms)
    session.run(_INSERT_KEY, id=key_id, endpoint_id=endpoint_id, secret=secret, hint=hint)
