"""HTTP/1.1 requests and answers without I/O (RFC 9112): where a URL points, and the bytes of a request."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from msgspec import Struct

_URL: Final = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?([/?][!-~]*)?")
_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Request(Struct, frozen=True):
    """One HTTP request."""

    method: str
    url: str
    headers: dict[str, str] = {}
    body: bytes = b""


class Answer(Struct, frozen=True):
    """One HTTP answer; header names in lower case, values of a repeated header joined by ", "."""

    status: int
    headers: dict[str, str]
    body: bytes


class Target(NamedTuple):
    """Where a URL points: `host` to dial (no brackets), `authority` for the Host header, `path` with its query."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    authority: str
    path: str


@lru_cache(maxsize=512)
def target(url: str) -> Target:
    """The parts of an absolute http or https *url*.

    Raises ValueError for anything else: other schemes, user information, a fragment, characters outside printable
    ASCII, a port outside 1 to 65535.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError("not an absolute http or https URL of printable ASCII without user information")
    scheme, host, port_text, path = match.groups()
    default = 443 if scheme == "https" else 80
    port = int(port_text) if port_text else default
    if not 0 < port < 65_536 or "#" in (path or ""):
        raise ValueError("not an absolute http or https URL: odd port, or a fragment")
    authority = host if port == default else f"{host}:{port}"
    path = path or "/"
    return Target(
        "https" if scheme == "https" else "http",
        host.strip("[]"),
        port,
        authority,
        path if path[0] == "/" else f"/{path}",
    )


def encode(method: str, where: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    """The bytes of a request; Host and Content-Length are added, the caller gives neither.

    Raises ValueError for a method we do not send and for header text that could end its line.
    """
    if method not in _METHODS:
        raise ValueError("a request is GET, POST, PUT, PATCH or DELETE")
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\r\n") != len(headers) or not is_clean(lines.replace("\r\n", "")):
        raise ValueError("a header holds a control character")
    head = f"{method} {where.path} HTTP/1.1\r\nhost: {where.authority}\r\n{lines}content-length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def is_clean(text: str) -> bool:
    """Whether *text* holds no control character but the tab."""
    # The method is much the faster of the two, and true of nearly every head; bytes above 0x7f need the pattern.
    return text.isprintable() or _CONTROL.search(text) is None
