"""`pointsman doctor` over real parts: what can be wrong is found and named with its remedy, and nothing is changed."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from typer.testing import CliRunner, Result

from dispatcher import endpoints
from dispatcher.app import create_app
from dispatcher.cli.application import application
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Settings
from dispatcher.store import Store
from endpoint_sdk import Endpoint, Run, workflow
from endpoint_sdk.wire import signature
from tests.brokers import Sqs, free_port
from tests.faults.rig import ADMIN_KEY, Serving

SECRET = signature.new_secret()
Doctor = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no file of the developer's reaches a test."""
    for name in ("URL", "API_KEY", "CONFIG", "DATABASE_URL", "LISTEN", "PUBLIC_URL", "SECRET_KEY", "ADMIN_KEY"):
        monkeypatch.delenv(f"POINTSMAN_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """Runs the doctor on a configuration; its findings by check, once the exit code is as they say."""

    def examined(text: str = "{}", *words: str) -> dict[str, dict[str, Any]]:
        (tmp_path / "pointsman.yaml").write_text(text)
        result = run("-o", "json", *words)
        answer = json.loads(result.stdout)
        failed = any(item["status"] == "fail" for item in answer["items"])
        assert (result.exit_code, answer["ok"]) == (int(failed), not failed)
        assert SECRET not in result.stdout + result.stderr
        return {item["check"]: item for item in answer["items"]}

    return examined


def run(*words: str) -> Result:
    return CliRunner().invoke(application, ["doctor", *words])


def statuses(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {check: item["status"] for check, item in found.items()}


def test_nothing_is_there_yet(doctor: Doctor, tmp_path: Path) -> None:
    """On a fresh machine all is well, and looking leaves nothing behind."""
    found = doctor()

    assert set(statuses(found).values()) == {"ok"}
    assert list(found) == ["config", "extras", "database", "secret key", "publicUrl"]
    assert [file.name for file in tmp_path.iterdir()] == ["pointsman.yaml"]


def test_everything_is_there(doctor: Doctor, database_url: str, redis_url: str, sqs: Sqs) -> None:
    """With database, brokers, an endpoint and a dispatcher that answer, each is ok by its name."""

    @workflow("order", version="1")
    async def order(run: Run) -> None:
        """Does nothing."""

    endpoint = Endpoint(workflows=[order], secret=SECRET)
    settings = Settings.model_validate(
        {"database": {"url": database_url}, "secret_key": "k" * 40, "admin_key": ADMIN_KEY}
    )
    served = Serving(lambda _url: endpoint.asgi).open()
    dispatcher = Serving(lambda url: create_app(settings, url=url)).open()
    text = f"""
database: {{ url: "{database_url}" }}
publishers:
  push: {{ type: push, url: "{served.url}", secret: {SECRET}, allowHttp: true, allowAddresses: [127.0.0.0/8] }}
  fast: {{ type: redis, url: "{redis_url}", secret: {SECRET} }}
  queue: {{ type: sqs, queueUrl: "{sqs.queue()}", secret: {SECRET}, region: {sqs.region} }}
"""
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("POINTSMAN_SECRET_KEY", "k" * 40)
            found = doctor(text, "--url", dispatcher.url, "--api-key", ADMIN_KEY)
            refused = doctor(text, "--url", dispatcher.url, "--api-key", "pmk_" + "x" * 40)
    finally:
        dispatcher.stop()
        served.stop()

    assert {check: status for check, status in statuses(found).items() if status != "ok"} == {}
    assert {"publisher push", "publisher fast", "publisher queue", "api"} <= found.keys()
    assert "order 1" in found["publisher push"]["message"]
    assert found["extras"]["message"] == "installed: server, redis, sqs"
    assert refused["api"]["status"] == "fail"


def test_publishers_that_fail(doctor: Doctor, sqs: Sqs) -> None:
    """A missing queue, a Redis and an endpoint nobody is at, fail with their codes and what to do, without a secret."""
    nowhere = free_port()
    text = f"""
publishers:
  push: {{ type: push, url: "http://127.0.0.1:{nowhere}/", secret: {SECRET}, allowHttp: true }}
  fast: {{ type: redis, url: "redis://:hunter2hunter2@127.0.0.1:{nowhere}/0", secret: {SECRET} }}
  queue: {{ type: sqs, queueUrl: "{sqs.queue()}-gone", secret: {SECRET}, region: {sqs.region} }}
"""
    found = doctor(text)

    codes = {"push": "endpoint_unreachable", "fast": "broker_unreachable", "queue": "queue_missing"}
    for name, code in codes.items():
        finding = found[f"publisher {name}"]
        assert (finding["status"], code in finding["message"]) == ("fail", True)
        assert finding["todo"]
    assert "hunter2" not in json.dumps(found)


def test_a_faulty_file(doctor: Doctor) -> None:
    """Each fault of the configuration is a failure with its line and column, and nothing else is looked at."""
    result = run("-o", "json")
    assert result.exit_code == 0
    found = doctor("runs: { nope: 1 }")

    assert list(found) == ["config"]
    assert found["config"]["message"].startswith("1:9: runs.nope:")


def test_a_missing_extra(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher whose package is not installed fails with the command to type."""
    monkeypatch.setattr("dispatcher.broker_clients.find_spec", lambda name: None)
    found = doctor(f"publishers: {{ fast: {{ type: redis, url: redis://x, secret: {SECRET} }} }}")

    assert statuses(found)["extras"] == statuses(found)["publisher fast"] == "fail"
    assert 'pip install "pointsman[redis]"' in found["extras"]["todo"]


def test_a_database_that_does_not_answer(doctor: Doctor) -> None:
    """A database out of reach fails, and so does a PostgreSQL one without a server secret."""
    found = doctor(f"database: {{ url: 'postgresql://127.0.0.1:{free_port()}/none' }}")

    assert statuses(found)["database"] == "fail"
    assert statuses(found)["secret key"] == "fail"
    assert "POINTSMAN_SECRET_KEY" in found["secret key"]["message"]


def test_a_database_in_use(doctor: Doctor, sqlite_url: str) -> None:
    """A SQLite file that a dispatcher holds is in order; what is inside is that dispatcher's to tell."""
    store = Store.open(sqlite_url)
    try:
        found = doctor(f"database: {{ url: '{sqlite_url}' }}")
    finally:
        store.close()

    assert statuses(found)["database"] == "ok"
    assert "schema" not in found


def test_schemas(doctor: Doctor, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema too old fails with the command to type; an empty database is made at the start."""
    monkeypatch.setenv("POINTSMAN_SECRET_KEY", "k" * 40)
    text = f"database: {{ url: '{postgres_url}' }}"
    assert statuses(doctor(text))["schema"] == "ok"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE schema_version SET version = 1")
        old = doctor(text)["schema"]
        connection.execute("DROP TABLE schema_version")
        empty = doctor(text)["schema"]

    assert (old["status"], old["todo"]) == ("fail", "run: pointsman migrate")
    assert empty["status"] == "ok"


@pytest.mark.parametrize(("offset", "status", "word"), [(5_000, "warn", "behind"), (-90_000, "fail", "ahead of")])
def test_clocks(
    doctor: Doctor, postgres_url: str, monkeypatch: pytest.MonkeyPatch, offset: int, status: str, word: str
) -> None:
    """A host whose clock is seconds off the database's is warned about, one a minute off fails, either way round."""
    monkeypatch.setenv("POINTSMAN_SECRET_KEY", "k" * 40)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "CREATE OR REPLACE FUNCTION pointsman_now() RETURNS bigint LANGUAGE sql VOLATILE AS "
            f"'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + ({offset})'".encode()
        )
    found = doctor(f"database: {{ url: '{postgres_url}' }}")["clock"]

    assert found["status"] == status
    assert word in found["message"]


async def _applied(url: str) -> None:
    store = Store.open(url)
    described = Settings.model_validate(
        {"publishers": {"fast": {"type": "redis", "url": "redis://x", "secret": SECRET}}}
    )
    await endpoints.apply_file(store, ServerKeys.from_env("the-first-key-of-the-server"), described.publishers)
    store.close()


def test_a_wrong_secret_key(doctor: Doctor, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server secret that cannot read what is stored fails; with the old one behind it, it reads all."""
    asyncio.run(_applied(postgres_url))
    text = f"database: {{ url: '{postgres_url}' }}"
    for key, status in (("another-key", "fail"), ("another-key,the-first-key-of-the-server", "ok")):
        monkeypatch.setenv("POINTSMAN_SECRET_KEY", key)
        assert statuses(doctor(text))["secret key"] == status


def test_public_urls(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remote executors without publicUrl, and a publicUrl in the clear, are warned about; a good one is not."""
    monkeypatch.setattr("dispatcher.broker_clients.find_spec", lambda name: None)
    remote = f"publishers: {{ fast: {{ type: redis, url: redis://cache, secret: {SECRET} }} }}\n"
    for text, status in (
        (remote, "warn"),
        (remote + "server: { publicUrl: http://pm.example }", "warn"),
        (remote + "server: { publicUrl: https://pm.example }", "ok"),
        (remote.replace("redis://cache", "redis://localhost"), "ok"),
    ):
        assert statuses(doctor(text))["publicUrl"] == status


def test_a_dispatcher_that_does_not_answer(doctor: Doctor) -> None:
    """An address nobody is at, or that is none, fails."""
    for url in (f"http://127.0.0.1:{free_port()}", "nonsense"):
        assert statuses(doctor("{}", "--url", url))["api"] == "fail"


def test_lines_for_people() -> None:
    """Each finding is one line: its status, what was looked at, how it is, and what to do."""
    result = run("--url", f"http://127.0.0.1:{free_port()}")
    lines = result.stdout.splitlines()

    assert result.exit_code == 1
    assert [line.split()[0] for line in lines] == ["ok", "ok", "ok", "ok", "ok", "fail"]
    assert "→ Start it" in lines[-1]


def test_a_version_nobody_serves(doctor: Doctor, database_url: str) -> None:
    """C45: runs that wait for a version nobody serves are a warning with their count and the fix, here and by --url."""
    settings = Settings.model_validate(
        {"database": {"url": database_url}, "admin_key": ADMIN_KEY, "secret_key": "k" * 40}
    )
    dispatcher = Serving(lambda url: create_app(settings, url=url)).open()
    text = f'database: {{ url: "{database_url}" }}\n'
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("POINTSMAN_SECRET_KEY", "k" * 40)
            answer = httpx.post(
                f"{dispatcher.url}/v1/runs",
                json={"workflow": "order", "version": "0.9"},
                headers={"authorization": f"Bearer {ADMIN_KEY}"},
            )
            assert answer.status_code == 201
            found = doctor(text, "--url", dispatcher.url, "--api-key", ADMIN_KEY)
    finally:
        dispatcher.stop()

    assert found["versions"]["status"] == "warn"
    assert "Nobody serves order 0.9" in found["versions"]["message"]
    assert "1 run of it waits" in found["versions"]["message"]
    assert "endpoint add" in found["versions"]["todo"]
