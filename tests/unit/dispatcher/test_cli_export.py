"""`pointsman run export` against a stand-in for the API."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from dispatcher.cli.application import application

RUN = '{"id":"run_1","input":{"b": 1.50, "a":2}}'
RECORDS = [f'{{"seq":{number},"value":1e0}}' for number in (1, 2, 3)]


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls made to an API that shows two records a page."""
    for name in ("URL", "API_KEY", "NAMESPACE"):
        monkeypatch.delenv(f"POINTSMAN_{name}", raising=False)
    seen: list[str] = []

    def request(method: str, url: str, params: dict[str, Any], **_: Any) -> httpx.Response:
        path, after = urlsplit(url).path, params.get("after", 0)
        seen.append(f"{method} {path} {after}")
        if path != "/v1/runs/run_1/records":
            return httpx.Response(200, text=f'{{"run":{RUN}}}')
        items = ",".join(RECORDS[after : after + 2])
        return httpx.Response(200, text=f'{{"items":[{items}],"next":{"null" if after else 2}}}')

    monkeypatch.setattr(httpx, "request", request)
    return seen


def test_all_pages_and_the_run_are_one_object(calls: list[str]) -> None:
    """On stdout, every payload byte for byte as the API gave it."""
    done = CliRunner().invoke(application, ["run", "export", "run_1"])

    assert done.exit_code == 0
    assert done.stdout == f'{{"run":{RUN},"records":[{",".join(RECORDS)}],"children":[]}}\n'
    assert calls == ["GET /v1/runs/run_1/records 0", "GET /v1/runs/run_1/records 2", "GET /v1/runs/run_1 0"]


def test_it_writes_a_file(tmp_path: Path) -> None:
    """With nothing on stdout; a path that cannot be written is a usage error."""
    path = tmp_path / "run.json"
    done = CliRunner().invoke(application, ["run", "export", "run_1", "--to", str(path)])
    refused = CliRunner().invoke(application, ["run", "export", "run_1", "--to", str(tmp_path)])

    assert (done.exit_code, done.stdout) == (0, "")
    assert json.loads(path.read_text())["run"]["id"] == "run_1"
    assert refused.exit_code == 2
