"""The registry: who can be pushed to, with which keys, serving which workflows; and the brokers beside them.

Publishers of the configuration file serve every namespace and are brought up to date at start and at a reload; the
endpoints added by a caller serve its namespace. An endpoint is a publisher of type push, the only type a caller can
add. Nothing here waits for an endpoint or a broker: they are probed in the background.
"""

import ipaddress
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast

import msgspec

from dispatcher import broker_url, endpoint_url, errors
from dispatcher.queues import Queue
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Publisher, PushPublisher, RedisPublisher, SqsPublisher
from dispatcher.store import Session, Store, fleet
from dispatcher.store import endpoints as endpoint_store
from dispatcher.store.endpoints import EVERYWHERE, Configuration, EndpointRow, KeyRow
from dispatcher.store.served import Served
from endpoint_sdk.wire import clock, identity, signature
from endpoint_sdk.wire.messages import Platform, ServedWorkflow
from endpoint_sdk.wire.operating import AddEndpoint, EndpointView, KeyView, PublisherType
from publishers.base import Target

ROTATION_GRACE_MS: Final = 24 * 3_600_000
_WORKFLOWS: Final = msgspec.json.Decoder(list[ServedWorkflow])
_ADDRESSES: Final = msgspec.json.Decoder(tuple[str, ...])

log = logging.getLogger(__name__)


class RelayTarget(msgspec.Struct, frozen=True):
    """A publisher as the relay sees it; *namespace* None serves all, a lower *order* is preferred.

    *republish_ms* is for brokers: how long a first copy may stay unclaimed; None says the default of its type.
    """

    name: str
    namespace: str | None
    target: Target
    max_in_flight: int
    served: list[ServedWorkflow]
    order: int
    endpoint_id: str
    discovered_at: int | None
    type: PublisherType = "push"
    republish_ms: int | None = None

    def within(self, namespace: str) -> bool:
        """Whether the endpoint may see runs of *namespace* at all."""
        return self.namespace is None or self.namespace == namespace

    def serves(self, queue: Queue) -> bool:
        """Whether discovery listed the workflow and version of *queue*, or a version that accepts it."""
        return self.within(queue.namespace) and any(
            item.name == queue.workflow and (item.version == queue.version or queue.version in item.accepts)
            for item in self.served
        )


class Added(msgspec.Struct, frozen=True):
    """A stored endpoint, and its secret if it was made here."""

    view: EndpointView
    secret: str | None


async def add(store: Store, keys: ServerKeys, namespace: str, request: AddEndpoint) -> Added:
    """The endpoint is stored, unverified, with the given signing secret or a fresh one.

    Raises Unprocessable `endpoint_url_refused` or `secret_invalid`, Conflict `endpoint_exists` or
    `endpoint_owned_by_yaml`.
    """
    _check_url(request)
    secret = request.secret or signature.new_secret()
    try:
        signature.parse_secret(secret)
    except ValueError as error:
        raise errors.Unprocessable(
            "secret_invalid", str(error), hint="Leave the secret out, and one is made for you."
        ) from None
    endpoint_id, encrypted = identity.new("ep"), keys.encrypt(secret.encode())
    given = Configuration(
        request.name,
        request.url,
        request.platform,
        request.max_in_flight,
        request.allow_http,
        list(request.allow_addresses),
    )

    def operation(session: Session) -> EndpointView:
        fleet.lock(session)  # two that take the same name at once queue here
        taken = endpoint_store.named(session, namespace, request.name)
        if taken is not None:
            raise _taken(request.name, taken.owner)
        endpoint_store.insert(session, endpoint_id, namespace, "api", given)
        endpoint_store.add_key(session, identity.new("key"), endpoint_id, encrypted, signature.hint(secret), 0)
        return _named(session, namespace, request.name)

    view = await store.transact(operation)
    return Added(view, None if request.secret else secret)


