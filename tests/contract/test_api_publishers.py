"""Publishers of every type over HTTP and from the configuration file, on both databases."""

from typing import Any

import pytest

from dispatcher import endpoints
from dispatcher.queues import Queue
from dispatcher.settings import Publisher, Settings
from dispatcher.store import endpoints as endpoint_store
from endpoint_sdk.wire import signature
from endpoint_sdk.wire.messages import ServedWorkflow
from tests.contract.api import World, refused
from tests.contract.test_api_endpoints import SECRET, discover, nowhere

FAST = {"type": "redis", "url": "redis://:hunter2hunter2@cache:6379/0", "secret": SECRET}
QUEUE = {"type": "sqs", "queueUrl": "https://sqs.eu-west-1.amazonaws.com/1/orders", "secret": SECRET}
PUSH = {"type": "push", "url": "https://x/", "secret": SECRET}


def described(**publishers: dict[str, Any]) -> dict[str, Publisher]:
    return Settings.model_validate({"publishers": publishers}).publishers


async def apply(world: World, **publishers: dict[str, Any]) -> dict[str, Publisher]:
    """The file holds *publishers*."""
    found = described(**publishers)
    await endpoints.apply_file(world.store, world.keys, found)
    world.dispatcher.registry.reload(found)
    return found


async def test_every_publisher_is_shown(world: World) -> None:
    """Brokers and endpoints are listed with type, state and keys; a Redis URL without its password."""
    await apply(world, fast=FAST, queue={**QUEUE, "republishMs": 5_000}, push=PUSH)
    answer = await world.admin("GET", "/v1/publishers")
    items = {item["name"]: item for item in answer.json()["items"]}

    assert answer.status_code == 200
    assert answer.json()["next"] is None
    assert "hunter2" not in answer.text
    assert {name: (item["type"], item["maxInFlight"], item["republishMs"]) for name, item in items.items()} == {
        "fast": ("redis", None, 60_000),
        "queue": ("sqs", None, 5_000),
        "push": ("push", 50, None),
    }
    assert items["fast"]["url"] == "redis://:…@cache:6379/0"
    assert items["queue"]["url"] == QUEUE["queueUrl"]
    assert {(item["state"], item["reason"], item["advice"]) for item in items.values()} == {("unverified", None, None)}
    assert items["fast"]["keys"][0]["hint"] == signature.hint(SECRET)
    assert (await world.admin("GET", "/v1/publishers/fast")).json() == {"publisher": items["fast"]}


async def test_no_password_is_stored(world: World) -> None:
    """What the row of a Redis publisher holds is its URL without the password."""
    await apply(world, fast=FAST)
    rows = await world.store.transact(endpoint_store.all_endpoints)

    assert [(row.url, row.owner) for row in rows] == [("redis://:…@cache:6379/0", "yaml")]


async def test_a_state_comes_with_its_advice(world: World) -> None:
    """A broker that a check found unusable says why, and what to do; so does an endpoint whose probe failed."""
    await apply(world, queue=QUEUE, push=PUSH)
    ids = {item.name: item.endpoint_id for item in await world.dispatcher.registry.targets()}
    await world.store.transact(
        lambda session: endpoint_store.checked(session, ids["queue"], "misconfigured", "queue_missing")
    )
    await world.store.transact(lambda session: endpoint_store.unreached(session, ids["push"], "endpoint_unreachable"))
    queue = (await world.admin("GET", "/v1/publishers/queue")).json()["publisher"]
    push = (await world.admin("GET", "/v1/publishers/push")).json()["publisher"]

    assert (queue["state"], queue["reason"]) == ("misconfigured", "queue_missing")
    assert "does not exist" in queue["advice"]
    assert (push["state"], push["reason"]) == ("unverified", "endpoint_unreachable")
    assert "pointsman endpoint test push" in push["advice"]


