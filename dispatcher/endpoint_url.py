"""Which URLs an endpoint may have, judged before anything is sent. Pure.

What a host resolves to is judged at every dial, by the transport that dials.
"""

import ipaddress
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

_PRINTABLE: Final = re.compile(r"[\x21-\x7e]+")
_NUMERIC_HOST: Final = re.compile(r"(?:0[xX][0-9a-fA-F]*|[0-9]+)(?:\.(?:0[xX][0-9a-fA-F]*|[0-9]+))*\.?")


def fault(url: str, *, allow_http: bool) -> str | None:
    """Why *url* is refused, as a sentence without the URL (it may hold a secret), or None when it is fine."""
    return next(_faults(url, allow_http), None)


def _faults(url: str, allow_http: bool) -> Iterator[str]:
    if _PRINTABLE.fullmatch(url) is None:
        yield "The URL holds characters outside printable ASCII; percent-encode them."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        yield "The host or port of the URL is malformed."
        return
    if parts.scheme not in {"http", "https"}:
        yield "The URL has to begin with https://."
    if parts.username is not None or parts.password is not None:
        yield "The URL carries a user name or password; a delivery is authenticated by its signature."
    host = parts.hostname or ""
    if not host:
        yield "The URL names no host."
    if port == 0 or parts.netloc.endswith(":"):
        yield "The port of the URL is not between 1 and 65535."
    if parts.fragment or url.endswith("#"):
        yield "The URL has a fragment, which is never sent."
    if _NUMERIC_HOST.fullmatch(host) and not _is_ipv4(host):
        yield "The host is a number that is not a plain IPv4 address."
    if parts.scheme == "http" and not allow_http:
        yield "The URL is not https; plain HTTP has to be allowed for this endpoint (allowHttp)."


def is_loopback(url: str) -> bool:
    """Whether *url* names this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True
