"""The API over a real store, called without sockets; daemons are not running, so nothing moves by itself."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from dispatcher import access
from dispatcher.api.server import Api
from dispatcher.app import Dispatcher
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Settings
from dispatcher.store import Store
from endpoint_sdk.wire import identity
from endpoint_sdk.wire.messages import Scope
from endpoint_sdk.wire.operating import CreateKey

URL = "http://pointsman.test"


class Caller:
    """Sends requests with one credential."""

    def __init__(self, client: httpx.AsyncClient, credential: str | None) -> None:
        self._client = client
        self._credential = credential

    async def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        headers = {} if self._credential is None else {"authorization": f"Bearer {self._credential}"}
        headers.update(options.pop("headers", {}))
        if body is not None:
            options["json"] = body
        return await self._client.request(method, path, headers=headers, **options)


class World:
    """One dispatcher's API, its admin, and shortcuts for what most tests need."""

    def __init__(self, dispatcher: Dispatcher, client: httpx.AsyncClient, admin_key: str) -> None:
        self.dispatcher = dispatcher
        self.client = client
        self.keys = dispatcher.keys
        self.store = dispatcher.store
        self.admin = Caller(client, admin_key)
        self.nobody = Caller(client, None)

    def bearer(self, credential: str) -> Caller:
        return Caller(self.client, credential)

    async def caller(self, *scopes: Scope, namespace: str = "default") -> Caller:
        """A caller with a fresh key of these scopes."""
        made = await access.create(self.store, CreateKey("test", list(scopes), namespace))
        return Caller(self.client, made.key)

    async def submit(self, **fields: Any) -> dict[str, Any]:
        """A fresh run, as the API shows it."""
        answer = await self.admin("POST", "/v1/runs", {"workflow": "order", "version": "1", **fields})
        assert answer.status_code == 201, answer.text
        run: dict[str, Any] = answer.json()["run"]
        return run

    async def claim(self, run: dict[str, Any], claim_id: str | None = None) -> httpx.Response:
        """The answer to a claim of *run* at its revision."""
        token = self.keys.claim_token(run["id"], run["revision"])
        body = {
            "expectedRevision": run["revision"],
            "claimId": claim_id or identity.new("clm"),
            "executor": {"id": "test"},
            "refreshIntervalMs": 1_000,
        }
        return await self.bearer(token)("POST", f"/v1/runs/{run['id']}/claim", body)

    async def held(self, **fields: Any) -> dict[str, Any]:
        """The grant of a fresh run's claim."""
        answer = await self.claim(await self.submit(**fields))
        assert answer.status_code == 200, answer.text
        grant: dict[str, Any] = answer.json()
        return grant

    async def progress(
        self, grant: dict[str, Any], ending: Any = None, records: Any = (), **fields: Any
    ) -> httpx.Response:
        """The answer to a write under *grant*."""
        body = {
            "expectedRevision": grant["revision"],
            "claimId": grant["claimId"],
            "requestId": identity.new("req"),
            "records": list(records),
            "ending": ending,
            **fields,
        }
        return await self.bearer(grant["token"])("POST", f"/v1/runs/{grant['run']['id']}/progress", body)


@asynccontextmanager
async def world(store: Store, **settings: Any) -> AsyncIterator[World]:
    """The API of a dispatcher on *store*, not started."""
    admin_key = "pmk_" + secrets.token_urlsafe(32)
    await access.ensure_admin(store, admin_key)
    dispatcher = Dispatcher(Settings(**settings), store, ServerKeys.generated(), URL)
    transport = httpx.ASGITransport(app=Api(dispatcher.services))
    async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
        yield World(dispatcher, client, admin_key)
    await dispatcher.transport.close()


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error object of *answer*, which is exactly this refusal."""
    error: dict[str, Any] = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), answer.text
    assert error["requestId"] == answer.headers["pointsman-request-id"]
    assert error["message"]
    return error