async def test_unknown_publishers(world: World) -> None:
    """A publisher nobody described, or an endpoint of another namespace, is not found; the file's serve all."""
    await apply(world, fast=FAST)
    await world.admin("POST", "/v1/endpoints", {"name": "own", "url": nowhere(), "allowHttp": True})
    stranger = await world.caller("read", namespace="other")

    refused(await world.admin("GET", "/v1/publishers/none"), 404, "publisher_not_found")
    refused(await stranger("GET", "/v1/publishers/own"), 404, "publisher_not_found")
    assert (await stranger("GET", "/v1/publishers/fast")).status_code == 200
    names = [item["name"] for item in (await stranger("GET", "/v1/publishers")).json()["items"]]
    assert names == ["fast"]
    names = [item["name"] for item in (await world.admin("GET", "/v1/publishers")).json()["items"]]
    assert sorted(names) == ["fast", "own"]


@pytest.mark.parametrize("path", ["/v1/publishers", "/v1/publishers/fast"])
async def test_refusals(world: World, path: str) -> None:
    """No key, a key without the scope, an unknown parameter and another method are refused with their codes."""
    await apply(world, fast=FAST)

    refused(await world.nobody("GET", path), 401, "unauthorized")
    refused(await (await world.caller("execute"))("GET", path), 403, "forbidden")
    refused(await world.admin("GET", f"{path}?limit=5"), 400, "bad_parameter")
    refused(await world.admin("POST", path, {}), 405, "method_not_allowed")


async def test_brokers_are_no_endpoints(world: World) -> None:
    """A broker is not listed, shown, tested or discovered as an endpoint, and its name cannot be taken by one."""
    await apply(world, fast=FAST)

    assert (await world.admin("GET", "/v1/endpoints")).json()["items"] == []
    refused(await world.admin("GET", "/v1/endpoints/fast"), 404, "endpoint_not_found")
    refused(await world.admin("POST", "/v1/endpoints/fast/test"), 404, "endpoint_not_found")
    body = {"name": "fast", "url": nowhere(), "allowHttp": True}
    refused(await world.admin("POST", "/v1/endpoints", body), 409, "endpoint_owned_by_yaml")
    assert await world.dispatcher.discovery.once() == {"answered": 0, "unreached": 0}


async def test_targets_carry_what_the_relay_needs(world: World) -> None:
    """Targets of every type come in the order of the file; a changed secret is a rotation for a broker as well."""
    await apply(world, queue=QUEUE, push=PUSH, fast=FAST)
    fresh = signature.new_secret()
    await apply(world, queue=QUEUE, push=PUSH, fast={**FAST, "secret": fresh})
    known = await world.dispatcher.registry.targets()

    assert [(item.name, item.type, item.republish_ms) for item in known] == [
        ("queue", "sqs", 300_000),
        ("push", "push", None),
        ("fast", "redis", 60_000),
    ]
    assert known[0].target.url == QUEUE["queueUrl"]
    assert known[2].target.secrets == (signature.parse_secret(fresh), signature.parse_secret(SECRET))


async def test_a_broker_of_another_file_is_left_out(world: World) -> None:
    """While replicas have different files, a process uses only the brokers its own describes, by name and type."""
    await endpoints.apply_file(world.store, world.keys, described(fast=FAST, queue=QUEUE, push=PUSH))
    world.dispatcher.registry.reload(described(fast={**QUEUE}, queue=QUEUE))

    assert sorted(item.name for item in await world.dispatcher.registry.targets()) == ["push", "queue"]


async def test_an_endpoint_that_becomes_a_broker(world: World) -> None:
    """A publisher of another type under the same name starts anew: unverified, serving nothing by discovery."""
    await apply(world, a=PUSH)
    await discover(world, "a", "b1", ServedWorkflow("order", "1"))
    await apply(world, a=FAST)
    [only] = await world.dispatcher.registry.targets()
    shown = (await world.admin("GET", "/v1/publishers/a")).json()["publisher"]

    assert (only.type, only.serves(Queue("default", "order", "1", "default"))) == ("redis", False)
    assert (shown["state"], shown["reason"]) == ("unverified", None)
    refused(await world.admin("POST", "/v1/runs", {"workflow": "order"}), 422, "version_unknown")