async def list_(store: Store, namespace: str) -> list[EndpointView]:
    """The endpoints that serve *namespace*, the oldest first."""

    def operation(session: Session) -> list[EndpointView]:
        keys = endpoint_store.keys(session)
        rows = endpoint_store.visible(session, namespace)
        return [_view(row, keys.get(row.id, [])) for row in rows if row.type == "push"]

    return await store.transact(operation)


async def get(store: Store, namespace: str, name: str) -> EndpointView:
    """The endpoint *name*. Raises NotFound `endpoint_not_found`."""
    return await store.transact(lambda session: _named(session, namespace, name))


async def targets(
    store: Store,
    keys: ServerKeys,
    namespace: str | None = None,
    file_order: Sequence[str] = (),
    *,
    leave_out_unreadable: bool = False,
) -> list[RelayTarget]:
    """The publishers of *namespace* (None: of all), as preferred: those of the file in its order, then the newest.

    Raises StartUpError `secret_key_wrong` when a signing secret was encrypted under a key this server does not have;
    with *leave_out_unreadable* that publisher is logged and left out: a replica that runs serves the others.
    """

    def operation(session: Session) -> tuple[list[EndpointRow], dict[str, list[KeyRow]]]:
        return endpoint_store.all_endpoints(session), endpoint_store.keys(session)

    rows, signing = await store.transact(operation)
    places = {name: place for place, name in enumerate(file_order)}
    rows.reverse()
    rows.sort(key=lambda row: places.get(row.name, len(places)) if row.owner == "yaml" else len(places) + 1)
    found: list[RelayTarget] = []
    for order, row in enumerate(rows):
        try:
            found.append(_target(row, signing.get(row.id, []), keys, order))
        except errors.StartUpError as error:
            if not leave_out_unreadable:
                raise
            log.warning("publisher left out", extra={"publisher": row.name, "code": error.code})
    return [item for item in found if namespace is None or item.within(namespace)]


def default_version(
    known: list[RelayTarget], namespace: str, workflow: str, polled: Sequence[Served] = ()
) -> str | None:
    """The version of *workflow* discovered last in *namespace*, by an endpoint or a poll; of several the highest."""
    found = [
        (item.discovered_at or 0, _version_order(served.version), served.version)
        for item in known
        if item.within(namespace)
        for served in item.served
        if served.name == workflow
    ]
    found += [(item.first_seen_at, _version_order(item.version), item.version) for item in polled]
    return max(found)[2] if found else None


async def apply_file(store: Store, keys: ServerKeys, publishers: Mapping[str, Publisher]) -> None:
    """The registry holds exactly the publishers of the configuration file, in its order.

    A changed secret is a rotation: the old one stays good for 24 h. A publisher that left the file is gone.
    """

    def operation(session: Session) -> None:
        fleet.lock(session)  # replicas start at the same time
        before = {row.name: row for row in endpoint_store.all_endpoints(session) if row.owner == "yaml"}
        signing = endpoint_store.keys(session)
        for name in before.keys() - publishers.keys():
            endpoint_store.delete(session, before[name].id)
        for name, publisher in publishers.items():
            endpoint_id = _apply(session, before.get(name), name, publisher)
            _rotate(session, keys, endpoint_id, publisher.secret.get_secret_value(), signing.get(endpoint_id, []))

    await store.transact(operation)


def _apply(session: Session, row: EndpointRow | None, name: str, publisher: Publisher) -> str:
    given = _configuration(name, publisher)
    if row is not None:
        endpoint_store.configure(session, row.id, given)
        return row.id
    endpoint_id = identity.new("ep")
    endpoint_store.insert(session, endpoint_id, EVERYWHERE, "yaml", given)
    return endpoint_id


def _configuration(name: str, publisher: Publisher) -> Configuration:
    if isinstance(publisher, PushPublisher):
        return Configuration(
            name,
            publisher.url,
            publisher.platform,
            publisher.max_in_flight,
            publisher.allow_http,
            list(publisher.allow_addresses),
        )
    return Configuration(
        name, url_of(publisher), "generic", 0, False, [], type=publisher.type, republish_ms=publisher.republish_ms
    )


