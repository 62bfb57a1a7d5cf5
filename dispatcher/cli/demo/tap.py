"""A wire tap between one executor and its dispatcher: forwards and remembers every call, or is deaf to refreshes."""

import json
from dataclasses import dataclass
from typing import Any, Final

import httpx

from dispatcher.cli.demo.loopback import Received, Reply, Server

_REFRESH: Final = "/v1/claims/refresh"
_KEPT: Final = ("authorization", "content-type", "pointsman-sdk")
_SHOWN: Final = ("content-type", "pointsman-", "retry-after")


@dataclass(frozen=True)
class Exchange:
    path: str
    status: int
    request: dict[str, Any]
    answer: dict[str, Any]


class Tap:
    """Forwards to *upstream*; while `deaf`, refreshes are answered 503, which proves nothing to their sender."""

    def __init__(self, upstream: str) -> None:
        self._client = httpx.AsyncClient(base_url=upstream, timeout=30, trust_env=False)
        self._server = Server(self._answer)
        self.exchanges: list[Exchange] = []
        self.deaf = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()
        await self._client.aclose()

    def lost(self, run_id: str) -> set[int]:
        """Revisions of *run_id* the dispatcher has told the executor to be lost."""
        refreshes = (exchange.answer for exchange in self.exchanges if exchange.path == _REFRESH)
        entries = (entry for answer in refreshes for entry in answer.get("lost", ()))
        return {entry["expectedRevision"] for entry in entries if entry["runId"] == run_id}

    def progress(self, run_id: str, revision: int) -> list[Exchange]:
        """The executor's writes to *run_id* under *revision*, with their answers."""
        path = f"/v1/runs/{run_id}/progress"
        return [
            exchange
            for exchange in self.exchanges
            if exchange.path == path and exchange.request.get("expectedRevision") == revision
        ]

    async def _answer(self, received: Received) -> Reply:
        if self.deaf and received.path == _REFRESH:
            return Reply(503, b"{}", {"content-type": "application/json"})
        headers = {name: value for name, value in received.headers.items() if name in _KEPT}
        target = f"{received.path}?{received.query}" if received.query else received.path
        answer = await self._client.request(received.method, target, content=received.body, headers=headers)
        self.exchanges.append(
            Exchange(received.path, answer.status_code, _document(received.body), _document(answer.content))
        )
        shown = {name: value for name, value in answer.headers.items() if name.startswith(_SHOWN)}
        return Reply(answer.status_code, answer.content, shown)


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
