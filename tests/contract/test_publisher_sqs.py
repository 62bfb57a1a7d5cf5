"""What becomes of deliveries when SQS takes them in part, refuses, falls silent or loses its answer."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from publishers import faults
from publishers.sqs import THREADS, SqsPublisher, group_of
from tests.brokers import Sqs, free_port, sqs_client
from tests.contract.publisher_rigs import KEYS, due, target
from tests.sqs_fake import SqsFake


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no silent broker."""
    monkeypatch.setattr(faults, "PUBLISH_SECONDS", 30)
    monkeypatch.setattr(faults, "CHECK_SECONDS", 30)


@contextlib.asynccontextmanager
async def publisher(url: str, endpoint_url: str, **config: Any) -> AsyncIterator[SqsPublisher]:
    """A publisher with a client of its own, both closed at the end."""
    client = sqs_client(endpoint_url, **config)
    made = SqsPublisher(target(url, KEYS), client, now=lambda: 1_800_000_000.0)
    try:
        yield made
    finally:
        await made.close()
        client.close()


async def rows(made: SqsPublisher, count: int = 1) -> list[tuple[str, str]]:
    """Kind and row of the outcomes of *count* deliveries, none of which is an ending."""
    outcomes = await made.publish([due() for _ in range(count)])
    assert not any(outcome.counted for outcome in outcomes)
    return [(outcome.kind, outcome.row) for outcome in outcomes]


async def test_entries_that_fail(sqs_fake: SqsFake) -> None:
    """Of a batch that is taken in part, the entries in Failed[] failed and the others did not; none is sent twice."""
    url = sqs_fake.sqs.queue()
    sqs_fake.faults.fail_entries("SendMessageBatch", times=3)
    async with publisher(url, sqs_fake.endpoint_url) as made:
        found = await rows(made, 5)
    assert found == [("failed", "broker_refused")] * 3 + [("published", "accepted")] * 2
    assert (len(sqs_fake.stored(url)), len(sqs_fake.called("SendMessageBatch"))) == (2, 1)


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("QueueDoesNotExist", 400, "queue_missing"),
        ("AWS.SimpleQueueService.NonExistentQueue", 400, "queue_missing"),
        ("AccessDenied", 403, "credentials_refused"),
        ("AccessDeniedException", 400, "credentials_refused"),
        ("InvalidClientTokenId", 403, "credentials_refused"),
        ("SignatureDoesNotMatch", 403, "credentials_refused"),
        ("ExpiredTokenException", 400, "credentials_refused"),
        ("UnrecognizedClientException", 400, "credentials_refused"),
        ("KmsAccessDenied", 400, "credentials_refused"),
        ("KmsDisabled", 400, "credentials_refused"),
        ("KMS.NotFoundException", 400, "credentials_refused"),
        ("KmsThrottled", 400, "throttled"),
        ("RequestThrottled", 400, "throttled"),
        ("ThrottlingException", 400, "throttled"),
        ("ThrottlingException", 503, "throttled"),
        ("OverLimit", 400, "throttled"),
        ("UnsupportedOperation", 400, "queue_wrong_kind"),
        ("InvalidParameterValue", 400, "broker_refused"),
        ("x" * 200, 400, "broker_refused"),
    ],
)
async def test_a_refusal_is_no_copy(sqs_fake: SqsFake, code: str, status: int, expected: str) -> None:
    """What SQS refused was not handed over: failed, by its cause, after one attempt."""
    url = sqs_fake.sqs.queue()
    async with publisher(url, sqs_fake.endpoint_url) as made:
        await made.check()
        sqs_fake.faults.fail("SendMessageBatch", code, status)
        assert await rows(made, 2) == [("failed", expected)] * 2
    assert len(sqs_fake.called("SendMessageBatch")) == 1
    assert sqs_fake.stored(url) == []


