"""`pointsman serve` as a real process: it starts, answers on a socket, or says why it cannot, and ends with 0."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from endpoint_sdk import _version
from tests.brokers import Sqs, free_port
from tests.faults.rig import until

ROOT = Path(_version.__file__).parents[1]
ADMIN = "pmk_" + "a" * 43


def command(folder: Path, *words: str, **variables: str) -> "subprocess.Popen[str]":
    """`pointsman` with *words* in *folder*, nothing of Pointsman's inherited from the environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
    path = os.pathsep.join(filter(None, [kept.get("PYTHONPATH"), str(ROOT)]))
    return subprocess.Popen(
        [sys.executable, "-m", "dispatcher.cli", *words],
        cwd=folder,
        env={**kept, "PYTHONPATH": path, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def told(process: "subprocess.Popen[str]", event: str, seconds: float = 20) -> dict[str, object]:
    """The log line *event*, awaited; a process that does not say it in time is killed."""
    assert process.stderr is not None
    late = threading.Timer(seconds, process.kill)
    late.start()
    try:
        # Not by select: what readline has read ahead is nothing a selector knows of.
        while (line := process.stderr.readline()).startswith("{"):
            found: dict[str, object] = json.loads(line)
            if found["event"] == event:
                return found
    finally:
        late.cancel()
    process.kill()
    raise AssertionError(f"{event!r} was not logged; {line}{process.communicate()[1]}")


@contextmanager
def serving(folder: Path, **variables: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A dispatcher on a free port, and its URL."""
    variables = {"POINTSMAN_LISTEN": "127.0.0.1:0", "POINTSMAN_ADMIN_KEY": ADMIN, **variables}
    process = command(folder, "serve", **variables)
    try:
        yield process, str(told(process, "listening")["url"])
    finally:
        process.kill()
        process.communicate()


def test_serves_and_ends(tmp_path: Path, database_url: str) -> None:
    """It is ready once it says so, keeps runs over a restart, and ends with 0 on SIGTERM."""
    variables = {"POINTSMAN_DATABASE_URL": database_url, "POINTSMAN_SECRET_KEY": "a-secret-key-of-the-test"}
    headers = {"authorization": f"Bearer {ADMIN}"}
    with serving(tmp_path, **variables) as (process, url):
        assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
        body = {"workflow": "order", "version": "1"}
        run = httpx.post(f"{url}/v1/runs", json=body, headers=headers, trust_env=False).json()["run"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    with serving(tmp_path, **variables) as (process, url):
        found = httpx.get(f"{url}/v1/runs/{run['id']}", headers=headers, trust_env=False)
        assert found.json()["run"]["id"] == run["id"]
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 0


def test_large_bodies_are_refused_on_the_wire(tmp_path: Path) -> None:
    """A body over the limit is answered 413 while it is being sent, and the server goes on serving."""
    with serving(tmp_path) as (_, url):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as peer:
            lines = ["POST /v1/runs HTTP/1.1", "host: x", f"authorization: Bearer {ADMIN}", "content-length: 99999999"]
            peer.sendall("\r\n".join([*lines, "", ""]).encode() + b"x" * 1_000)
            answer = b"".join(iter(lambda: peer.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"body_too_large" in answer
        assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200


def test_reloads_on_sighup(tmp_path: Path) -> None:
    """SIGHUP reads the file again: a good one holds, a faulty one is told and changes nothing."""
    secret = f"whsec_{'c2VjcmV0' * 5}"
    fast = f"publishers: {{ fast: {{ type: redis, url: redis://:hunter2@127.0.0.1:1/0, secret: {secret} }} }}\n"
    file = tmp_path / "pointsman.yaml"
    file.write_text("{}")
    headers = {"authorization": f"Bearer {ADMIN}"}

    def names(url: str) -> list[str]:
        answer = httpx.get(f"{url}/v1/publishers", headers=headers, trust_env=False)
        return [item["name"] for item in answer.json()["items"]]

    with serving(tmp_path) as (process, url):
        assert names(url) == []
        file.write_text(fast + "server: { listen: '127.0.0.1:1' }\n")
        process.send_signal(signal.SIGHUP)
        assert told(process, "configuration reloaded")["changed"] == ["publishers.fast"]
        assert names(url) == ["fast"]
        file.write_text(fast + "runs: { nope: 1 }\n")
        process.send_signal(signal.SIGHUP)
        fault = told(process, "fault in the configuration")
        assert (fault["line"], fault["column"], fault["path"]) == (2, 9, "runs.nope")
        told(process, "configuration not reloaded, the old one stays")
        assert names(url) == ["fast"]
        file.write_text("logLevel: error\n")
        process.send_signal(signal.SIGHUP)
        until(lambda: names(url) == [], what="the removal")
        file.write_text(fast + "logLevel: error\n")
        process.send_signal(signal.SIGHUP)
        until(lambda: names(url) == ["fast"], what="the return")
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        rest = process.communicate()[1]
        assert rest.count("configuration reloaded") == 1
        assert "hunter2" not in rest


def test_brokers_that_are_not_there(tmp_path: Path, sqs: Sqs) -> None:
    """A missing queue and a Redis nobody is at are start-up warnings and visible states; the dispatcher serves."""
    secret = f"whsec_{'c2VjcmV0' * 5}"
    (tmp_path / "pointsman.yaml").write_text(f"""
publishers:
  queue: {{ type: sqs, queueUrl: "{sqs.queue()}-gone", region: {sqs.region}, secret: {secret} }}
  fast: {{ type: redis, url: "redis://:hunter2@127.0.0.1:{free_port()}/0", secret: {secret} }}
routes: [{{ publish: [queue, fast] }}]
""")
    with serving(tmp_path) as (process, url):
        found: dict[object, tuple[object, object]] = {}
        while found.keys() != {"queue", "fast"}:
            line = told(process, "publisher cannot be used")
            found[line["publisher"]] = (line["level"], line["code"])
        assert found == {"queue": ("warning", "queue_missing"), "fast": ("warning", "broker_unreachable")}
        assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
        headers = {"authorization": f"Bearer {ADMIN}"}
        shown = httpx.get(f"{url}/v1/publishers/queue", headers=headers, trust_env=False).json()["publisher"]
        assert (shown["state"], shown["reason"]) == ("misconfigured", "queue_missing")
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert "hunter2" not in process.communicate()[1]


@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({"POINTSMAN_DATABASE_URL": "postgresql://127.0.0.1:1/none"}, "database_unreachable|unavailable"),
        ({"POINTSMAN_DATABASE_URL": "mysql://x"}, "invalid_database_url|config_invalid"),
        ({"POINTSMAN_LISTEN": "203.0.113.1:1"}, "listen_refused"),
        ({"POINTSMAN_SECRET_KEY": "a,,b"}, "secret_key_missing"),
        ({"POINTSMAN_CONFIG": "none.yaml"}, "config_invalid"),
    ],
)
def test_says_why_it_cannot_start(tmp_path: Path, variables: dict[str, str], code: str) -> None:
    """A start that fails ends soon, not with 0, and in words: a sentence and a code, no traceback."""
    process = command(tmp_path, "serve", **{"POINTSMAN_LISTEN": "127.0.0.1:0", **variables})
    _, stderr = process.communicate(timeout=30)

    assert process.returncode in {1, 5}
    assert any(word in stderr for word in code.split("|")), stderr
    assert "Traceback" not in stderr


def test_sqlite_serves_one_process(tmp_path: Path) -> None:
    """A second process on the same SQLite file is refused in words."""
    with serving(tmp_path):
        second = command(tmp_path, "serve", POINTSMAN_LISTEN="127.0.0.1:0")
        _, stderr = second.communicate(timeout=30)

    assert second.returncode == 1
    assert "error:" in stderr
    assert "Traceback" not in stderr
