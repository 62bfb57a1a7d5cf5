"""Children over HTTP: started by a claim holder, listed for people, read back by that holder; on both databases."""

from typing import Any
from urllib.parse import quote

import pytest

from endpoint_sdk.wire import identity, limits
from tests.contract.api import World, refused

UNKNOWN = identity.new("run")
SHIP = {"kind": "child", "workflow": "ship", "version": "1", "argsHash": "ab", "ordinal": 0, "input": {"a": 1}}
RESIZE = {**SHIP, "kind": "children", "workflow": "resize", "total": 2}
CALL = quote("children:ab:0:resize")


async def start(world: World, grant: dict[str, Any], *starts: Any, **fields: Any) -> Any:
    """The answer to the start of these under *grant*."""
    body = {"expectedRevision": grant["revision"], "claimId": grant["claimId"], "children": list(starts), **fields}
    return await world.bearer(grant["token"])("POST", f"/v1/runs/{grant['run']['id']}/children", body)


async def family(world: World) -> tuple[dict[str, Any], list[str]]:
    """A parent's grant and the ids of its three children: one of a call, and the two of another."""
    grant = await world.held(workflow="family")
    answer = await start(world, grant, SHIP, {**RESIZE, "index": 0}, {**RESIZE, "index": 1})
    assert answer.status_code == 200, answer.text
    return grant, [item["id"] for item in answer.json()["children"]]


async def test_start_children(world: World) -> None:
    """200 with an id for each, once; the runs name their parent, and the parent has the records of both calls."""
    grant, ids = await family(world)
    again = await start(world, grant, SHIP, {**RESIZE, "index": 1})
    assert again.json() == {
        "children": [
            {"id": ids[0], "created": False, "error": None},
            {"id": ids[2], "created": False, "error": None},
        ],
        "stop": None,
        "signalSeq": 0,
        "signals": [],
    }
    shown = (await world.admin("GET", f"/v1/runs/{ids[0]}")).json()["run"]
    assert (shown["parentId"], shown["workflow"], shown["input"]) == (grant["run"]["id"], "ship", {"a": 1})
    records = (await world.admin("GET", f"/v1/runs/{grant['run']['id']}/records")).json()["items"]
    assert [(item["kind"], item["phase"], item["value"]) for item in records] == [
        ("child", "started", {"id": ids[0]}),
        ("children", "started", {"total": 2}),
    ]


async def test_a_refused_child(world: World) -> None:
    """A child that cannot start is an error object in its place."""
    grant = await world.held()
    answer = await start(world, grant, {**SHIP, "input": "a" * limits.MAX_PAYLOAD}, {**SHIP, "ordinal": 1})
    assert answer.status_code == 200
    bad, good = answer.json()["children"]
    assert (bad["id"], bad["error"]["type"], bad["error"]["retryable"]) == (None, "payload_too_large", False)
    assert good["id"]


@pytest.mark.parametrize(
    "starts",
    [
        [],
        [SHIP] * 501,
        [{**SHIP, "kind": "task"}],
        [{**SHIP, "index": 1}],
        [{**SHIP, "total": 2}],
        [{**RESIZE, "index": 2}],
        [{**RESIZE, "total": 10_001}],
        [{**SHIP, "argsHash": "a:b"}],
        [{**SHIP, "workflow": ""}],
        [{**SHIP, "tags": {"a": "b" * 257}}],
        [{name: value for name, value in SHIP.items() if name != "input"}],
    ],
)
async def test_malformed_starts(world: World, starts: list[Any]) -> None:
    """From 1 to 500 children of a place their call has."""
    refused(await start(world, await world.held(), *starts), 400, "malformed")


async def test_who_may_start_children(world: World) -> None:
    """The holder of the claim, as long as it holds it."""
    grant = await world.held()
    path = f"/v1/runs/{grant['run']['id']}/children"
    refused(await world.admin("POST", path, {"children": [SHIP]}), 401, "unauthorized")
    refused(await start(world, {**grant, "claimId": "clm_other"}, SHIP), 401, "unauthorized")
    await world.progress(grant, {"kind": "complete", "result": 1})
    refused(await start(world, grant, SHIP), 409, "revision_conflict")


