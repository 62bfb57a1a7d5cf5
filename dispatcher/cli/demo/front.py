"""A function URL of our own: HTTP in, payload 2.0 events to real Lambda environments, their answers out.

Follows the published behaviour of Lambda function URLs: lower-case headers, a base64 body unless its type is text,
429 when every allowed environment is busy, 502 when the function failed.
"""

import asyncio
import base64
import json
import time
import uuid
from typing import Any, Final

from dispatcher.cli.demo.loopback import Received, Reply, Server
from dispatcher.cli.demo.runtime_api import Sandbox

_TEXT: Final = ("application/json", "application/xml", "application/javascript", "text/")
# A handler that has just answered is still on its way back to the runtime API; that is not a busy environment.
_RETURNING: Final = 1.0


class Front:
    """Serves *sandboxes*, each one invocation at a time; `url` is where from `start` to `stop`."""

    def __init__(self, sandboxes: list[Sandbox], timeout: float) -> None:
        self._timeout = timeout
        self._idle: asyncio.Queue[Sandbox] = asyncio.Queue()
        for sandbox in sandboxes:
            self._idle.put_nowait(sandbox)
        self._server = Server(self._answer)
        self.invocations = 0
        self.throttled = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}/"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def _answer(self, received: Received) -> Reply:
        try:
            async with asyncio.timeout(_RETURNING):
                sandbox = await self._idle.get()
        except TimeoutError:
            self.throttled += 1
            return Reply(429, b'{"Message":"Rate Exceeded."}', {"content-type": "application/json"})
        self.invocations += 1
        try:
            invoked = await sandbox.invoke(json.dumps(to_event(received)).encode(), self._timeout)
        finally:
            if sandbox.alive:
                self._idle.put_nowait(sandbox)
        return to_reply(invoked.payload) if invoked.ok else _failed()


def to_event(received: Received) -> dict[str, Any]:
    """The payload 2.0 event of a request."""
    text = received.headers.get("content-type", "").startswith(_TEXT)
    now = time.time()
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": received.path,
        "rawQueryString": received.query,
        "headers": received.headers,
        "requestContext": {
            "accountId": "anonymous",
            "apiId": "demo",
            "domainName": "demo.lambda-url.us-east-1.on.aws",
            "domainPrefix": "demo",
            "http": {
                "method": received.method,
                "path": received.path,
                "protocol": "HTTP/1.1",
                "sourceIp": "127.0.0.1",
                "userAgent": received.headers.get("user-agent", ""),
            },
            "requestId": str(uuid.uuid4()),
            "routeKey": "$default",
            "stage": "$default",
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now)),
            "timeEpoch": int(now * 1000),
        },
        "body": received.body.decode() if text else base64.b64encode(received.body).decode(),
        "isBase64Encoded": not text,
    }


def to_reply(payload: bytes) -> Reply:
    """The HTTP answer of a handler's return value: as it says, or 200 with whatever it returned."""
    try:
        answer = json.loads(payload)
    except ValueError:
        return _failed()
    if not isinstance(answer, dict) or "statusCode" not in answer:
        return Reply(200, payload, {"content-type": "application/json"})
    body = answer.get("body") or ""
    headers = {name.lower(): str(value) for name, value in (answer.get("headers") or {}).items()}
    raw = base64.b64decode(body) if answer.get("isBase64Encoded") else body.encode()
    return Reply(int(answer["statusCode"]), raw, {"content-type": "application/json", **headers})


def _failed() -> Reply:
    return Reply(502, b'{"Message":"Internal Server Error"}', {"content-type": "application/json"})
