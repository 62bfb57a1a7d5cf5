"""`pointsman run children` against a stand-in for the API."""

from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from dispatcher.cli.application import application

CHILD = {
    "id": "run_1",
    "workflow": "ship",
    "version": "1",
    "status": "failed",
    "reason": "Boom",
    "kind": "children",
    "name": "ship",
    "ordinal": 0,
    "index": 3,
    "createdAt": "2026-12-01T10:00:00.000Z",
    "finishedAt": None,
}


def test_children_as_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each child with its status and the call that started it, and how to go on."""
    seen: list[str] = []

    def request(method: str, url: str, **options: Any) -> httpx.Response:
        seen.append(httpx.Request(method, url, params=options["params"]).url.raw_path.decode())
        return httpx.Response(200, json={"items": [CHILD], "next": "run_1"})

    monkeypatch.setattr(httpx, "request", request)
    shown = CliRunner().invoke(application, ["run", "children", "run_0", "--status", "failed", "--limit", "1"])

    header, line = shown.stdout.splitlines()
    assert header.split()[:4] == ["id", "workflow", "version", "status"]
    assert line.split() == [
        *("run_1", "ship", "1", "failed", "Boom", "children", "0", "3", "2026-12-01T10:00:00.000Z", "-")
    ]
    assert shown.stderr == "more: --after run_1\n"
    assert seen == ["/v1/runs/run_0/children?status=failed&limit=1"]
