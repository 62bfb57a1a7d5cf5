"""A delivery as every route carries it: one body, signed."""

import json
from collections.abc import Sequence
from typing import Final

import msgspec

from endpoint_sdk.wire import signature
from endpoint_sdk.wire.messages import Delivery

_encode: Final = msgspec.json.Encoder().encode


def encode(delivery: Delivery) -> bytes:
    """The body of a delivery: JSON in ASCII, so that nothing on the way re-encodes what was signed."""
    body = _encode(delivery)
    return body if body.isascii() else json.dumps(json.loads(body), separators=(",", ":")).encode()


def message_id(delivery: Delivery) -> str:
    """The `webhook-id` of a delivery: the same for every copy of one revision, on every route."""
    return f"{delivery.run_id}_{delivery.revision}"


def signed(delivery: Delivery, secrets: Sequence[bytes], timestamp: int) -> tuple[dict[str, str], bytes]:
    """The three `webhook-*` headers and the body, signed with every key as of *timestamp* (seconds since the epoch)."""
    body = encode(delivery)
    return signature.sign(secrets, message_id(delivery), timestamp, body), body
