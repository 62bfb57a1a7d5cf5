"""Standard Webhooks signatures over raw bytes (standardwebhooks.com, specification 1.0, symmetric scheme `v1`).

Signed are `<webhook-id>.<webhook-timestamp>.<body>`, byte for byte as sent. `verify` answers every input that is not
a valid, timely signature with the one error SignatureError, in time that does not depend on which key or byte
differs (infra/docs/protocol.md, I12).
"""

import base64
import binascii
import hashlib
import hmac
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

HEADER_ID: Final = "webhook-id"
HEADER_TIMESTAMP: Final = "webhook-timestamp"
HEADER_SIGNATURE: Final = "webhook-signature"

DEFAULT_TOLERANCE: Final = 300
MAX_TOLERANCE: Final = 900
MAX_KEYS: Final = 10

_PREFIX: Final = "whsec_"
_NAMES: Final = (HEADER_ID, HEADER_TIMESTAMP, HEADER_SIGNATURE)
_SECRET: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
# A "." inside an id would let its tail pass for the timestamp of another message with the same signed bytes.
_ID: Final = re.compile(r"[!-\-/-~]{1,256}")
_TIMESTAMP: Final = re.compile(r"0|[1-9][0-9]{0,11}")
_SIGNATURE: Final = re.compile(r"[ -~]{1,4096}")

SignatureReason = Literal[
    "missing_header", "malformed", "too_old", "too_new", "no_matching_signature", "no_secret", "body_not_bytes"
]
Headers = Mapping[str, str] | Iterable[tuple[str, str]]


class SignatureError(Exception):
    """The request is not authentic, or not timely; `reason` is stable and safe to log."""

    def __init__(self, reason: SignatureReason) -> None:
        super().__init__(reason)
        self.reason: SignatureReason = reason


class SecretInvalid(ValueError):
    """Not a signing secret; the message shows at most its last four characters."""