def url_of(publisher: Publisher) -> str:
    """Where *publisher* is, without a password."""
    if isinstance(publisher, SqsPublisher):
        return publisher.queue_url
    return broker_url.without_password(publisher.url) if isinstance(publisher, RedisPublisher) else publisher.url


def _rotate(session: Session, keys: ServerKeys, endpoint_id: str, secret: str, before: list[KeyRow]) -> None:
    if before and keys.decrypt(before[0].secret) == secret.encode():
        return
    encrypted = keys.encrypt(secret.encode())
    endpoint_store.add_key(
        session, identity.new("key"), endpoint_id, encrypted, signature.hint(secret), ROTATION_GRACE_MS
    )


def _check_url(request: AddEndpoint) -> None:
    fault = endpoint_url.fault(request.url, allow_http=request.allow_http)
    if fault:
        raise errors.Unprocessable(
            "endpoint_url_refused", fault, hint="Write https://host/path; for plain HTTP set allowHttp."
        )
    for address in request.allow_addresses:
        try:
            ipaddress.ip_network(address, strict=False)
        except ValueError:
            raise errors.Unprocessable(
                "endpoint_url_refused",
                "allowAddresses holds something that is no address or network.",
                hint="Write addresses such as 10.0.0.0/8 or ::1.",
            ) from None


def _taken(name: str, owner: str) -> errors.Conflict:
    if owner == "yaml":
        return errors.Conflict(
            "endpoint_owned_by_yaml",
            f"The endpoint {name!r} is described in the configuration file.",
            hint="Change it there, or choose another name.",
        )
    return errors.Conflict(
        "endpoint_exists", f"There is an endpoint {name!r} already.", hint=f"Look at it: pointsman endpoint show {name}"
    )


def _named(session: Session, namespace: str, name: str) -> EndpointView:
    row = endpoint_store.named(session, namespace, name)
    if row is None or row.type != "push":
        raise not_found(name)
    return _view(row, endpoint_store.keys(session).get(row.id, []))


def not_found(name: str) -> errors.NotFound:
    """The refusal for an endpoint that does not exist."""
    return errors.NotFound(
        "endpoint_not_found", f"There is no endpoint {name!r}.", hint="List them: pointsman endpoint list"
    )


def _view(row: EndpointRow, signing: list[KeyRow]) -> EndpointView:
    return EndpointView(
        id=row.id,
        name=row.name,
        url=row.url,
        platform=cast("Platform", row.platform),
        state=row.state,
        reason=row.reason,
        max_in_flight=row.max_in_flight,
        owner=cast("Literal['api', 'yaml']", row.owner),
        sdk=row.sdk,
        workflows=_WORKFLOWS.decode(row.workflows),
        keys=[KeyView(key.hint, clock.to_wire(key.created_at)) for key in signing],
        created_at=clock.to_wire(row.created_at),
        discovered_at=None if row.discovered_at is None else clock.to_wire(row.discovered_at),
    )


def _target(row: EndpointRow, signing: list[KeyRow], keys: ServerKeys, order: int) -> RelayTarget:
    target = Target(
        name=row.name,
        url=row.url,
        platform=cast("Platform", row.platform),
        secrets=tuple(signature.parse_secret(keys.decrypt(key.secret).decode()) for key in signing[:10]),
        allow_http=bool(row.allow_http),
        allow_addresses=_ADDRESSES.decode(row.allow_addresses),
    )
    return RelayTarget(
        name=row.name,
        namespace=None if row.namespace == EVERYWHERE else row.namespace,
        target=target,
        max_in_flight=row.max_in_flight,
        served=_WORKFLOWS.decode(row.workflows) if row.type == "push" else [],
        order=order,
        endpoint_id=row.id,
        discovered_at=row.discovered_at,
        type=cast("PublisherType", row.type),
        republish_ms=row.republish_ms,
    )


def _version_order(version: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.findall(r"[0-9]+|[^0-9.]+", version, re.ASCII)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
