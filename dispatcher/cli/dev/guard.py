"""Nobody signs in during development: requests from this machine get the session's key, all others are refused.

A page of some web site can make a browser send requests to 127.0.0.1, and a name it controls can be made to lead
there. Both show in what no page can choose: the Host a request was meant for, and the Origin it came from.
"""

import ipaddress
import json
import socket
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from dispatcher.errors import StartUpError

_MESSAGE: Final = "In dev mode only this machine is answered, by the names localhost and 127.0.0.1."


class Guard:
    """*app* for loopback callers without a key, who act with the session's *key*; a key that is sent is judged.

    Raises StartUpError `dev_not_loopback` unless *bound* listens on this machine alone: there is no other way to
    serve without sign-in.
    """

    def __init__(self, app: ASGIApp, key: str, bound: socket.socket) -> None:
        host = str(bound.getsockname()[0])
        if not is_loopback(host):
            raise StartUpError("dev_not_loopback", f"Dev mode listens on this machine only, and {host} is not.")
        self._app = app
        self._credential = (b"authorization", b"Bearer " + key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif not _from_here(scope):
            await _refuse(send)
        elif any(name == b"authorization" for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
        else:
            await self._app({**scope, "headers": [*scope["headers"], self._credential]}, receive, send)


def is_loopback(host: str) -> bool:
    """Whether *host*, a name or an address without brackets, always means this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _from_here(scope: Scope) -> bool:
    client = scope.get("client")
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
    return (
        client is not None
        and is_loopback(client[0])
        and len(hosts) == 1
        and is_loopback(_host(f"//{hosts[0]}"))
        and all(is_loopback(_host(origin)) for origin in origins)
    )


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    # What a parser takes for a user or a path, a browser may not.
    return "" if "@" in url or "\\" in url else parts.hostname or ""


async def _refuse(send: Send) -> None:
    hint = "A program of this machine sends no Origin; elsewhere, use `pointsman serve` and a key."
    body = json.dumps({"error": {"code": "dev_loopback_only", "message": _MESSAGE, "hint": hint}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
