"""A scripted dispatcher's answers, and calls of either client."""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.unit.sdk.peer import Peer

RUN_ID = "run_01ARZ3NDEKTSV4RRFFQ69G5FAV"


async def do(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The result of *call*: awaited if it is a coroutine function, else made in a thread."""
    if inspect.iscoroutinefunction(call):
        return await call(*args, **options)
    return await asyncio.to_thread(call, *args, **options)


def says(status: int, body: Any, **headers: str) -> bytes:
    """The bytes of an answer with *body* in JSON."""
    data = json.dumps(body).encode()
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\n{head}content-length: {len(data)}\r\n\r\n".encode() + data


def submitted(*, created: bool = True) -> bytes:
    """The answer to a submit."""
    return says(201 if created else 200, {"run": run_view("queued"), "created": created})


def run_view(status: str, **changes: Any) -> dict[str, Any]:
    """A run as the dispatcher shows it, as far as clients look."""
    return {"id": RUN_ID, "status": status, "revision": 3, "reason": None, "laterField": 1} | changes


def refuses(status: int, code: str, **details: Any) -> bytes:
    """An error of the dispatcher."""
    return says(status, {"error": {"code": code, "message": "No.", "hint": "Do it right.", "details": details}})


def requests(peer: Peer) -> Iterator[tuple[str, Any]]:
    """Request lines and JSON bodies in the order they came."""
    for head, body in peer.requests:
        yield head.split(b"\r\n")[0].decode().removesuffix(" HTTP/1.1"), json.loads(body) if body else None
