"""Who may do what: API keys, their scopes and their namespace.

A key is `pmk_` and 32 random bytes; the store keeps its SHA-256 only. admin includes operate, operate includes submit,
submit includes read; execute stands apart. A key works in one namespace; an admin key may name another one per call.
"""

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from dispatcher import errors
from dispatcher.store import Session, Store, fleet
from dispatcher.store import keys as key_store
from dispatcher.store.endpoints import EVERYWHERE
from dispatcher.store.keys import KeyRow
from endpoint_sdk.wire import clock, identity
from endpoint_sdk.wire.messages import Name, Scope
from endpoint_sdk.wire.operating import ApiKeyView, CreateKey, KeyCreated

KEY_PREFIX: Final = "pmk_"
SCOPES: Final[tuple[Scope, ...]] = ("admin", "operate", "submit", "read", "execute")
_INCLUDED: Final[dict[str, frozenset[str]]] = {
    "admin": frozenset({"admin", "operate", "submit", "read"}),
    "operate": frozenset({"operate", "submit", "read"}),
    "submit": frozenset({"submit", "read"}),
    "read": frozenset({"read"}),
    "execute": frozenset({"execute"}),
}
_FRESH: Final = 3.0
_REMEMBERED: Final = 10_000

log = logging.getLogger(__name__)


class Caller(msgspec.Struct, frozen=True):
    """Who sent a request and what they may do; `actor` is what histories show."""

    key_id: str
    namespace: str
    scopes: frozenset[str]
    actor: str

    def allow(self, scope: Scope) -> None:
        """Raises Forbidden unless the caller holds *scope*, itself or by a wider one."""
        if scope not in self.scopes:
            raise errors.Forbidden(
                "forbidden",
                f"This key may not do that: it lacks the scope {scope}.",
                hint=f"Use a key with the scope {scope}.",
            )


class Access:
    """Tells callers by their API key; a key once seen is trusted for three seconds without asking the database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, tuple[float, KeyRow]] = {}

    async def caller(self, credential: str, namespace: str | None) -> Caller:
        """The holder of the API key *credential*, acting in *namespace* if it is an admin key that names one.

        Raises Unauthorized for an unknown or revoked key, Forbidden when another key names a namespace not its own,
        BadRequest for a malformed namespace.
        """
        digest = _digest(credential)
        row = await self._row(digest)
        if row is None or not hmac.compare_digest(row.hash, digest):
            raise unauthorized()
        scopes = frozenset[str]().union(*(_INCLUDED[scope] for scope in row.scopes.split()))
        return Caller(row.id, _namespace(row, scopes, namespace), scopes, f"key:{row.name}")

    def forget(self) -> None:
        """The next request of every key asks the database again."""
        self._known.clear()

    async def _row(self, digest: bytes) -> KeyRow | None:
        until, row = self._known.get(digest, (0.0, None))
        if row is not None and time.monotonic() < until:
            return row
        found = await self._store.transact(lambda session: key_store.by_hash(session, digest))
        self._known.pop(digest, None)
        if found is not None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[digest] = (time.monotonic() + _FRESH, found)
        return found


def unauthorized(message: str = "The credential is not valid here.") -> errors.Unauthorized:
    """The one answer to every missing, malformed, unknown or revoked credential."""
    return errors.Unauthorized(
        "unauthorized", message, hint="Send Authorization: Bearer with a key made by `pointsman key create`."
    )


async def create(store: Store, request: CreateKey) -> KeyCreated:
    """A fresh key, stored; the answer is the only place it is ever shown."""
    key, insertion = _insertion(request)
    row = await store.transact(insertion)
    return KeyCreated(row.id, key, _scopes(row), row.namespace)


def create_blocking(store: Store, request: CreateKey) -> KeyCreated:
    """As `create`, for the command line."""
    key, insertion = _insertion(request)
    row = store.transact_blocking(insertion)
    return KeyCreated(row.id, key, _scopes(row), row.namespace)


def new_key() -> str:
    """A credential nobody can guess; good for nothing until it is stored."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


