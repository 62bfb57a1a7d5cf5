"""A new configuration while the dispatcher runs: what changes live does so at once, what is under way goes on."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis.asyncio

from dispatcher import access
from dispatcher.api.server import Api
from dispatcher.app import Dispatcher
from dispatcher.cli.live import LiveConfiguration
from dispatcher.errors import StartUpError
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Settings
from dispatcher.store import Store
from dispatcher.store import endpoints as endpoint_store
from endpoint_sdk.wire import signature
from endpoint_sdk.wire.messages import Signed
from tests.brokers import Sqs, free_port
from tests.contract.api import Caller
from tests.integration.waiting import until

URL = "http://dispatcher.test"
ADMIN = "pmk_" + "a" * 43
SECRET = signature.new_secret()
FRESH = signature.new_secret()
QUICK = {"publishPendingOutboxEntries": {"intervalMs": 100, "baseBackoffMs": 100}}


def settings(**sections: Any) -> Settings:
    return Settings.model_validate({"daemons": QUICK, **sections})


def fast(url: str, secret: str = SECRET) -> dict[str, Any]:
    return {"type": "redis", "url": url, "secret": secret}


def route(*names: str) -> list[dict[str, Any]]:
    return [{"publish": list(names)}]


class Running:
    """A dispatcher with its daemons, and a caller of its API."""

    def __init__(self, store: Store) -> None:
        self.dispatcher = Dispatcher(settings(), store, ServerKeys.generated(), URL)
        transport = httpx.ASGITransport(app=Api(self.dispatcher.services))
        self.client = httpx.AsyncClient(transport=transport, base_url=URL)
        self.admin = Caller(self.client, ADMIN)

    async def submit(self) -> str:
        answer = await self.admin("POST", "/v1/runs", {"workflow": "order", "version": "1"})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["run"]["id"])

    async def state_of(self, name: str) -> str:
        answer = await self.admin("GET", f"/v1/publishers/{name}")
        return str(answer.json()["publisher"]["state"]) if answer.status_code == 200 else "gone"


@pytest.fixture
async def running(database_url: str) -> AsyncIterator[Running]:
    """A dispatcher without publishers, once on each database."""
    store = Store.open(database_url)
    await access.ensure_admin(store, ADMIN)
    made = Running(store)
    await made.dispatcher.start()
    yield made
    await made.client.aclose()
    await made.dispatcher.stop()


async def members(url: str) -> list[Signed]:
    """What Redis holds of the queue the tests submit to."""
    async with redis.asyncio.Redis.from_url(url) as client:
        found: Any = await client.zrange("pointsman:default:order:1:default", 0, -1)
    return [msgspec.json.decode(item, type=Signed) for item in found]


def verifies(member: Signed, secret: str) -> bool:
    """Whether one of the member's signatures was made with *secret*."""
    keys = [signature.parse_secret(secret)]
    signed = signature.sign(
        keys, member.headers["webhook-id"], int(member.headers["webhook-timestamp"]), member.body.encode()
    )
    return signed["webhook-signature"] in member.headers["webhook-signature"].split()


async def test_a_publisher_is_added(running: Running, redis_url: str) -> None:
    """A run that waits without a publisher is handed to the one a reload brings, by the route it brings."""
    run_id = await running.submit()
    await running.dispatcher.reload(settings(publishers={"fast": fast(redis_url)}, routes=route("fast")))

    found = await until(lambda: members(redis_url))
    assert [member.headers["webhook-id"] for member in found] == [f"{run_id}_0"]
    assert await until(lambda: running.state_of("fast")) in {"unverified", "active"}
    await until(lambda: _is(running, "fast", "active"))


async def test_an_sqs_publisher_is_added(running: Running, sqs: Sqs) -> None:
    """A run that waits is handed to the queue a reload brings, as a message with its signature in attributes."""
    run_id = await running.submit()
    url = sqs.queue()
    queue = {"type": "sqs", "queueUrl": url, "region": sqs.region, "secret": SECRET}
    await running.dispatcher.reload(settings(publishers={"queue": queue}, routes=route("queue")))

    async def received() -> list[dict[str, Any]]:
        return await asyncio.to_thread(sqs.receive, url)

    [message] = await until(received)
    headers = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
    assert headers["webhook-id"] == f"{run_id}_0"
    assert verifies(Signed(headers, message["Body"]), SECRET)


