"""What every publisher does, over its real transport: the contract the relay and the executors stand on."""

import asyncio
import base64
import contextlib
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
from standardwebhooks import Webhook

from dispatcher import telemetry
from endpoint_sdk.wire import signature
from publishers import faults
from publishers.base import Publisher
from publishers.message import encode
from tests.contract.publisher_rigs import KEYS, Arrival, MemoryRig, Rig, due, push_rig, redis_rig, sqs_rig


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no silent broker."""
    monkeypatch.setattr(faults, "PUBLISH_SECONDS", 30)
    monkeypatch.setattr(faults, "CHECK_SECONDS", 30)


@pytest.fixture(params=["push", "sqs", "sqs-ministack", "sqs-fifo", "redis", "memory"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """Each publisher in its turn: SQS on moto's server and, if there is one, on ministack; FIFO on the strict fake."""
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "push":
            yield await stack.enter_async_context(push_rig())
        elif request.param in ("sqs", "sqs-ministack"):
            sqs = request.getfixturevalue(request.param.replace("-", "_"))
            yield await stack.enter_async_context(sqs_rig(sqs, sqs.queue()))
        elif request.param == "sqs-fifo":
            fake = request.getfixturevalue("sqs_fake")
            yield await stack.enter_async_context(sqs_rig(fake.sqs, fake.sqs.queue(fifo=True)))
        elif request.param == "redis":
            yield await stack.enter_async_context(redis_rig(request.getfixturevalue("redis_url")))
        else:
            yield MemoryRig()


@contextlib.asynccontextmanager
async def opened(publisher: Publisher) -> AsyncIterator[Publisher]:
    """*publisher*, closed at the end."""
    try:
        yield publisher
    finally:
        await publisher.close()


def verified(arrival: Arrival) -> None:
    """Returns if *arrival* verifies under each of KEYS, by the independent implementation and by ours."""
    for key in KEYS:
        Webhook("whsec_" + base64.b64encode(key).decode()).verify(arrival.body, arrival.headers)
        signature.verify([key], arrival.headers, arrival.body, float(arrival.headers["webhook-timestamp"]))


async def test_a_delivery_arrives_signed(rig: Rig) -> None:
    """The body is the delivery, the same on every route; every key signs it, and the id names run and revision."""
    sent = due()
    async with opened(rig.publisher()) as publisher:
        [outcome] = await publisher.publish([sent])
    [arrival] = await rig.arrived()
    assert (outcome.kind, outcome.counted) == ("published", False)
    assert arrival.body == encode(sent.delivery)
    assert arrival.headers["webhook-id"] == f"{sent.delivery.run_id}_4"
    verified(arrival)