async def test_list_children(world: World) -> None:
    """People see every child with its status and the call that started it, oldest first, in pages."""
    grant, ids = await family(world)
    path = f"/v1/runs/{grant['run']['id']}/children"
    await world.admin("POST", f"/v1/runs/{ids[1]}/cancel", {"reason": "no"})
    reader = await world.caller("read")
    first = (await reader("GET", f"{path}?limit=2")).json()
    second = (await reader("GET", f"{path}?limit=2&after={first['next']}")).json()
    items = first["items"] + second["items"]
    assert ([item["id"] for item in items], second["next"]) == (sorted(ids), None)
    by_id = {item["id"]: item for item in items}
    one = by_id[ids[1]]
    assert one.pop("createdAt")
    assert one.pop("finishedAt")
    assert one == {
        "id": ids[1],
        "workflow": "resize",
        "version": "1",
        "status": "cancelled",
        "reason": "no",
        "kind": "children",
        "name": "resize",
        "argsHash": "ab",
        "ordinal": 0,
        "index": 0,
    }
    assert by_id[ids[0]]["finishedAt"] is None
    queued = (await reader("GET", f"{path}?status=queued")).json()["items"]
    assert sorted(item["id"] for item in queued) == sorted([ids[0], ids[2]])


@pytest.mark.parametrize("query", ["status=done", "after=x", "limit=0", "tag.a=b"])
async def test_parameters_of_the_list(world: World, query: str) -> None:
    """Anything else than status, limit and after is refused, and so is what they cannot hold."""
    run = await world.submit()
    refused(await world.admin("GET", f"/v1/runs/{run['id']}/children?{query}"), 400, "bad_parameter")


async def test_children_of_no_run(world: World) -> None:
    """A run that does not exist, or not here, has no list."""
    refused(await world.admin("GET", f"/v1/runs/{UNKNOWN}/children"), 404, "run_not_found")
    run = await world.submit()
    other = await world.caller("read", namespace="other")
    refused(await other("GET", f"/v1/runs/{run['id']}/children"), 404, "run_not_found")


async def test_outcomes(world: World) -> None:
    """The claim holder reads what became of a call's children, from a place on."""
    grant, ids = await family(world)
    claimed = (await world.claim((await world.admin("GET", f"/v1/runs/{ids[2]}")).json()["run"])).json()
    await world.progress(claimed, {"kind": "complete", "result": [7]})
    path = f"/v1/runs/{grant['run']['id']}/children/outcomes"
    holder = world.bearer(grant["token"])
    read = (await holder("GET", f"{path}?call={CALL}")).json()
    assert read == {
        "items": [
            {"index": 0, "id": ids[1], "status": "queued", "error": None},
            {"index": 1, "id": ids[2], "status": "completed", "result": [7], "error": None},
        ],
        "next": None,
    }
    assert [item["index"] for item in (await holder("GET", f"{path}?call={CALL}&after=0")).json()["items"]] == [1]
    refused(await holder("GET", path), 400, "bad_parameter")
    refused(await world.admin("GET", f"{path}?call={CALL}"), 401, "unauthorized")


async def test_a_parent_is_woken_and_says_why_it_waited(world: World) -> None:
    """A parked parent names the child it waits for, and is queued when that ends."""
    grant, ids = await family(world)
    run_id = grant["run"]["id"]
    wait = {"kind": "child", "name": "ship", "argsHash": "ab", "ordinal": 0}
    assert (await world.progress(grant, {"kind": "park", "waits": [wait]})).json()["parked"]
    why = (await world.admin("GET", f"/v1/runs/{run_id}/why")).json()
    assert why["sentence"] == f"The run waits for the child 'ship' ({ids[0]}), which is queued."
    assert why["next"] == f"pointsman run why {ids[0]}"
    await world.admin("POST", f"/v1/runs/{ids[0]}/cancel", {"reason": "no"})
    assert (await world.admin("GET", f"/v1/runs/{run_id}")).json()["run"]["status"] == "queued"


async def test_why_a_parent_waits_for_many(world: World) -> None:
    """The sentence counts what still runs, and the command lists it."""
    grant, ids = await family(world)
    run_id = grant["run"]["id"]
    wait = {"kind": "children", "name": "resize", "argsHash": "ab", "ordinal": 0}
    assert (await world.progress(grant, {"kind": "park", "waits": [wait]})).json()["parked"]
    claimed = (await world.claim((await world.admin("GET", f"/v1/runs/{ids[1]}")).json()["run"])).json()
    await world.progress(claimed, {"kind": "complete", "result": 1})
    why = (await world.admin("GET", f"/v1/runs/{run_id}/why")).json()
    assert why["sentence"] == "The run waits for 1 of its 2 children 'resize'."
    assert why["next"] == f"pointsman run children {run_id}"
