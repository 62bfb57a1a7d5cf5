"""What the kit takes of an endpoint and changes in one, which nobody else should: no setting of a deployed endpoint
sends its calls elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from endpoint_sdk.endpoint import Endpoint
from endpoint_sdk.envelope import Envelope

if TYPE_CHECKING:
    from endpoint_sdk.client import Client


def signing_key(endpoint: Endpoint) -> bytes:
    """The first key *endpoint* accepts; calls the user's function if it takes its secrets from one."""
    return endpoint._secrets.fetch()[0]


def envelope_of(endpoint: Endpoint) -> Envelope:
    """What payloads of *endpoint* are sealed with."""
    return endpoint._envelope


def share_envelope(endpoint: Endpoint, client: "Client") -> None:
    """*client* seals and opens payloads as *endpoint* does."""
    client._envelope = endpoint._envelope


def transport_of(endpoint: Endpoint) -> Any:
    """What calls of *endpoint* go through."""
    return endpoint.executor._transport


def exchange_transport(endpoint: Endpoint, transport: Any) -> None:
    """Calls of *endpoint* go through *transport* from now on."""
    endpoint.executor._transport = transport


@contextmanager
def calling(endpoint: Endpoint, url: str) -> Iterator[None]:
    """Inside the block *endpoint* calls the dispatcher at *url*, whatever it was told."""
    executor = endpoint.executor
    before = endpoint._url, executor._url
    endpoint._url = executor._url = url
    try:
        yield
    finally:
        endpoint._url, executor._url = before
