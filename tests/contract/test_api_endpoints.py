"""The endpoint registry over HTTP and from the configuration file, on both databases."""

import asyncio
import socket
import time

import msgspec
import pytest

from dispatcher import endpoints
from dispatcher.queues import Queue
from dispatcher.settings import PushPublisher
from dispatcher.store import endpoints as endpoint_store
from endpoint_sdk.wire import signature
from endpoint_sdk.wire.messages import Discovered, ServedWorkflow
from publishers.discovery import ProbeResult
from tests.contract.api import World, refused

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def nowhere() -> str:
    """A URL nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/"


def push(url: str = "http://127.0.0.1:9/", secret: str = SECRET, **more: object) -> PushPublisher:
    return PushPublisher.model_validate({"type": "push", "url": url, "secret": secret, **more}, by_name=True)


async def discover(world: World, name: str, build: str, *served: ServedWorkflow) -> None:
    """The endpoint answered discovery."""
    known = await endpoints.targets(world.store, world.keys)
    endpoint_id = next(item.endpoint_id for item in known if item.name == name)
    text = msgspec.json.encode(list(served)).decode()
    await world.store.transact(lambda session: endpoint_store.discovered(session, endpoint_id, "python/1", build, text))
    world.dispatcher.registry.invalidate()


async def test_unreachable_endpoint_is_stored_and_told(world: World) -> None:
    """An endpoint that does not answer is stored unverified within 5 s, and the answer says why."""
    started = time.monotonic()
    body = {"name": "orders", "url": nowhere(), "allowHttp": True, "allowAddresses": ["127.0.0.0/8"]}
    answer = await world.admin("POST", "/v1/endpoints", body)
    added = answer.json()

    assert answer.status_code == 201
    assert time.monotonic() - started < 6
    assert added["test"]["ok"] is False
    assert added["test"]["code"] == "endpoint_unreachable"
    assert added["endpoint"]["state"] == "unverified"
    assert added["endpoint"]["reason"] == "endpoint_unreachable"
    assert signature.parse_secret(added["secret"])
    assert added["endpoint"]["keys"][0]["hint"] == signature.hint(added["secret"])
    shown = (await world.admin("GET", "/v1/endpoints/orders")).json()["endpoint"]
    assert shown == added["endpoint"]
    assert (await world.admin("GET", "/v1/endpoints")).json() == {"items": [shown], "next": None}
    assert added["secret"] not in str(shown)
    tested = await world.admin("POST", "/v1/endpoints/orders/test")
    assert (tested.status_code, tested.json()["code"]) == (200, "endpoint_unreachable")


async def test_given_secret_is_not_shown(world: World) -> None:
    """A secret the caller chose is stored, encrypted, and not repeated."""
    body = {"name": "x", "url": nowhere(), "allowHttp": True, "secret": SECRET}
    answer = await world.admin("POST", "/v1/endpoints", body)
    signing = await world.store.transact(endpoint_store.keys)

    assert SECRET not in answer.text
    assert answer.json()["secret"] is None
    assert all(SECRET.encode() not in key.secret for keys in signing.values() for key in keys)
    assert (await endpoints.targets(world.store, world.keys))[0].target.secrets == (signature.parse_secret(SECRET),)


REFUSED = [
    ({"url": "http://x/"}, 422, "endpoint_url_refused"),
    ({"url": "https://u:p@x/"}, 422, "endpoint_url_refused"),
    ({"url": "ftp://x/", "allowHttp": True}, 422, "endpoint_url_refused"),
    ({"url": "https://x:0/"}, 422, "endpoint_url_refused"),
    ({"allowAddresses": ["nope"]}, 422, "endpoint_url_refused"),
    ({"secret": "whsec_short"}, 422, "secret_invalid"),
    ({"secret": "plain"}, 422, "secret_invalid"),
    ({"platform": "mainframe"}, 400, "malformed"),
    ({"maxInFlight": 0}, 400, "malformed"),
    ({"name": ""}, 400, "malformed"),
    ({"name": "a\u2028b"}, 400, "malformed"),
    ({"url": 5}, 400, "malformed"),
    ({"max_in_flight": 5}, 400, "unknown_field"),
]


@pytest.mark.parametrize(("change", "status", "code"), REFUSED)
async def test_refused_endpoints(world: World, change: dict[str, object], status: int, code: str) -> None:
    """What cannot be pushed to is refused before anything is stored or sent."""
    refused(await world.admin("POST", "/v1/endpoints", {"name": "x", "url": "https://x/", **change}), status, code)
    assert (await world.admin("GET", "/v1/endpoints")).json()["items"] == []


async def test_names_are_taken_once(world: World) -> None:
    """A name serves one endpoint of a namespace, and not one of the file again; any printable name can be asked for."""
    body = {"name": "a/b c", "url": nowhere(), "allowHttp": True}
    assert (await world.admin("POST", "/v1/endpoints", body)).status_code == 201
    refused(await world.admin("POST", "/v1/endpoints", body), 409, "endpoint_exists")
    assert (await world.admin("GET", "/v1/endpoints/a%2Fb%20c")).json()["endpoint"]["name"] == "a/b c"

    await endpoints.apply_file(world.store, world.keys, {"file": push()})
    refused(await world.admin("POST", "/v1/endpoints", {**body, "name": "file"}), 409, "endpoint_owned_by_yaml")
    elsewhere = {"pointsman-namespace": "n2"}
    assert (await world.admin("POST", "/v1/endpoints", body, headers=elsewhere)).status_code == 201


async def test_replicas_start_at_once(world: World) -> None:
    """Replicas that apply the same file at the same time store each endpoint once, with one key."""
    await asyncio.gather(*(endpoints.apply_file(world.store, world.keys, {"a": push(), "b": push()}) for _ in range(6)))
    known = await endpoints.targets(world.store, world.keys)

    assert sorted((item.name, len(item.target.secrets)) for item in known) == [("a", 1), ("b", 1)]
    body = {"name": "c", "url": nowhere(), "allowHttp": True}
    answers = await asyncio.gather(*(world.admin("POST", "/v1/endpoints", body) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]


async def test_unknown_endpoints(world: World) -> None:
    """An endpoint nobody added, or of another namespace, is not found."""
    await world.admin("POST", "/v1/endpoints", {"name": "x", "url": nowhere(), "allowHttp": True})
    stranger = await world.caller("operate", namespace="other")
    for caller, name in ((world.admin, "y"), (stranger, "x")):
        refused(await caller("GET", f"/v1/endpoints/{name}"), 404, "endpoint_not_found")
        refused(await caller("POST", f"/v1/endpoints/{name}/test"), 404, "endpoint_not_found")


async def test_file_is_applied_and_applied_again(world: World) -> None:
    """The registry follows the file: order, changes, removals; a changed secret keeps the old one for a day."""
    publishers = {"b": push(), "a": push(maxInFlight=3)}
    await endpoints.apply_file(world.store, world.keys, publishers)
    await endpoints.apply_file(world.store, world.keys, publishers)
    known = await endpoints.targets(world.store, world.keys, file_order=["b", "a"])
    assert [(item.name, item.namespace, item.max_in_flight, len(item.target.secrets)) for item in known] == [
        ("b", None, 50, 1),
        ("a", None, 3, 1),
    ]
    changed = signature.new_secret()
    await endpoints.apply_file(world.store, world.keys, {"a": push(secret=changed)})
    (only,) = await endpoints.targets(world.store, world.keys)
    assert only.target.secrets == (signature.parse_secret(changed), signature.parse_secret(SECRET))
    view = (await world.admin("GET", "/v1/endpoints/a")).json()["endpoint"]
    assert (view["owner"], len(view["keys"])) == ("yaml", 2)


async def test_discovery_decides_versions_and_routing(world: World) -> None:
    """The version discovered last is the default; an endpoint serves what it lists or accepts."""
    await endpoints.apply_file(world.store, world.keys, {"old": push(), "new": push()})
    await discover(world, "new", "b1", ServedWorkflow("order", "1.10.0", ["1.9.0"]), ServedWorkflow("order", "1.2.0"))
    run = (await world.admin("POST", "/v1/runs", {"workflow": "order"})).json()["run"]
    assert run["version"] == "1.10.0"
    refused(await world.admin("POST", "/v1/runs", {"workflow": "other"}), 422, "version_unknown")

    known = {item.name: item for item in await world.dispatcher.registry.targets("default")}
    for version, serves in (("1.10.0", True), ("1.9.0", True), ("1.2.0", True), ("2.0.0", False)):
        assert known["new"].serves(Queue("default", "order", version, "default")) is serves
        assert not known["old"].serves(Queue("default", "order", version, "default"))


async def test_time_of_discovery_moves_with_news_only(world: World) -> None:
    """Finding the same again does not make an endpoint the one discovered last."""
    await endpoints.apply_file(world.store, world.keys, {"a": push()})
    await discover(world, "a", "b1", ServedWorkflow("order", "1"))
    first = (await world.admin("GET", "/v1/endpoints/a")).json()["endpoint"]
    await discover(world, "a", "b1", ServedWorkflow("order", "1"))
    assert (await world.admin("GET", "/v1/endpoints/a")).json()["endpoint"] == first
    assert (first["state"], first["workflows"][0]["name"]) == ("active", "order")


async def test_background_discovery_backs_off(world: World) -> None:
    """An endpoint that does not answer is asked again later, not at every tick."""
    await endpoints.apply_file(world.store, world.keys, {"a": push(url=nowhere(), allowHttp=True)})

    assert await world.dispatcher.discovery.once() == {"answered": 0, "unreached": 1}
    assert await world.dispatcher.discovery.once() == {"answered": 0, "unreached": 0}


async def test_changed_endpoint_is_probed_at_once(world: World) -> None:
    """An endpoint of another URL or secret than at the last probe is not left alone for it."""
    here, there = nowhere(), nowhere()
    for changed in (
        push(here, allowHttp=True),
        push(there, allowHttp=True),
        push(there, signature.new_secret(), allowHttp=True),
    ):
        await endpoints.apply_file(world.store, world.keys, {"a": changed})
        world.dispatcher.registry.invalidate()
        assert await world.dispatcher.discovery.once() == {"answered": 0, "unreached": 1}
        assert await world.dispatcher.discovery.once() == {"answered": 0, "unreached": 0}


async def test_own_endpoints_serve_their_namespace(world: World) -> None:
    """An added endpoint serves the namespace it was added in; one of the file serves all."""
    await world.admin("POST", "/v1/endpoints", {"name": "own", "url": nowhere(), "allowHttp": True})
    await endpoints.apply_file(world.store, world.keys, {"all": push()})
    registry = world.dispatcher.registry
    registry.invalidate()

    assert [item.name for item in await registry.targets("default")] == ["all", "own"]
    assert [item.name for item in await registry.targets("other")] == ["all"]


async def test_probe_that_succeeds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A good answer makes the endpoint active, tells what it serves, and is remembered for a minute."""
    served = [ServedWorkflow("order", "2", ["1"])]

    async def probe(*_arguments: object) -> ProbeResult:
        return ProbeResult(True, None, None, 200, 4, Discovered("python/0.1.0", "b1", served))

    monkeypatch.setattr("dispatcher.discovery.discovery.probe", probe)
    added = (await world.admin("POST", "/v1/endpoints", {"name": "x", "url": "https://x/"})).json()

    assert (added["test"]["ok"], added["test"]["workflows"][0]["version"]) == (True, "2")
    assert (added["endpoint"]["state"], added["endpoint"]["sdk"]) == ("active", "python/0.1.0")
    assert await world.dispatcher.discovery.once() == {"answered": 0, "unreached": 0}
    run = (await world.admin("POST", "/v1/runs", {"workflow": "order"})).json()["run"]
    assert run["version"] == "2"