async def _is(running: Running, name: str, state: str) -> bool:
    return await running.state_of(name) == state


async def test_a_secret_is_rotated(running: Running, redis_url: str) -> None:
    """What is published after a changed secret is signed with both."""
    await running.dispatcher.reload(settings(publishers={"fast": fast(redis_url)}, routes=route("fast")))
    await running.dispatcher.reload(settings(publishers={"fast": fast(redis_url, FRESH)}, routes=route("fast")))
    await running.submit()

    [member] = await until(lambda: members(redis_url))
    assert verifies(member, SECRET)
    assert verifies(member, FRESH)


async def test_a_publisher_moves(running: Running, redis_url: str) -> None:
    """A publisher whose address changes is used at the new one; a run it failed to take arrives there."""
    nobody = f"redis://127.0.0.1:{free_port()}"
    await running.dispatcher.reload(settings(publishers={"fast": fast(nobody)}, routes=route("fast")))
    await running.submit()
    await until(lambda: _is(running, "fast", "unreachable"))
    await running.dispatcher.reload(settings(publishers={"fast": fast(redis_url)}, routes=route("fast")))

    assert len(await until(lambda: members(redis_url))) == 1
    await until(lambda: _is(running, "fast", "active"))


async def test_a_publisher_is_removed(running: Running, redis_url: str) -> None:
    """A publisher that left the file is gone, and its queues wait for somebody else."""
    await running.dispatcher.reload(settings(publishers={"fast": fast(redis_url)}, routes=route("fast")))
    await running.dispatcher.reload(settings())
    await running.submit()
    await running.dispatcher.relay.once()

    assert await running.state_of("fast") == "gone"
    assert await members(redis_url) == []


