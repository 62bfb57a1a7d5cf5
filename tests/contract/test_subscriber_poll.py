"""Polls against the suite of every subscriber: what comes are claimed runs, from a dispatcher over real sockets."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import ClassVar

import httpx
import pytest
from msgspec.structs import replace

from endpoint_sdk.exchange import Exchange, Times
from endpoint_sdk.subscribers.base import Claim, Setup
from endpoint_sdk.subscribers.polling import PollSubscriber
from endpoint_sdk.testing.subscribers import Item, NewSubscriber, Send, SubscriberSuite
from endpoint_sdk.transport.aio import AsyncTransport
from tests.faults import rig

PATIENT = {"claim_idle_timeout_ms": 90_000, "interval_ms": 1_000}


class Polling(PollSubscriber):
    """Polls over connections of its own, closed with it; a worker has them from its executor."""

    def __init__(self, url: str, api_key: str) -> None:
        super().__init__(wait=timedelta(seconds=1))
        self._url = url
        self._key = api_key
        self._transport: AsyncTransport | None = None

    async def open(self, setup: Setup) -> None:
        self._transport = AsyncTransport()
        exchange = Exchange(self._transport, self._url, Times())
        await super().open(replace(setup, exchange=exchange, api_key=self._key))

    async def close(self, timeout: float) -> None:
        await super().close(timeout)
        if self._transport is not None:
            await self._transport.close()


class TestPoll(SubscriberSuite):
    """What is sent is a submitted run; nobody ends one here, so what is done stays claimed."""

    wait: ClassVar[float] = 1.0

    @pytest.fixture
    def dispatcher(self, sqlite_url: str) -> Iterator[httpx.Client]:
        with rig.dispatcher(sqlite_url, recover_overdue_outbox_entries=PATIENT) as client:
            yield client

    @pytest.fixture
    def new_subscriber(self, dispatcher: httpx.Client) -> NewSubscriber:
        made = dispatcher.post("/v1/keys", json={"name": "poller", "scopes": ["execute"]})
        api_key: str = made.json()["key"]
        return lambda: Polling(str(dispatcher.base_url), api_key)

    @pytest.fixture
    def send(self, dispatcher: httpx.Client) -> Send:
        def submitted(headers: dict[str, str], body: bytes) -> None:
            message_id = headers["webhook-id"]
            run = {
                "workflow": "order",
                "version": "1.0.0",
                "input": body.decode(),
                "tags": {"message": message_id},
                "idempotencyKey": message_id,
            }
            answer = dispatcher.post("/v1/runs", json=run)
            assert answer.status_code in (200, 201), answer.text

        return submitted

    def identity(self, item: Item) -> str:
        assert isinstance(item, Claim)
        return item.grant.run.tags["message"]

    def payload(self, item: Item) -> bytes:
        assert isinstance(item, Claim)
        text: str = json.loads(bytes(item.grant.run.input))
        return text.encode()
