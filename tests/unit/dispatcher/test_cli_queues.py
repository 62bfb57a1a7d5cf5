"""`pointsman queue list` and `pointsman executor list` against a stand-in for the API."""

import json
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from dispatcher.cli.application import application

QUEUE = {
    "namespace": "default",
    "workflow": "order",
    "version": "1",
    "pool": "default",
    "pending": 3,
    "published": 0,
    "claimed": 1,
    "held": 2,
    "oldestAgeMs": 1500,
    "publishers": ["fast", "slow"],
    "polledAgoMs": None,
}
EXECUTOR = {"id": "worker-1", "kind": "worker", "host": "h", "sdk": "python/1", "claims": 2, "oldestRefreshAgeMs": 90}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The API answers a page of one queue or executor with more to come; the paths and queries it was asked for."""
    seen: list[str] = []

    def request(method: str, url: str, **options: Any) -> httpx.Response:
        path = httpx.Request(method, url, params=options["params"]).url.raw_path.decode()
        seen.append(f"{method} {path}")
        return httpx.Response(200, json={"items": [QUEUE if "queues" in path else EXECUTOR], "next": 50})

    monkeypatch.setattr(httpx, "request", request)
    return seen


def test_queues_as_a_table(asked: list[str]) -> None:
    """Counts, ages and publishers in a line for each queue, and how to go on."""
    shown = CliRunner().invoke(application, ["queue", "list"])

    header, line = shown.stdout.splitlines()
    assert header.split() == [
        *("workflow", "version", "pool", "pending", "published", "claimed", "held", "oldestAgeMs", "polledAgoMs"),
        "publishers",
    ]
    assert line.split() == ["order", "1", "default", "3", "0", "1", "2", "1500", "-", "fast,", "slow"]
    assert shown.stderr == "More: --after 50\n"
    assert asked == ["GET /v1/queues?limit=50"]


def test_a_version_nobody_serves_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning of a queue, and what to do, stand below the table, in words."""
    warning = {"code": "version_unserved", "message": "Nobody serves order 1.", "hint": "Deploy it."}
    body = {"items": [{**QUEUE, "warning": warning}], "next": None}
    monkeypatch.setattr(httpx, "request", lambda *_, **__: httpx.Response(200, json=body))
    shown = CliRunner().invoke(application, ["queue", "list"])

    assert shown.stderr == "warning: Nobody serves order 1. (version_unserved)\n  Deploy it.\n"


def test_executors_as_a_table(asked: list[str]) -> None:
    """Who holds how many claims, and how long ago the one silent longest was heard of."""
    shown = CliRunner().invoke(application, ["executor", "list", "--limit", "1", "--after", "50"])

    assert shown.stdout.splitlines()[1].split() == ["worker-1", "worker", "h", "python/1", "2", "90"]
    assert asked == ["GET /v1/executors?limit=1&after=50"]


def test_json_is_the_answer_unchanged(asked: list[str]) -> None:
    """-o json prints what the API said."""
    shown = CliRunner().invoke(application, ["executor", "list", "-o", "json"])
    assert json.loads(shown.stdout) == {"items": [EXECUTOR], "next": 50}
