"""Credentials, scopes, namespaces and keys over HTTP, on both databases."""

import asyncio

import pytest

from dispatcher import access
from dispatcher.store import Store
from endpoint_sdk.wire import identity
from endpoint_sdk.wire.messages import Scope
from tests.contract.api import World, refused

RUN = f"/v1/runs/{identity.new('run')}"
ROUTES: list[tuple[str, str, Scope]] = [
    ("POST", "/v1/runs", "submit"),
    ("POST", "/v1/runs/batch", "submit"),
    ("GET", "/v1/runs", "read"),
    ("GET", RUN, "read"),
    ("GET", f"{RUN}/transitions", "read"),
    ("GET", f"{RUN}/records", "read"),
    ("GET", f"{RUN}/result", "read"),
    ("GET", f"{RUN}/why", "read"),
    ("POST", f"{RUN}/cancel", "operate"),
    ("POST", f"{RUN}/release", "operate"),
    ("POST", f"{RUN}/requeue", "operate"),
    ("POST", f"{RUN}/restart", "operate"),
    ("POST", "/v1/runs/actions", "operate"),
    ("POST", "/v1/endpoints", "operate"),
    ("GET", "/v1/endpoints", "read"),
    ("GET", "/v1/endpoints/x", "read"),
    ("POST", "/v1/endpoints/x/test", "operate"),
    ("GET", "/v1/publishers", "read"),
    ("GET", "/v1/publishers/x", "read"),
    ("POST", "/v1/keys", "admin"),
    ("GET", "/v1/keys", "admin"),
    ("DELETE", "/v1/keys/key_x", "admin"),
]
COVERED: dict[Scope, set[Scope]] = {
    "admin": {"admin", "operate", "submit", "read"},
    "operate": {"operate", "submit", "read"},
    "submit": {"submit", "read"},
    "read": {"read"},
    "execute": set(),
}


async def test_every_scope_on_every_route(world: World) -> None:
    """admin covers operate covers submit covers read; execute covers none of them."""
    for scope, covered in COVERED.items():
        caller = await world.caller(scope)
        for method, path, needed in ROUTES:
            answer = await caller(method, path)
            if needed in covered:
                assert answer.status_code not in {401, 403}, (scope, method, path)
            else:
                refused(answer, 403, "forbidden")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "Basic abc")],
        [("authorization", "pmk_x")],
        [("authorization", "Bearer pmk_unknown")],
        [("authorization", "Bearer pmk_a b")],
        [("authorization", b"Bearer pmk_\xff\xfe")],
        [("authorization", "Bearer a"), ("authorization", "Bearer b")],
    ],
)
async def test_no_good_credential(world: World, headers: list[tuple[str, str | bytes]]) -> None:
    """Without one well-formed, known credential every route but health is the same 401."""
    sent = [(name.encode(), value if isinstance(value, bytes) else value.encode()) for name, value in headers]
    for method, path, _ in ROUTES:
        answer = await world.client.request(method, path, headers=sent)
        refused(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_namespaces(world: World) -> None:
    """A key sees its namespace only; an admin key may name another per call."""
    other = await world.caller("submit", namespace="other")
    run = (await other("POST", "/v1/runs", {"workflow": "a", "version": "1"})).json()["run"]

    assert run["namespace"] == "other"
    refused(await world.admin("GET", f"/v1/runs/{run['id']}"), 404, "run_not_found")
    there = {"pointsman-namespace": "other"}
    assert (await world.admin("GET", f"/v1/runs/{run['id']}", headers=there)).status_code == 200
    assert (await other("GET", "/v1/runs", headers=there)).status_code == 200
    refused(await other("GET", "/v1/runs", headers={"pointsman-namespace": "default"}), 403, "forbidden")
    for bad in ("", "x" * 201, "*"):
        refused(await world.admin("GET", "/v1/runs", headers={"pointsman-namespace": bad}), 400, "bad_parameter")


async def test_keys_are_created_listed_and_revoked(world: World) -> None:
    """A key is shown once, works until revoked, and is known to the list without its secret."""
    made = await world.admin("POST", "/v1/keys", {"name": "ci", "scopes": ["submit", "read"], "namespace": "n"})
    key = made.json()
    caller = world.bearer(key["key"])

    assert made.status_code == 201
    assert key["key"].startswith("pmk_")
    assert len(key["key"]) >= 4 + 22
    assert (await caller("GET", "/v1/runs")).status_code == 200
    listed = (await world.admin("GET", "/v1/keys")).json()
    assert [item["name"] for item in listed["items"]] == ["admin", "ci"]
    assert key["key"] not in str(listed)

    revoked = await world.admin("DELETE", f"/v1/keys/{key['id']}")
    assert revoked.json()["key"]["revokedAt"] is not None
    refused(await caller("GET", "/v1/runs"), 401, "unauthorized")
    assert (await world.admin("DELETE", f"/v1/keys/{key['id']}")).json() == revoked.json()
    refused(await world.admin("DELETE", f"/v1/keys/{identity.new('key')}"), 404, "key_not_found")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "x", "scopes": []}, "malformed"),
        ({"name": "x", "scopes": ["root"]}, "malformed"),
        ({"name": "", "scopes": ["read"]}, "malformed"),
        ({"name": "x"}, "malformed"),
        ({"name": "x", "scopes": ["read"], "namespace": "*"}, "bad_parameter"),
        ({"name": "x", "scopes": ["read"], "key": "pmk_mine"}, "unknown_field"),
    ],
)
async def test_malformed_keys(world: World, body: dict[str, object], code: str) -> None:
    """A key without a name, with unknown scopes or with a chosen secret is not made."""
    refused(await world.admin("POST", "/v1/keys", body), 400, code)
    assert len((await world.admin("GET", "/v1/keys")).json()["items"]) == 1


async def test_admin_key_of_the_first_start(store: Store) -> None:
    """The first admin key stays; another one given later changes nothing."""
    await access.ensure_admin(store, "pmk_" + "a" * 43)
    await access.ensure_admin(store, "pmk_" + "b" * 43)
    await access.ensure_admin(store, None)
    known = access.Access(store)

    assert (await known.caller("pmk_" + "a" * 43, None)).scopes >= {"admin", "read"}
    assert [item.scopes for item in await access.list_(store)] == [["admin"]]


async def test_replicas_start_at_once(store: Store) -> None:
    """Two replicas that bring the same admin key make one."""
    await asyncio.gather(*(access.ensure_admin(store, "pmk_" + "a" * 43) for _ in range(8)))

    assert len(await access.list_(store)) == 1


async def test_headers_are_bounded(world: World) -> None:
    """More than 16 KiB of headers is a 400 before anything else is looked at."""
    refused(await world.admin("GET", "/v1/runs", headers={"x": "y" * 17_000}), 400, "malformed")


async def test_known_keys_cost_no_query(world: World) -> None:
    """A key used a moment ago is known without asking the database."""
    known = world.dispatcher.services.access
    key = (await world.admin("POST", "/v1/keys", {"name": "x", "scopes": ["execute"]})).json()["key"]
    await known.caller(key, None)
    before = world.store.statements
    await known.caller(key, None)

    assert world.store.statements == before
