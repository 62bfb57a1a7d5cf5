"""Polls of real dispatcher processes: across two of them, and at their end."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from endpoint_sdk.wire import identity
from tests.acceptance.test_serve import ADMIN, serving

SECRET = "a-secret-key-of-the-test"


def call(url: str, path: str, body: dict[str, Any], key: str = ADMIN) -> dict[str, Any]:
    """The answer to a call, which has to be a good one."""
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.post(f"{url}{path}", json=body, headers=headers, trust_env=False, timeout=40)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def poll(url: str, key: str) -> list[dict[str, Any]]:
    """The grants that answer a poll of twenty seconds."""
    body = {
        "workflows": [{"name": "order", "versions": ["1"]}],
        "limit": 10,
        "waitMs": 20_000,
        "requestId": identity.new("req"),
        "executor": {"id": "poller"},
        "refreshIntervalMs": 1_000,
    }
    found: list[dict[str, Any]] = call(url, "/v1/claims", body, key)["claims"]
    return found


def waits(url: str) -> None:
    """Returns once a poller has been heard of; fails after twenty seconds."""
    run = call(url, "/v1/runs", {"workflow": "order", "version": "1", "pool": "nobodys"})["run"]
    headers, deadline = {"authorization": f"Bearer {ADMIN}"}, time.monotonic() + 20
    while time.monotonic() < deadline:
        why = httpx.get(f"{url}/v1/runs/{run['id']}/why", headers=headers, trust_env=False).json()
        if why["facts"]["polledAgoMs"] is not None:
            return
        time.sleep(0.05)  # nothing tells that a poll waits
    raise AssertionError("the poll was never heard of")


def test_a_poll_hears_of_another_dispatchers_submit(tmp_path: Path, postgres_url: str) -> None:
    """A run submitted to one dispatcher is claimed by a poll that waits at another."""
    variables = {"POINTSMAN_DATABASE_URL": postgres_url, "POINTSMAN_SECRET_KEY": SECRET}
    with (
        serving(tmp_path, **variables) as (_, here),
        serving(tmp_path, **variables) as (_, there),
        ThreadPoolExecutor() as threads,
    ):
        key = call(here, "/v1/keys", {"name": "poller", "scopes": ["execute"]})["key"]
        waiting = threads.submit(poll, there, key)
        waits(here)
        began = time.monotonic()
        run = call(here, "/v1/runs", {"workflow": "order", "version": "1"})["run"]

        assert [grant["run"]["id"] for grant in waiting.result(30)] == [run["id"]]
        assert time.monotonic() - began < 15, "the poll ran to its end"


def test_a_dispatcher_that_ends_waits_for_no_poll(tmp_path: Path, database_url: str) -> None:
    """SIGTERM answers the polls that wait with nothing claimed, and the process ends with 0 at once."""
    variables = {"POINTSMAN_DATABASE_URL": database_url, "POINTSMAN_SECRET_KEY": SECRET}
    with serving(tmp_path, **variables) as (process, url), ThreadPoolExecutor() as threads:
        key = call(url, "/v1/keys", {"name": "poller", "scopes": ["execute"]})["key"]
        waiting = threads.submit(poll, url, key)
        waits(url)
        process.send_signal(signal.SIGTERM)

        assert process.wait(15) == 0
        assert waiting.result(5) == []
