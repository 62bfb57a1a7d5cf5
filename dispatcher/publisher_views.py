"""The publishers as people see them: endpoints and brokers alike, each with its state and what is wrong with it."""

from typing import Final, cast

from dispatcher import errors
from dispatcher.store import Session, Store
from dispatcher.store import endpoints as endpoint_store
from dispatcher.store.endpoints import EndpointRow, KeyRow
from endpoint_sdk.wire import clock
from endpoint_sdk.wire.operating import KeyView, PublisherOwner, PublisherType, PublisherView

_ADVICE: Final = {
    "broker_unreachable": "Nobody answers there: is the address right, does the broker run, does the network allow it?",
    "queue_missing": "The queue does not exist: create it, or correct queueUrl and region.",
    "queue_wrong_kind": "What is there is no queue of this kind: the log has the broker's own words.",
    "credentials_refused": "The broker refused: check the AWS credentials and their permissions "
    "(sqs:SendMessage, sqs:GetQueueAttributes), or the Redis user and password.",
    "throttled": "The broker takes no more now: it is full, or its limits are reached.",
    "broker_refused": "The broker refused for another reason; the log has its words.",
    "check_failed": "The check itself failed; the log says how.",
}
_PROBE: Final = "The last probe failed; `pointsman endpoint test {name}` says more."


async def list_(store: Store, namespace: str) -> list[PublisherView]:
    """The publishers that serve *namespace*, the oldest first."""

    def operation(session: Session) -> list[PublisherView]:
        keys = endpoint_store.keys(session)
        return [_view(row, keys.get(row.id, [])) for row in endpoint_store.visible(session, namespace)]

    return await store.transact(operation)


async def get(store: Store, namespace: str, name: str) -> PublisherView:
    """The publisher *name*. Raises NotFound `publisher_not_found`."""

    def operation(session: Session) -> PublisherView:
        row = endpoint_store.named(session, namespace, name)
        if row is None:
            raise errors.NotFound(
                "publisher_not_found", f"There is no publisher {name!r}.", hint="List them: pointsman publisher list"
            )
        return _view(row, endpoint_store.keys(session).get(row.id, []))

    return await store.transact(operation)


def _view(row: EndpointRow, signing: list[KeyRow]) -> PublisherView:
    is_push = row.type == "push"
    return PublisherView(
        id=row.id,
        name=row.name,
        type=cast("PublisherType", row.type),
        url=row.url,
        state=row.state,
        reason=row.reason,
        advice=None
        if row.reason is None
        else _ADVICE.get(row.reason, _PROBE.format(name=row.name) if is_push else None),
        owner=cast("PublisherOwner", row.owner),
        max_in_flight=row.max_in_flight if is_push else None,
        republish_ms=row.republish_ms,
        keys=[KeyView(key.hint, clock.to_wire(key.created_at)) for key in signing],
        created_at=clock.to_wire(row.created_at),
    )
