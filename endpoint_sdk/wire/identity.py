"""Identifiers: a prefix and the 26 Crockford base32 characters of a UUIDv7 (RFC 9562, section 5.7)."""

import os
import re
import time
from typing import Final, Literal

Kind = Literal["run", "clm", "req", "evt", "key", "ep", "act"]

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PATTERN: Final = re.compile(r"(?:run|clm|req|evt|key|ep|act)_[0-7][0-9A-HJKMNP-TV-Z]{25}")


def new(kind: Kind) -> str:
    """A fresh identifier of *kind*, ordered by the millisecond it was made in.

    Unique with 74 random bits per millisecond; the clock only orders, nothing depends on it being right.
    """
    number = (time.time_ns() // 1_000_000 & 0xFFFFFFFFFFFF) << 80 | int.from_bytes(os.urandom(10), "big")
    number = number & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62
    return f"{kind}_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -5, -5))


def ascending(kind: Kind, count: int) -> list[str]:
    """*count* fresh identifiers of *kind*, each beyond the one before it."""
    return sorted(new(kind) for _ in range(count))


def is_id(kind: Kind, text: str) -> bool:
    """Whether *text* is a well-formed identifier of *kind*."""
    return text.startswith(f"{kind}_") and _PATTERN.fullmatch(text) is not None