@pytest.fixture
def debug_log() -> Iterator[io.StringIO]:
    """What a process logs whose log level is debug."""
    loggers = [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    before = {logger: logger.level for logger in (logging.getLogger(), *loggers)}
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(telemetry.formatter())
    telemetry.set_level("debug")
    logging.getLogger().addHandler(handler)
    yield written
    logging.getLogger().removeHandler(handler)
    for logger, level in before.items():
        logger.setLevel(level)


async def test_a_debug_log_tells_no_secret(rig: Rig, debug_log: io.StringIO) -> None:
    """I13: what the clients of brokers log of requests and their headers is not logged, however much is asked for."""
    logging.getLogger("dispatcher").debug("logging works")
    async with opened(rig.publisher()) as publisher:
        await publisher.publish([due(token="pmc_hidden")])
    async with opened(rig.unreachable()) as publisher:
        await publisher.publish([due(token="pmc_hidden")])
    [arrival] = await rig.arrived()
    told = debug_log.getvalue()
    assert "logging works" in told
    signatures = arrival.headers["webhook-signature"].replace("v1,", "").split()
    keys = [base64.b64encode(key).decode() for key in KEYS]
    for secret in ("pmc_hidden", "hunter22", *signatures, *keys):
        assert secret not in told


async def test_nothing_to_publish(rig: Rig) -> None:
    """No delivery, no outcome, nothing sent."""
    async with opened(rig.publisher()) as publisher:
        assert await publisher.publish([]) == []
    assert await rig.arrived() == []


async def test_more_deliveries_than_a_batch(rig: Rig) -> None:
    """Of 101 deliveries each arrives once, and each has its outcome."""
    sent = [due(rank=number) for number in range(101)]
    async with opened(rig.publisher()) as publisher:
        outcomes = await publisher.publish(sent)
    arrived = [json.loads(arrival.body)["runId"] for arrival in await rig.arrived()]
    assert [outcome.kind for outcome in outcomes] == ["published"] * 101
    assert sorted(arrived) == sorted(each.delivery.run_id for each in sent)


async def test_several_calls_at_once(rig: Rig) -> None:
    """Calls side by side do not mix their outcomes up."""
    async with opened(rig.publisher()) as publisher:
        calls = [publisher.publish([due() for _ in range(number)]) for number in (1, 12, 3, 25)]
        counts = [len(outcomes) for outcomes in await asyncio.gather(*calls)]
    assert counts == [1, 12, 3, 25]
    assert len(await rig.arrived()) == 41


@pytest.mark.parametrize("name", ["bestellung-ä", "注文", "🚚", 'a"\\b', "a:b%3A", "n" * 200])
async def test_any_name(rig: Rig, name: str) -> None:
    """Whatever namespace, workflow and pool are called, what arrives is ASCII, verifies and means the same."""
    async with opened(rig.publisher()) as publisher:
        [outcome] = await publisher.publish([due(namespace=name, workflow=name, version=name, pool=name)])
    [arrival] = await rig.arrived()
    assert outcome.kind == "published"
    assert arrival.body.isascii()
    assert json.loads(arrival.body)["workflow"] == name
    verified(arrival)


async def test_a_republish(rig: Rig) -> None:
    """A copy of the same revision is signed afresh, or is the very same thing where the broker keeps one of it."""
    sent = due()
    async with opened(rig.publisher()) as publisher:
        await publisher.publish([sent])
        [first] = await rig.arrived()
        rig.clock.now += 60
        await publisher.publish([sent])
        [again] = await rig.arrived()
    assert again.body == first.body
    assert again.headers["webhook-id"] == first.headers["webhook-id"]
    assert (again.headers["webhook-signature"] != first.headers["webhook-signature"]) == rig.signs_afresh
    verified(again)


async def test_nobody_is_there(rig: Rig) -> None:
    """A broker or endpoint that cannot be reached is an outcome for each delivery, and never an ending."""
    async with opened(rig.unreachable()) as publisher:
        outcomes = await publisher.publish([due() for _ in range(12)])
    assert [(outcome.kind, outcome.counted) for outcome in outcomes] == [("failed", False)] * 12
    assert all(outcome.detail for outcome in outcomes)


async def test_without_a_secret(rig: Rig) -> None:
    """Nothing is sent unsigned."""
    async with opened(rig.publisher(secrets=())) as publisher:
        [outcome] = await publisher.publish([due()])
    assert (outcome.kind, outcome.counted) == ("failed", False)
    assert await rig.arrived() == []


async def test_no_secret_is_shown(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the text of a publisher nor its outcomes nor anything logged holds a key, a password or a token."""
    caplog.set_level(logging.DEBUG)
    shown = []
    for publisher in (rig.publisher(), rig.unreachable()):
        async with opened(publisher):
            shown += [repr(publisher), str(publisher), repr(await publisher.publish([due(token="pmc_hidden")]))]
    text = "".join(shown)
    for key in KEYS:
        assert key.decode() not in text + caplog.text
        assert base64.b64encode(key).decode() not in text + caplog.text
    assert "hunter22" not in text + caplog.text
    assert "pmc_hidden" not in text


async def test_closing(rig: Rig) -> None:
    """A publisher can be closed again and again, and a closed broker publisher hands nothing over."""
    publisher = rig.publisher()
    await publisher.close()
    await publisher.close()
    [outcome] = await publisher.publish([due()])
    assert outcome.counted is False
    if rig.closes:
        assert (outcome.kind, outcome.row) == ("failed", "closed")
        assert await rig.arrived() == []