async def ensure(store: Store, key: str, name: str, scopes: Sequence[Scope]) -> bool:
    """*key* is good in the namespace default, with *scopes* if it is stored only now; False if it was revoked."""
    digest, held = _digest(key), " ".join(scope for scope in SCOPES if scope in scopes)

    def operation(session: Session) -> bool:
        fleet.lock(session)
        known = next((row for row in key_store.all_keys(session) if row.hash == digest), None)
        if known is None:
            key_store.insert(session, identity.new("key"), name, "default", held, digest)
        return known is None or known.revoked_at is None

    return await store.transact(operation)


async def list_(store: Store) -> list[ApiKeyView]:
    """Every key without its secret, revoked ones too, the oldest first."""
    return [_view(row) for row in await store.transact(key_store.all_keys)]


async def revoke(store: Store, key_id: str) -> ApiKeyView:
    """The key, good no longer: here at once, on other replicas within three seconds.

    Raises NotFound `key_not_found`.
    """
    row = await store.transact(lambda session: key_store.revoke(session, key_id))
    if row is None:
        raise errors.NotFound("key_not_found", f"There is no key {key_id}.", hint="List them: pointsman key list")
    return _view(row)


async def ensure_admin(store: Store, admin_key: str | None) -> None:
    """At the first start *admin_key* becomes the admin key; later it changes nothing."""
    if admin_key is None:
        if not await store.transact(key_store.has_admin):
            log.warning(
                "no admin key", extra={"hint": "set POINTSMAN_ADMIN_KEY, or run: pointsman key create --database URL"}
            )
        return
    if len(admin_key) < 20:
        log.warning("POINTSMAN_ADMIN_KEY is short; use pmk_ and at least 22 random characters")
    digest = _digest(admin_key)

    def operation(session: Session) -> bool:
        fleet.lock(session)  # replicas start at the same time
        if key_store.has_admin(session):
            return key_store.by_hash(session, digest) is not None
        key_store.insert(session, identity.new("key"), "admin", "default", "admin", digest)
        return True

    if not await store.transact(operation):
        log.warning("POINTSMAN_ADMIN_KEY is ignored: the database already has an admin key")


def _insertion(request: CreateKey) -> tuple[str, Callable[[Session], KeyRow]]:
    _check_namespace(request.namespace)
    key, key_id = new_key(), identity.new("key")
    scopes = " ".join(scope for scope in SCOPES if scope in request.scopes)
    return key, lambda session: key_store.insert(session, key_id, request.name, request.namespace, scopes, _digest(key))


def _namespace(row: KeyRow, scopes: frozenset[str], asked: str | None) -> str:
    if asked is None or asked == row.namespace:
        return row.namespace
    if "admin" not in scopes:
        raise errors.Forbidden(
            "forbidden",
            f"This key works in the namespace {row.namespace} only.",
            hint="Leave out pointsman-namespace, or use an admin key.",
        )
    _check_namespace(asked)
    return asked


def _check_namespace(namespace: str) -> None:
    try:
        msgspec.convert(namespace, Name)
    except msgspec.ValidationError:
        namespace = EVERYWHERE
    if namespace == EVERYWHERE:
        raise errors.BadRequest(
            "bad_parameter", f"A namespace has 1 to 200 printable characters, and is not {EVERYWHERE}."
        )


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()


def _scopes(row: KeyRow) -> list[Scope]:
    held = row.scopes.split()
    return [scope for scope in SCOPES if scope in held]


def _view(row: KeyRow) -> ApiKeyView:
    revoked = None if row.revoked_at is None else clock.to_wire(row.revoked_at)
    return ApiKeyView(row.id, row.name, _scopes(row), row.namespace, clock.to_wire(row.created_at), revoked)
