"""The checks of brokers over real ones: what is wrong is stored, told once, tried again, and never stops anything."""

import json
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dispatcher import endpoints, publisher_checks
from dispatcher.app import Dispatcher
from dispatcher.pace import Pace
from dispatcher.publisher_checks import CheckPublishers
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Settings
from dispatcher.store import Store
from dispatcher.store import endpoints as endpoint_store
from endpoint_sdk.wire import signature
from publishers.base import Health
from tests.brokers import RedisServer, Sqs, free_port
from tests.sqs_fake import SqsFake

SECRET = signature.new_secret()
URL = "http://127.0.0.1:8400"


def settings(**publishers: dict[str, Any]) -> Settings:
    described = {name: {"secret": SECRET, **item} for name, item in publishers.items()}
    return Settings.model_validate({"publishers": described})


@asynccontextmanager
async def applied(database_url: str, wanted: Settings) -> AsyncIterator[Dispatcher]:
    """A dispatcher whose file is in the store; its daemons do not run."""
    store = Store.open(database_url)
    dispatcher = Dispatcher(wanted, store, ServerKeys.generated(), URL)
    await endpoints.apply_file(store, dispatcher.keys, wanted.publishers)
    try:
        yield dispatcher
    finally:
        await dispatcher.stop()


async def states(dispatcher: Dispatcher) -> dict[str, tuple[str, str | None]]:
    """State and reason of each publisher, as stored."""
    rows = await dispatcher.store.transact(endpoint_store.all_endpoints)
    return {row.name: (row.state, row.reason) for row in rows}


async def test_what_is_there_is_active(database_url: str, redis_url: str, sqs: Sqs) -> None:
    """A Redis database, a standard and a FIFO queue that exist are active; endpoints are left to discovery."""
    wanted = settings(
        fast={"type": "redis", "url": redis_url},
        queue={"type": "sqs", "queueUrl": sqs.queue(), "region": sqs.region},
        fifo={"type": "sqs", "queueUrl": sqs.queue(fifo=True), "region": sqs.region},
        push={"type": "push", "url": "https://x/"},
    )
    async with applied(database_url, wanted) as dispatcher:
        assert await dispatcher.checks.once() == {"active": 3, "unusable": 0}
        assert await states(dispatcher) == {
            **dict.fromkeys(("fast", "queue", "fifo"), ("active", None)),
            "push": ("unverified", None),
        }
        assert await dispatcher.checks.once() == {"active": 0, "unusable": 0}


