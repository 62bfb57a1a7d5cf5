"""A site for each route, on PostgreSQL, a real Redis and a moto SQS server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.store import Store, invariants
from tests.acceptance.routes.site import PUBLISHERS, ROUTES, Brokers, Site, site


@pytest.fixture
def brokers(redis_url: str, sqs: Any) -> Brokers:
    """Empty brokers."""
    return Brokers(redis_url, sqs.endpoint_url, sqs.queue(visibility=60))


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest) -> str:
    """Each route in turn."""
    name: str = request.param
    return name


@pytest.fixture
def one_way(route: str, postgres_url: str, brokers: Brokers, tmp_path: Path) -> Iterator[Site]:
    """A site whose runs can be had by *route* only; afterwards the stored rows keep every invariant (I8)."""
    with site(postgres_url, brokers, tmp_path, [PUBLISHERS[route]] if route in PUBLISHERS else []) as made:
        yield made
    check(postgres_url)


@pytest.fixture
def every_way(postgres_url: str, brokers: Brokers, tmp_path: Path) -> Iterator[Site]:
    """A site whose runs go to an endpoint `A`, to Redis and to SQS in turn, and to pollers."""
    with site(postgres_url, brokers, tmp_path, ["A", "redis", "sqs"]) as made:
        yield made
    check(postgres_url)


def check(database_url: str) -> None:
    """The stored rows keep every invariant."""
    store = Store.open(database_url)
    assert store.transact_blocking(invariants.check) == []
    store.close()
