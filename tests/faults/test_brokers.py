"""Brokers that lose, double and reorder what they hold, or are not there: the outbox is the truth (I14)."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.store import Store, invariants
from tests.acceptance.routes.site import Brokers, Site, site
from tests.brokers import RedisServer
from tests.faults import rig
from tests.sqs_fake import SqsFake

RUNS = 1_000
BODIES = {"reserve": 1, "pay": 1, "ship": 1}
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of the test's own, to be restarted."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def queue(sqs_fake: SqsFake) -> str:
    """A standard queue of the strict fake."""
    return sqs_fake.sqs.queue(visibility=60)


@pytest.fixture
def by_redis(postgres_url: str, redis: RedisServer, tmp_path: Path) -> Iterator[Site]:
    """A site whose runs go to Redis."""
    brokers = Brokers(redis.url, NOWHERE, f"{NOWHERE}/123456789012/none", republish_ms=3_000)
    yield from kept(postgres_url, brokers, tmp_path, "redis")


@pytest.fixture
def by_sqs(postgres_url: str, sqs_fake: SqsFake, queue: str, tmp_path: Path) -> Iterator[Site]:
    """A site whose runs go to a queue."""
    brokers = Brokers("redis://127.0.0.1:9/0", sqs_fake.endpoint_url, queue, republish_ms=3_000)
    yield from kept(postgres_url, brokers, tmp_path, "sqs")


def kept(database_url: str, brokers: Brokers, folder: Path, publisher: str) -> Iterator[Site]:
    """A site; afterwards the stored rows keep every invariant."""
    with site(database_url, brokers, folder, [publisher]) as made:
        yield made
    store = Store.open(database_url)
    assert store.transact_blocking(invariants.check) == []
    store.close()


def submit(on: Site, count: int) -> list[str]:
    """The ids of *count* fresh runs."""
    ids: list[str] = []
    for start in range(0, count, 500):
        runs = [{"workflow": "order", "version": "1", "input": f"o{n}"} for n in range(start, min(start + 500, count))]
        answer = on.client.post("/v1/runs/batch", json={"runs": runs})
        ids += [result["run"]["id"] for result in answer.json()["results"]]
    return ids


def completed(on: Site) -> int:
    """How many runs have completed, as far as one look at the task bodies tells."""
    return on.log.read_text().count(" ship:") if on.log.exists() else 0


def check(on: Site, ids: list[str]) -> None:
    """Every run completes, and no task of it ran twice."""
    for run_id in ids:
        assert on.ended(run_id, 120)["status"] == "completed"
    bodies: dict[str, Counter[str]] = {run_id: Counter() for run_id in ids}
    for line in on.log.read_text().splitlines():
        run_id, body = line.split()
        bodies[run_id][body.split(":")[0]] += 1
    assert all(bodies[run_id] == BODIES for run_id in ids), [b for b in bodies.values() if b != BODIES]


def test_c52_redis_flushed_and_restarted(by_redis: Site, redis: RedisServer) -> None:
    """1 000 queued runs, a FLUSHALL and a restart in the middle: all complete, none is lost, no task runs twice."""
    import redis as client

    ids = submit(by_redis, RUNS)
    by_redis.executor("redis", "A")
    rig.until(lambda: completed(by_redis) > RUNS // 5, 60, "a fifth of the runs")
    with client.Redis.from_url(redis.url) as connection:
        connection.flushall()
    rig.until(lambda: completed(by_redis) > RUNS // 2, 60, "half of the runs")
    redis.stop()
    redis.start()

    check(by_redis, ids)


def test_sqs_loses_doubles_and_reorders(by_sqs: Site, sqs_fake: SqsFake) -> None:
    """1 000 runs over a queue that loses a tenth, doubles a tenth, hands out the newest first and forgets to answer."""
    sqs_fake.faults.reorder = True
    dice = random.Random(7)

    ids: list[str] = []
    for _ in range(10):
        sqs_fake.faults.lose(RUNS // 100)
        sqs_fake.faults.duplicate(RUNS // 100)
        sqs_fake.faults.lose_reply(dice.choice(["SendMessageBatch", "ReceiveMessage", "DeleteMessage"]))
        ids += submit(by_sqs, RUNS // 10)
    by_sqs.executor("sqs", "A")

    check(by_sqs, ids)


def test_a_broker_that_is_away_stops_nothing(by_sqs: Site, sqs_fake: SqsFake) -> None:
    """Runs queued while the queue is unreachable start once it is back; meanwhile a poller takes them."""
    sqs_fake.down()
    ids = submit(by_sqs, 20)
    by_sqs.executor("poll", "P")
    check(by_sqs, ids)
    by_sqs.close()

    later = submit(by_sqs, 5)
    worker = by_sqs.executor("sqs", "S")
    sqs_fake.up()
    for run_id in later:
        run: dict[str, Any] = by_sqs.ended(run_id, 60)
        assert run["status"] == "completed"
        assert set(by_sqs.lines(run_id)) == {"reserve:S", "pay:S", "ship:S"}
    assert "Traceback" not in worker.output()