async def test_what_is_wrong_is_visible(
    sqlite_url: str, sqs: Sqs, sqs_fake: SqsFake, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing queue, a place nobody is at and a refused password each have their state and one line in the log."""
    nobody = f"redis://:hunter2hunter2@127.0.0.1:{free_port()}/0"
    with RedisServer(password="right") as server:
        wrong = server.url.replace("right", "hunter2hunter2")
        wanted = settings(
            missing={"type": "sqs", "queueUrl": f"{sqs.queue()}-gone", "region": sqs.region},
            silent={"type": "sqs", "queueUrl": f"http://127.0.0.1:{free_port()}/1/q", "region": sqs.region},
            nobody={"type": "redis", "url": nobody},
            wrong={"type": "redis", "url": wrong},
        )
        with caplog.at_level(logging.INFO):
            async with applied(sqlite_url, wanted) as dispatcher:
                assert await dispatcher.checks.once() == {"active": 0, "unusable": 4}
                assert await states(dispatcher) == {
                    "missing": ("misconfigured", "queue_missing"),
                    "silent": ("unreachable", "broker_unreachable"),
                    "nobody": ("unreachable", "broker_unreachable"),
                    "wrong": ("misconfigured", "credentials_refused"),
                }
    told = [record for record in caplog.records if record.message == "publisher cannot be used"]
    assert sorted(vars(record)["publisher"] for record in told) == ["missing", "nobody", "silent", "wrong"]
    assert "hunter2" not in json.dumps([vars(record) for record in caplog.records], default=str)


async def test_a_broker_that_comes_back(sqlite_url: str, sqs_fake: SqsFake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was down is active with the first check after it is up, and down again with the next."""
    monkeypatch.setattr(Pace, "after", lambda pace, _now, **_: pace)
    queue = sqs_fake.sqs.queue()
    wanted = settings(queue={"type": "sqs", "queueUrl": queue, "region": "eu-west-1"})
    async with applied(sqlite_url, wanted) as dispatcher:
        for up in (False, True, False):
            sqs_fake.up() if up else sqs_fake.down()
            await dispatcher.checks.once()
            found = await states(dispatcher)
            assert found == {"queue": ("active", None) if up else ("unreachable", "broker_unreachable")}


async def test_without_aws_credentials(sqlite_url: str, sqs_fake: SqsFake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials a queue is misconfigured, not a crash; credentials that appear later are found."""
    monkeypatch.setattr(Pace, "after", lambda pace, _now, **_: pace)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    wanted = settings(queue={"type": "sqs", "queueUrl": sqs_fake.sqs.queue(), "region": "eu-west-1"})
    async with applied(sqlite_url, wanted) as dispatcher:
        await dispatcher.checks.once()
        assert await states(dispatcher) == {"queue": ("misconfigured", "credentials_refused")}
        os.environ |= {"AWS_ACCESS_KEY_ID": "late", "AWS_SECRET_ACCESS_KEY": "late"}
        try:
            await dispatcher.checks.once()
        finally:
            del os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
        assert await states(dispatcher) == {"queue": ("active", None)}


async def test_a_dead_broker_does_not_hold_up_the_start(sqlite_url: str) -> None:
    """With every broker away the dispatcher starts, says so and answers; the checks run beside it."""
    store = Store.open(sqlite_url)
    wanted = settings(
        nobody={"type": "redis", "url": f"redis://127.0.0.1:{free_port()}"},
        silent={"type": "sqs", "queueUrl": "http://192.0.2.1/1/q", "region": "eu-west-1"},
    )
    dispatcher = Dispatcher(wanted, store, ServerKeys.generated(), URL)
    started = time.monotonic()
    await dispatcher.start()
    try:
        assert time.monotonic() - started < 5
        assert (await dispatcher.services.readiness.check())["checkPublishers"] == "ok"
    finally:
        await dispatcher.stop()


class _Made:
    """Checks over answers of the test's own, and a clock it moves."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.now = 1_000.0
        self.answer: Callable[[], Awaitable[Health]] = self.active
        self.asked = 0
        self.checks = CheckPublishers(
            dispatcher.store, dispatcher.registry, self._check, self._sweep, clock=lambda: self.now
        )

    async def active(self) -> Health:
        return Health("active")

    async def away(self) -> Health:
        return Health("unreachable", "broker_unreachable", "nobody is there")

    async def broken(self) -> Health:
        raise RuntimeError("hunter2hunter2")

    async def _check(self, _item: object) -> Health:
        self.asked += 1
        return await self.answer()

    async def _sweep(self) -> None:
        pass


@pytest.fixture
async def made(sqlite_url: str) -> AsyncIterator[_Made]:
    async with applied(sqlite_url, settings(fast={"type": "redis", "url": "redis://x"})) as dispatcher:
        await dispatcher.registry.targets()
        yield _Made(dispatcher)


async def test_pace(made: _Made) -> None:
    """A failing broker is asked again after 1, 2, 4 … 60 s, a good one after 60 s, one that failed anew after 1 s."""
    for answer, waits in ((made.away, [1, 2, 4, 8, 16, 32, 60, 60]), (made.active, [60, 60]), (made.away, [1, 2])):
        made.answer = answer
        for wait in waits:
            asked = made.asked
            await made.checks.once()
            made.now += wait - 0.01
            await made.checks.once()
            assert made.asked == asked + 1, wait
            made.now += 0.01


async def test_a_check_that_raises(made: _Made, caplog: pytest.LogCaptureFixture) -> None:
    """An exception of a check is a state like another, told without what it quotes; the next check heals it."""
    made.answer = made.broken
    assert await made.checks.once() == {"active": 0, "unusable": 1}
    made.answer, made.now = made.active, made.now + 60
    assert await made.checks.once() == {"active": 1, "unusable": 0}
    assert "publisher check raised" in caplog.text


async def test_news_are_told_once(made: _Made, caplog: pytest.LogCaptureFixture) -> None:
    """The same fault found again is not logged again; its end is."""
    with caplog.at_level(logging.INFO):
        for answer in (made.away, made.away, made.active, made.active):
            made.answer, made.now = answer, made.now + 61
            await made.checks.once()

    told = [record.message for record in caplog.records if record.name == publisher_checks.__name__]
    assert told == ["publisher cannot be used", "publisher can be used again"]
