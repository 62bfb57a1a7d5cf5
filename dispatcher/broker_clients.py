"""The clients that publishers to brokers are given: made when they are first used, each shared by its publishers.

AWS credentials come the ordinary boto3 ways: environment, profile, container or instance role. Finding them may ask the
network, so it is done in the thread of a call, never in the event loop and never at start.
"""

import asyncio
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from dispatcher import errors
from dispatcher.settings import BrokerPublisher, SqsPublisher

if TYPE_CHECKING:
    from redis.asyncio import Redis

_CONNECT_SECONDS: Final = 2
_ANSWER_SECONDS: Final = 4
_CONNECTIONS: Final = 32
_PACKAGES: Final = {"sqs": "boto3", "redis": "redis"}


class SqsClient:
    """What publishers need of boto3's SQS client for one region; safe in any thread. Each call is sent once."""

    def __init__(self, region: str | None, service_url: str | None) -> None:
        self._region = region
        self._service_url = service_url
        self._lock = threading.Lock()
        self._made: Any = None

    def send_message_batch(self, **request: Any) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self._client().send_message_batch(**request)
        return answer

    def get_queue_attributes(self, **request: Any) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self._client().get_queue_attributes(**request)
        return answer

    def close(self) -> None:
        """No connection is open. Can be repeated."""
        with self._lock:
            if self._made is not None:
                self._made.close()

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                import boto3

                session = boto3.session.Session()
                client = session.client(
                    "sqs", region_name=self._region, endpoint_url=self._service_url, config=_configuration()
                )
                if session.get_credentials() is None:
                    return client  # the next call looks for credentials again
                self._made = client
            return self._made


class BrokerClients:
    """The clients of this process by what they connect to."""

    def __init__(self) -> None:
        self._sqs: dict[tuple[str | None, str | None], SqsClient] = {}
        self._redis: dict[str, Redis] = {}

    def sqs(self, region: str | None, service_url: str | None) -> SqsClient:
        """The client for the queues of a region at *service_url*, None for where boto3 finds it."""
        return self._sqs.setdefault((region, service_url), SqsClient(region, service_url))

    def redis(self, url: str) -> "Redis":
        """The client for the Redis database at *url*; nothing is connected before it is used."""
        if url not in self._redis:
            self._redis[url] = _redis(url)
        return self._redis[url]

    def without(self, publishers: Mapping[str, BrokerPublisher]) -> "BrokerClients":
        """The clients none of *publishers* uses, which are no longer kept here; they are the caller's to close."""
        queues = [item for item in publishers.values() if isinstance(item, SqsPublisher)]
        regions = {(item.region_name, item.service_url) for item in queues}
        urls = {item.url for item in publishers.values() if not isinstance(item, SqsPublisher)}
        left = BrokerClients()
        left._sqs = {key: self._sqs.pop(key) for key in self._sqs.keys() - regions}
        left._redis = {key: self._redis.pop(key) for key in self._redis.keys() - urls}
        return left

    async def close(self) -> None:
        """No connection is open."""
        for client in self._sqs.values():
            await asyncio.to_thread(client.close)
        for other in self._redis.values():
            await other.aclose()


def missing_extra(publishers: Mapping[str, BrokerPublisher]) -> errors.StartUpError | None:
    """What is to be installed before all of *publishers* can be used, the first that lacks it named."""
    for name, publisher in publishers.items():
        package = _PACKAGES[publisher.type]
        if find_spec(package) is None:
            return errors.StartUpError(
                "extra_missing",
                f"The publisher {name!r} is of type {publisher.type}, and the package {package} is not installed.",
                hint=f'Install it: pip install "pointsman[{publisher.type}]"',
            )
    return None


def _configuration() -> Any:
    from botocore.config import Config

    return Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_ANSWER_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 1},
        tcp_keepalive=True,
        max_pool_connections=_CONNECTIONS,
    )


def _redis(url: str) -> "Redis":
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return Redis.from_url(
        url,
        socket_connect_timeout=_CONNECT_SECONDS,
        socket_timeout=_ANSWER_SECONDS,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
    )
