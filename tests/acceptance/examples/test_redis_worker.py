"""The worker on Redis: deliveries come over a sorted set, tasks run in threads."""

from collections.abc import Callable, Iterator

import pytest

from dispatcher.app import create_app
from dispatcher.settings import Settings
from endpoint_sdk import Client, Worker
from tests.acceptance.examples.conftest import imported
from tests.faults import rig


@pytest.fixture
def published(sqlite_url: str, redis_url: str) -> Iterator[Client]:
    """A client of a dispatcher that publishes every workflow to Redis."""
    settings = Settings.model_validate(
        {
            "database": {"url": sqlite_url},
            "daemons": rig.FAST,
            "secret_key": "k" * 40,
            "admin_key": rig.ADMIN_KEY,
            "publishers": {"videos": {"type": "redis", "url": redis_url, "secret": rig.SECRET}},
            "routes": [{"workflows": ["*"], "publish": ["videos"]}],
        }
    )
    serving = rig.Serving(lambda url: create_app(settings, url=url)).open()
    with Client(serving.url, api_key=rig.ADMIN_KEY) as client:
        yield client
    serving.stop()


def test_a_video_is_transcoded_by_the_worker_on_redis(
    published: Client, serve: Callable[[Worker], None], redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both widths are made side by side and published together."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("POINTSMAN_SIGNING_SECRET", rig.SECRET)
    program = imported("redis_worker")
    serve(program.worker)

    assert published.start(program.transcode_video, program.Video("v1")).result(timeout=20) == "/videos/v1/2"