@pytest.mark.parametrize(("code", "status"), [("InternalError", 500), ("ServiceUnavailable", 503), ("x", 502)])
async def test_a_failing_service_may_have_it(sqs_fake: SqsFake, code: str, status: int) -> None:
    """A 5xx says nothing about the batch: unknown, which is a copy."""
    url = sqs_fake.sqs.queue()
    async with publisher(url, sqs_fake.endpoint_url) as made:
        await made.check()
        sqs_fake.faults.fail("SendMessageBatch", code, status)
        assert await rows(made, 2) == [("published", "unknown")] * 2


async def test_a_lost_reply_is_a_copy(sqs_fake: SqsFake) -> None:
    """A batch whose answer is lost is unknown, and is not sent again by the publisher."""
    url = sqs_fake.sqs.queue()
    sqs_fake.faults.lose_reply("SendMessageBatch")
    async with publisher(url, sqs_fake.endpoint_url) as made:
        assert await rows(made, 2) == [("published", "unknown")] * 2
    assert len(sqs_fake.stored(url)) == 2


async def test_a_silent_broker(sqs_fake: SqsFake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer a call ends in time, before the relay gives up on it, and the next one works."""
    monkeypatch.setattr(faults, "PUBLISH_SECONDS", 0.5)
    url = sqs_fake.sqs.queue()
    async with publisher(url, sqs_fake.endpoint_url) as made:
        await made.check()
        sqs_fake.faults.hang("SendMessageBatch")
        assert await rows(made) == [("published", "unknown")]
        sqs_fake.release()
        monkeypatch.setattr(faults, "PUBLISH_SECONDS", 30)
        assert await rows(made) == [("published", "accepted")]


async def test_a_read_timeout_is_a_copy(sqs_fake: SqsFake) -> None:
    """A client that stops waiting for the answer leaves an unknown copy."""
    url = sqs_fake.sqs.queue()
    async with publisher(url, sqs_fake.endpoint_url, read_timeout=1) as made:
        await made.check()
        sqs_fake.faults.hang("SendMessageBatch")
        assert await rows(made) == [("published", "unknown")]


async def test_a_broker_that_comes_back(sqs_fake: SqsFake) -> None:
    """While it is down deliveries fail, and afterwards they arrive without a new publisher."""
    url = sqs_fake.sqs.queue()
    async with publisher(url, sqs_fake.endpoint_url) as made:
        assert await rows(made, 12) == [("published", "accepted")] * 12
        sqs_fake.down()
        assert await rows(made, 12) == [("failed", "broker_unreachable")] * 12
        sqs_fake.up()
        assert await rows(made, 12) == [("published", "accepted")] * 12


async def test_no_credentials(sqs_fake: SqsFake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that finds no credentials sends nothing, and both outcome and check say so."""
    import boto3

    url = sqs_fake.sqs.queue()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    client = boto3.session.Session().client("sqs", region_name="eu-west-1", endpoint_url=sqs_fake.endpoint_url)
    made = SqsPublisher(target(url, KEYS), client)
    health = await made.check()
    assert (health.state, health.code) == ("misconfigured", "credentials_refused")
    assert await rows(made) == [("failed", "credentials_refused")]
    assert sqs_fake.called("SendMessageBatch") == []
    await made.close()
    client.close()


async def test_a_queue_that_takes_less(sqs_fake: SqsFake) -> None:
    """What is larger than the queue's MaximumMessageSize is declined before it is sent, and only that."""
    url = sqs_fake.sqs.queue(MaximumMessageSize="1024")
    async with publisher(url, sqs_fake.endpoint_url) as made:
        outcomes = await made.publish([due(), due(workflow="w" * 800), due()])
    assert [(outcome.kind, outcome.row) for outcome in outcomes] == [
        ("published", "accepted"),
        ("declined", "too_large"),
        ("published", "accepted"),
    ]
    assert len(sqs_fake.stored(url)) == 2


async def test_batches_by_weight(sqs_fake: SqsFake) -> None:
    """Deliveries that are too heavy together go in several batches, and nothing is refused."""
    url = sqs_fake.sqs.queue()
    async with publisher(url, sqs_fake.endpoint_url, max_pool_connections=10) as made:
        outcomes = await made.publish([due(workflow="w" * 300_000) for _ in range(7)])
    assert [outcome.row for outcome in outcomes] == ["accepted"] * 7
    assert sorted(len(call["Entries"]) for call in sqs_fake.called("SendMessageBatch")) == [1, 3, 3]


async def test_sending_without_looking(sqs_fake: SqsFake) -> None:
    """Who may send and not read attributes is asked once, and sends; the check names what is missing."""
    url = sqs_fake.sqs.queue()
    sqs_fake.faults.fail("GetQueueAttributes", "AccessDenied", 403, times=2)
    async with publisher(url, sqs_fake.endpoint_url) as made:
        for _ in range(2):
            assert await rows(made) == [("published", "accepted")]
        assert len(sqs_fake.called("GetQueueAttributes")) == 1
        assert (await made.check()).code == "credentials_refused"


async def test_a_queue_that_cannot_be_looked_at_now(sqs_fake: SqsFake) -> None:
    """A throttled look does not keep deliveries back; a lost one does, since nothing was sent yet."""
    url = sqs_fake.sqs.queue()
    async with publisher(url, sqs_fake.endpoint_url) as made:
        sqs_fake.faults.fail("GetQueueAttributes", "ThrottlingException")
        assert await rows(made) == [("published", "accepted")]
        sqs_fake.faults.lose_reply("GetQueueAttributes")
        assert await rows(made) == [("failed", "broker_unreachable")]
        assert await rows(made) == [("published", "accepted")]


async def test_fifo(sqs_fake: SqsFake) -> None:
    """On a FIFO queue the group is the run; copies of one revision at different times are messages of their own."""
    url = sqs_fake.sqs.queue(fifo=True)
    clock = iter((1_800_000_000.0, 1_800_000_000.0, 1_800_000_005.0))
    client = sqs_client(sqs_fake.endpoint_url)
    made = SqsPublisher(target(url, KEYS), client, now=lambda: next(clock))
    sent = due()
    for _ in range(3):
        assert [outcome.row for outcome in await made.publish([sent])] == ["accepted"]
    assert [message.group for message in sqs_fake.stored(url)] == [sent.delivery.run_id] * 2
    await made.close()
    client.close()


async def test_namespaces_are_groups(sqs_fake: SqsFake) -> None:
    """On a standard queue each namespace is a group of its own, whatever it is called."""
    url = sqs_fake.sqs.queue()
    names = ["default", "mandant ä", "mandant ö", "a b", "n" * 129, "n" * 130]
    async with publisher(url, sqs_fake.endpoint_url) as made:
        await made.publish([due(namespace=name) for name in names])
    groups = {json.loads(message.body)["namespace"]: message.group for message in sqs_fake.stored(url)}
    assert groups["default"] == "default"
    assert len(set(groups.values())) == len(names)
    assert groups == {name: group_of(name) for name in names}


async def test_checks(sqs_fake: SqsFake) -> None:
    """A check names what is wrong: no queue, a queue of the other kind, nobody there; and nothing where all is well."""
    standard, fifo = sqs_fake.sqs.queue(), sqs_fake.sqs.queue(fifo=True)
    found = {}
    for name, url in {"standard": standard, "fifo": fifo, "none": standard + "-none"}.items():
        async with publisher(url, sqs_fake.endpoint_url) as made:
            found[name] = await made.check()
    queues = sqs_fake.service.queues
    odd = queues[fifo.rpartition("/")[2]]
    odd.attributes["FifoQueue"] = "false"
    async with publisher(fifo, sqs_fake.endpoint_url) as made:
        found["odd"] = await made.check()
        assert await rows(made) == [("failed", "queue_wrong_kind")]
    async with publisher(standard, f"http://127.0.0.1:{free_port()}") as made:
        found["nobody"] = await made.check()
    assert {name: (health.state, health.code) for name, health in found.items()} == {
        "standard": ("active", None),
        "fifo": ("active", None),
        "none": ("misconfigured", "queue_missing"),
        "odd": ("misconfigured", "queue_wrong_kind"),
        "nobody": ("unreachable", "broker_unreachable"),
    }


@pytest.mark.parametrize("server", ["sqs", "sqs_ministack"])
async def test_checks_on_servers_of_others(request: pytest.FixtureRequest, server: str) -> None:
    """The same on moto's server, and on ministack where there is one."""
    sqs: Sqs = request.getfixturevalue(server)
    found = []
    for url in (sqs.queue(), sqs.queue(fifo=True), sqs.queue() + "-none"):
        async with publisher(url, sqs.endpoint_url) as made:
            found.append((await made.check()).code)
    assert found == [None, None, "queue_missing"]


async def test_a_check_ends(sqs_fake: SqsFake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that takes the connection and says nothing is unreachable, in time."""
    monkeypatch.setattr(faults, "CHECK_SECONDS", 0.3)
    url = sqs_fake.sqs.queue()
    sqs_fake.faults.hang("GetQueueAttributes")
    async with publisher(url, sqs_fake.endpoint_url) as made:
        health = await made.check()
        sqs_fake.release()
    assert (health.state, health.code) == ("unreachable", "broker_unreachable")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n<html></html>",
    ],
)
async def test_what_is_not_sqs(answer: bytes) -> None:
    """A web server that answers something else is named, and takes no delivery."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with publisher(f"{origin}/1/queue", origin) as made:
        health = await made.check()
        assert (health.state, health.code) == ("misconfigured", "queue_wrong_kind")
        assert await rows(made) == [("failed", "queue_wrong_kind")]
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("origin", "cause"),
    [
        ("http://127.0.0.1:{port}", "nothing listens there"),
        ("http://nobody.invalid:{port}", "its host name does not resolve"),
        ("https://127.0.0.1:{listening}", "the TLS handshake failed"),
    ],
)
async def test_why_nobody_is_there(sqs_fake: SqsFake, origin: str, cause: str) -> None:
    """A check says why there is no connection, as far as the system does."""
    listening = sqs_fake.endpoint_url.rpartition(":")[2]
    at = origin.format(port=free_port(), listening=listening)
    async with publisher(f"{at}/1/queue", at) as made:
        found = await made.check()
    assert (found.state, found.code) == ("unreachable", "broker_unreachable")
    assert cause in str(found.message)


async def test_a_check_of_a_failing_service(sqs_fake: SqsFake) -> None:
    """A service that answers 5xx, or throttles, is there and of no use now: unreachable, not misconfigured."""
    url = sqs_fake.sqs.queue()
    async with publisher(url, sqs_fake.endpoint_url) as made:
        sqs_fake.faults.fail("GetQueueAttributes", "InternalError", 500)
        assert [(await made.check()).state, (await made.check()).state] == ["unreachable", "active"]
        sqs_fake.faults.fail("GetQueueAttributes", "ThrottlingException")
        found = await made.check()
        assert (found.state, found.code) == ("unreachable", "throttled")


async def test_closing_lets_batches_end(sqs_fake: SqsFake) -> None:
    """A publisher closed while it publishes still sends what it was handed, and says what became of it."""
    url = sqs_fake.sqs.queue()
    async with publisher(url, sqs_fake.endpoint_url) as made:
        await made.check()
        sqs_fake.faults.hang("SendMessageBatch", times=THREADS)
        sent = [due() for _ in range(100)]
        publishing = asyncio.create_task(made.publish(sent))
        async with asyncio.timeout(20):
            while len(sqs_fake.called("SendMessageBatch")) < THREADS:  # noqa: ASYNC110 - re-asserted with a deadline
                await asyncio.sleep(0.005)
        await made.close()
        sqs_fake.release()
        outcomes = await publishing
        assert [outcome.row for outcome in outcomes] == ["accepted"] * 100
        assert (await made.check()).code == "closed"