def parse_secret(secret: str) -> bytes:
    """The key of *secret*: `whsec_` followed by the base64 of 24 to 64 bytes, padded or not.

    Raises SecretInvalid for anything else, surrounding white space included.
    """
    if not isinstance(secret, str):
        raise SecretInvalid("a signing secret is text: whsec_ and the base64 of 24 to 64 random bytes")
    encoded = secret.removeprefix(_PREFIX)
    if encoded == secret or _SECRET.fullmatch(encoded) is None:
        raise _invalid(secret, "is not whsec_ and base64")
    try:
        key = base64.b64decode(encoded.rstrip("=") + "=" * (-len(encoded.rstrip("=")) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise _invalid(secret, "is not whsec_ and base64") from None
    canonical = base64.b64encode(key).decode()
    if encoded not in (canonical, canonical.rstrip("=")):
        raise _invalid(secret, "is not whsec_ and base64")
    if not 24 <= len(key) <= 64:
        raise _invalid(secret, f"holds {len(key)} bytes, not 24 to 64")
    return key


def _invalid(secret: str, fault: str) -> SecretInvalid:
    # Of something shorter than the shortest real secret, four characters may be most of it.
    shown = f" (ends {secret[-4:]!a})" if len(secret) >= 32 else ""
    return SecretInvalid(f"the signing secret{shown} {fault}")


def new_secret() -> str:
    """A fresh signing secret of 32 random bytes."""
    return _PREFIX + base64.b64encode(os.urandom(32)).decode()


def hint(secret: str | bytes) -> str:
    """The last four characters of *secret* (or of the secret with that key), padding left out: names, never reveals."""
    encoded = base64.b64encode(secret).decode() if isinstance(secret, bytes) else secret
    return encoded.rstrip("=")[-4:]


def check_tolerance(tolerance: object) -> int:
    """*tolerance* if it is a number of whole seconds from 0 to 900; 0 means zero.

    Raises ValueError for everything else: NaN, negatives, booleans, text.
    """
    if type(tolerance) is not int or not 0 <= tolerance <= MAX_TOLERANCE:
        raise ValueError(f"the signature tolerance is a whole number of seconds from 0 to {MAX_TOLERANCE}")
    return tolerance


def sign(secrets: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three `webhook-*` headers of *body*, with one `v1` signature for each key of *secrets*, in their order.

    *timestamp* is in seconds since the epoch. Raises ValueError without a key, for an id that is not 1 to 256
    printable ASCII characters without space or ".", and for a negative timestamp.
    """
    stamp = str(int(timestamp))
    if not secrets or _ID.fullmatch(message_id) is None or _TIMESTAMP.fullmatch(stamp) is None:
        raise ValueError("signing takes a key, an id of printable ASCII without '.', and a timestamp in seconds")
    prefix = f"{message_id}.{stamp}.".encode()
    signatures = " ".join("v1," + _mac(key, prefix, body).decode() for key in secrets)
    return {HEADER_ID: message_id, HEADER_TIMESTAMP: stamp, HEADER_SIGNATURE: signatures}


def verify(
    secrets: Sequence[bytes],
    headers: Headers,
    body: bytes,
    now: float,
    tolerance: int = DEFAULT_TOLERANCE,
) -> None:
    """Returns if *body* carries a valid signature under one of the first ten *secrets*, made within *tolerance*.

    *headers* are names in any case with their values, as a mapping or as pairs; of the three we read, none may come
    twice. *now* is in seconds since the epoch; *tolerance* in whole seconds, inclusive both ways. Raises
    SignatureError for every other input, ValueError only for a *tolerance* that `check_tolerance` refuses.
    """
    check_tolerance(tolerance)
    message_id, stamp, signatures = _read(headers)
    if not isinstance(body, bytes | bytearray | memoryview):
        raise SignatureError("body_not_bytes")
    if not secrets:
        raise SignatureError("no_secret")
    age = math.floor(now) - int(stamp)
    if not age <= tolerance:
        raise SignatureError("too_old")
    if not age >= -tolerance:
        raise SignatureError("too_new")
    if not _matches(secrets[:MAX_KEYS], f"{message_id}.{stamp}.".encode(), body, signatures):
        raise SignatureError("no_matching_signature")


def _read(headers: object) -> tuple[str, str, str]:
    found: dict[str, str] = {}
    pairs: Any = headers.items() if isinstance(headers, Mapping) else headers
    try:
        for name, value in pairs:
            if not isinstance(name, str) or (key := name.lower()) not in _NAMES:
                continue
            if not isinstance(value, str) or key in found:
                raise SignatureError("malformed")
            found[key] = value
    except (TypeError, ValueError, AttributeError):
        raise SignatureError("malformed") from None
    if len(found) < len(_NAMES):
        raise SignatureError("missing_header")
    message_id, stamp, signatures = (found[name] for name in _NAMES)
    if not (_ID.fullmatch(message_id) and _TIMESTAMP.fullmatch(stamp) and _SIGNATURE.fullmatch(signatures)):
        raise SignatureError("malformed")
    return message_id, stamp, signatures


def _matches(keys: Sequence[bytes], prefix: bytes, body: bytes, signatures: str) -> bool:
    # Compared in their base64 form: nothing is decoded, so nothing lenient can be decoded. Schemes we do not know
    # are skipped, as the specification asks. No early exit: the time tells nothing about which key matched.
    candidates = [entry[3:].encode() for entry in signatures.split(" ") if entry.startswith("v1,")]
    matched = False
    for key in keys:
        expected = _mac(key, prefix, body)
        for candidate in candidates:
            matched |= hmac.compare_digest(expected, candidate)
    return matched


def _mac(key: bytes, prefix: bytes, body: bytes) -> bytes:
    mac = hmac.new(key, prefix, hashlib.sha256)
    mac.update(body)
    return base64.b64encode(mac.digest())