async def test_numbers_change(running: Running) -> None:
    """Limits of the API, the public URL, intervals and timeouts hold from the reload on."""
    daemons = {
        "recoverOverdueOutboxEntries": {
            "intervalMs": 50,
            "claimIdleTimeoutMs": 300,
            "claimRefreshIntervalMs": 100,
        }
    }
    await running.dispatcher.reload(
        settings(server={"publicUrl": "https://pm.example", "maxBodyBytes": 1_024}, daemons={**QUICK, **daemons})
    )
    answer = await running.admin("POST", "/v1/runs", {"workflow": "order", "version": "1", "input": "x" * 2_000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert running.dispatcher.url == "https://pm.example"

    run_id = await running.submit()
    token = running.dispatcher.keys.claim_token(run_id, 0)
    body = {"expectedRevision": 0, "claimId": "c", "executor": {"id": "e"}, "refreshIntervalMs": 50}
    grant = await Caller(running.client, token)("POST", f"/v1/runs/{run_id}/claim", body)
    assert (grant.json()["idleTimeoutMs"], grant.json()["claimRefreshIntervalMs"]) == (300, 100)

    async def released() -> bool:
        return bool((await running.admin("GET", f"/v1/runs/{run_id}")).json()["run"]["revision"] == 2)

    await until(released)
    await running.dispatcher.reload(settings())
    assert running.dispatcher.url == URL


async def test_what_needs_a_restart(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """Listen address, database and keys stay as they are, and the log says that they do."""
    before = running.dispatcher.settings
    wanted = settings(
        server={"listen": "127.0.0.1:1", "publicUrl": "https://pm.example"},
        database={"url": "sqlite:///other.db"},
        secretKey="x" * 40,
    )
    await running.dispatcher.reload(wanted)
    after = running.dispatcher.settings

    assert (after.server.listen, after.database, after.secret_key) == (
        before.server.listen,
        before.database,
        before.secret_key,
    )
    assert after.server.public_url == "https://pm.example"
    [told] = [record for record in caplog.records if "restart" in record.message]
    assert vars(told)["settings"] == ["server.listen", "database.url", "POINTSMAN_SECRET_KEY"]


async def test_a_push_under_way_goes_on(running: Running) -> None:
    """A push whose publisher is changed meanwhile keeps its connection and is not sent again."""
    arrived, answers = asyncio.Event(), asyncio.Event()
    pushes: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-l"))
        body = await reader.readexactly(length)
        if b'"runId"' in body:
            pushes.append(body)
            arrived.set()
            await answers.wait()
        writer.write(b"HTTP/1.1 200 OK\r\npointsman-result: settled\r\npointsman-sdk: t/1\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    bound = socket.create_server(("127.0.0.1", 0))
    server = await asyncio.start_server(handler, sock=bound)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}/"
    push = {"type": "push", "url": url, "secret": SECRET, "allowHttp": True, "allowAddresses": ["127.0.0.0/8"]}
    try:
        await running.dispatcher.reload(settings(publishers={"a": push}, routes=route("a")))
        await running.submit()
        async with asyncio.timeout(30):
            await arrived.wait()
        changed = {**push, "url": f"http://127.0.0.1:{free_port()}/", "secret": FRESH}
        await running.dispatcher.reload(settings(publishers={"a": changed}, routes=route("a")))
        assert running.dispatcher.relay.in_flight == 1
        answers.set()

        async def ended() -> bool:
            return running.dispatcher.relay.in_flight == 0

        await until(ended)
        assert len(pushes) == 1
    finally:
        server.close()
        await server.wait_closed()


async def test_a_missing_extra_changes_nothing(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher whose package is not installed is refused with the command to type, at start and at a reload."""
    monkeypatch.setattr("dispatcher.broker_clients.find_spec", lambda name: None)
    with pytest.raises(StartUpError) as caught:
        await running.dispatcher.reload(settings(publishers={"fast": fast("redis://x")}, routes=route("fast")))

    assert (caught.value.code, caught.value.hint) == ("extra_missing", 'Install it: pip install "pointsman[redis]"')
    assert running.dispatcher.settings.publishers == {}
    assert await running.dispatcher.store.transact(endpoint_store.all_endpoints) == []


async def test_a_faulty_file_changes_nothing(
    running: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every fault is logged with its place, the old configuration stays, and the corrected file is taken."""
    file = tmp_path / "pointsman.yaml"
    live = LiveConfiguration(file, {})
    file.write_text("server: { publicUrl: https://pm.example }\nruns: { nope: 1 }\nroutes: [{ publish: [a] }]\n")
    assert not await live.reload(running.dispatcher)

    faults = [vars(record) for record in caplog.records if record.message == "fault in the configuration"]
    assert [(fault["line"], fault["column"], fault["code"]) for fault in faults] == [
        (2, 9, "unknown_key"),
        (3, 22, "unknown_publisher"),
    ]
    assert running.dispatcher.url == URL
    file.write_text("server: { publicUrl: https://pm.example }\n")
    with caplog.at_level(logging.INFO):
        assert await live.reload(running.dispatcher)
    assert running.dispatcher.settings.server.public_url == "https://pm.example"
    [told] = [record for record in caplog.records if record.message == "configuration reloaded"]
    assert "server" in vars(told)["changed"]


async def test_following_outlives_failures(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reload that the database or a missing package refuses is told, and the next one is tried."""
    file = tmp_path / "pointsman.yaml"
    live = LiveConfiguration(file, {})
    following = asyncio.create_task(live.follow(running.dispatcher))
    with monkeypatch.context() as patched:
        patched.setattr("dispatcher.broker_clients.find_spec", lambda name: None)
        file.write_text(f"publishers: {{ a: {{ type: redis, url: redis://x, secret: {SECRET} }} }}\n")
        live.ask()

        async def told() -> bool:
            return any(vars(record).get("code") == "extra_missing" for record in caplog.records)

        await until(told)
    live.ask()

    async def taken() -> bool:
        return list(running.dispatcher.settings.publishers) == ["a"]

    await until(taken)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
