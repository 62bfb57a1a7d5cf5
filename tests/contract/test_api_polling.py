"""Claiming many over HTTP: what a poller is answered, on both databases."""

import asyncio
from typing import Any

import pytest

from dispatcher import waiting
from endpoint_sdk.wire import identity, limits
from tests.contract.api import Caller, World, refused

ORDER = {"name": "order", "versions": ["1"]}


def poll(limit: int = 10, wait_ms: int = 0, **fields: Any) -> dict[str, Any]:
    """The body of a poll for order 1 in the default pool."""
    return {
        "workflows": [ORDER],
        "limit": limit,
        "waitMs": wait_ms,
        "requestId": identity.new("req"),
        "executor": {"id": "poller", "kind": "worker", "host": "h"},
        "refreshIntervalMs": 1_000,
        **fields,
    }


async def claims(caller: Caller, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The grants that answer the poll *body*."""
    answer = await caller("POST", "/v1/claims", body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["claims"]
    return found


def ids(grants: list[dict[str, Any]]) -> list[str]:
    return [grant["run"]["id"] for grant in grants]


async def waits(world: World, count: int = 1) -> None:
    """Returns once *count* polls wait; fails after ten seconds."""
    async with asyncio.timeout(10):
        while world.dispatcher.polling.waiting != count:  # noqa: ASYNC110 - a poll tells nobody that it waits
            await asyncio.sleep(0.001)


async def test_a_poll_answers_grants(world: World) -> None:
    """A poll answers what a claim does, one revision on, for every run it took; the holder can finish them."""
    runs = {(await world.submit(input={"n": 0}, tags={"a": "b"}))["id"] for _ in range(3)}
    body = poll(limit=2)
    first, second = await claims(await world.caller("execute"), body)

    assert len({*ids([first, second])} & runs) == 2
    assert first["claimId"] == f"{body['requestId']}_{first['run']['id']}"
    assert (first["revision"], first["records"], first["recordsAfter"]) == (1, [], None)
    assert (first["run"]["input"], first["run"]["tags"], first["run"]["namespace"]) == ({"n": 0}, {"a": "b"}, "default")
    assert (first["idleTimeoutMs"], first["claimRefreshIntervalMs"]) == (90_000, 30_000)
    assert (await world.progress(first, {"kind": "complete", "result": 1})).status_code == 200


async def test_the_history_of_a_polled_run(world: World) -> None:
    """The transition is `claimed`, carries the executor, and no push number: nobody pushed."""
    run = await world.submit()
    await claims(await world.caller("execute"), poll())
    moves = (await world.admin("GET", f"/v1/runs/{run['id']}/transitions")).json()["items"]

    assert (moves[-1]["to"], moves[-1]["reason"], moves[-1]["actor"]) == ("running", "claimed", "executor")
    assert moves[-1]["details"] == {"executor": {"id": "poller", "kind": "worker", "host": "h"}, "pushNumber": None}
    shown = (await world.admin("GET", f"/v1/runs/{run['id']}")).json()["run"]
    assert shown["claim"]["executor"]["id"] == "poller"


async def test_a_poll_waits_for_a_submit(world: World) -> None:
    """A poll that finds nothing is answered as soon as a run is submitted, no tick of any daemon needed."""
    waiting_poll = asyncio.create_task(claims(await world.caller("execute"), poll(wait_ms=20_000)))
    await waits(world)
    run = await world.submit()

    assert ids(await waiting_poll) == [run["id"]]


async def test_a_poll_that_waits_in_vain(world: World) -> None:
    """When the wait ends first the answer is 200 with nothing claimed; no wait, and it comes at once."""
    caller = await world.caller("execute")
    assert await claims(caller, poll(wait_ms=0)) == []
    assert await claims(caller, poll(wait_ms=50)) == []


async def test_only_what_was_asked_for(world: World) -> None:
    """Another workflow, version, pool or namespace is never in the answer."""
    await world.submit(workflow="refund")
    await world.submit(version="2")
    await world.submit(pool="gpu")
    await world.admin(
        "POST", "/v1/runs", {"workflow": "order", "version": "1"}, headers={"pointsman-namespace": "other"}
    )
    caller = await world.caller("execute")

    assert await claims(caller, poll()) == []
    wanted = [{"name": "order", "versions": ["1", "2"]}, {"name": "refund", "versions": ["1"]}]
    assert len(await claims(caller, poll(workflows=wanted, pools=["default", "gpu"]))) == 3


async def test_the_namespace_of_the_key(world: World) -> None:
    """A key polls in its namespace; an admin key with execute may name another."""
    headers = {"pointsman-namespace": "other"}
    made = (await world.admin("POST", "/v1/runs", {"workflow": "order", "version": "1"}, headers=headers)).json()["run"]
    both = await world.caller("admin", "execute")

    refused(await (await world.caller("execute"))("POST", "/v1/claims", poll(), headers=headers), 403, "forbidden")
    answer = await both("POST", "/v1/claims", poll(), headers=headers)
    assert ids(answer.json()["claims"]) == [made["id"]]


async def test_a_repeat_answers_the_claims_held(world: World) -> None:
    """A repeated request is answered with what it still holds and takes nothing new (I6)."""
    caller, body = await world.caller("execute"), poll(limit=2)
    for _ in range(2):
        await world.submit()
    before = await claims(caller, body)
    await world.submit()
    again = await claims(caller, body)

    assert [(grant["claimId"], grant["token"], grant["revision"]) for grant in again] == [
        (grant["claimId"], grant["token"], grant["revision"]) for grant in before
    ]
    assert (await world.progress(before[0], {"kind": "complete", "result": 1})).status_code == 200
    assert ids(await claims(caller, body)) == ids(before[1:])


async def test_a_limit_of_zero_claims_nothing(world: World) -> None:
    """It says what is served, for submits that name no version, and is answered at once."""
    await world.submit()
    body = {"workflow": "order"}
    refused(await world.admin("POST", "/v1/runs", body), 422, "version_unknown")

    assert await claims(await world.caller("execute"), poll(limit=0, wait_ms=20_000)) == []
    submitted = await world.admin("POST", "/v1/runs", body)
    assert submitted.json()["run"]["version"] == "1"


async def test_who_may_poll(world: World) -> None:
    """A poll needs an API key with the scope execute; admin alone does not have it."""
    refused(await world.nobody("POST", "/v1/claims", poll()), 401, "unauthorized")
    refused(await world.bearer("pmk_unknown")("POST", "/v1/claims", poll()), 401, "unauthorized")
    token = world.keys.claim_token((await world.submit())["id"], 0)
    refused(await world.bearer(token)("POST", "/v1/claims", poll()), 401, "unauthorized")
    refused(await world.admin("POST", "/v1/claims", poll()), 403, "forbidden")
    refused(await (await world.caller("submit"))("POST", "/v1/claims", poll()), 403, "forbidden")


@pytest.mark.parametrize(
    "change",
    [
        {"limit": 101},
        {"limit": -1},
        {"waitMs": 20_001},
        {"workflows": []},
        {"workflows": [{"name": "order", "versions": []}]},
        {"pools": []},
        {"requestId": ""},
        {"requestId": "r" * 70},
        {"requestId": "a\x00b"},
        {"executor": {}},
        {"declares": [{"name": "order", "version": "1", "schedule": {"cron": "\0"}}]},
        {"declares": [{"name": "order", "version": "1", "schedule": {"cron": "* * * * *", "timezone": "\0"}}]},
        {"refreshIntervalMs": 0},
        {"workflows": [{"name": f"w{n}", "versions": ["1"] * 100} for n in range(51)]},
    ],
)
async def test_malformed_polls(world: World, change: dict[str, Any]) -> None:
    """A field out of its range is refused, and so is a poll for more queues than one statement should ask for."""
    run = await world.submit()
    refused(await (await world.caller("execute"))("POST", "/v1/claims", poll(**change)), 400, "malformed")
    shown = (await world.admin("GET", f"/v1/runs/{run['id']}")).json()["run"]
    assert shown["status"] == "queued"


async def test_unknown_fields_are_skipped(world: World) -> None:
    """SDK and dispatcher are deployed apart: a field of a newer SDK is no mistake."""
    assert await claims(await world.caller("execute"), poll(later="field")) == []


async def test_too_many_polls(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the limit of waiting polls one is told to come back later."""
    monkeypatch.setattr(waiting, "MOST_WAITING", 1)
    caller = await world.caller("execute")
    held = asyncio.create_task(claims(caller, poll(wait_ms=20_000)))
    await waits(world)
    answer = await caller("POST", "/v1/claims", poll())

    refused(answer, 429, "rate_limited")
    assert answer.headers["retry-after"] == "1"
    world.dispatcher.polling.stop()
    assert await held == []


async def test_the_size_of_an_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer stops short of its limit in bytes rather than fail; what it leaves out the next poll gets."""
    monkeypatch.setattr(limits, "POLL_BYTES", 3 * 1024 * 1024 + 20_000)
    made = {(await world.submit(input="x" * 1_000_000))["id"] for _ in range(4)}
    caller = await world.caller("execute")

    first, rest = ids(await claims(caller, poll())), ids(await claims(caller, poll()))

    assert (len(first), len(rest)) == (3, 1)
    assert {*first, *rest} == made


@pytest.mark.parametrize(("name", "size", "fit"), [("GRANT_BYTES", 2_000, [0]), ("POLL_BYTES", 1, [])])
async def test_records_without_room_are_paged(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, size: int, fit: list[int]
) -> None:
    """Records that do not fit into the answer are read by their own call, from where the answer ends."""
    grant = await world.held()
    values = [{"kind": "task", "name": "t", "argsHash": "", "ordinal": n, "phase": "ended"} for n in range(3)]
    records = [{**value, "state": "completed", "attempt": 1, "value": "x" * 1_000} for value in values]
    assert (await world.progress(grant, {"kind": "release", "reason": "handoff"}, records)).status_code == 200
    monkeypatch.setattr(limits, name, size)
    (grant,) = await claims(await world.caller("execute"), poll())

    assert [record["ordinal"] for record in grant["records"]] == fit
    assert grant["recordsAfter"] == len(fit)
    path = f"/v1/runs/{grant['run']['id']}/records?after={grant['recordsAfter']}"
    rest = (await world.bearer(grant["token"])("GET", path)).json()["items"]
    assert [record["ordinal"] for record in grant["records"] + rest] == [0, 1, 2]


async def test_queues(world: World) -> None:
    """A queue shows its counts, the age of its oldest unclaimed run, and who serves it."""
    await world.submit()
    await world.held(workflow="refund")
    await claims(await world.caller("execute"), poll(limit=0))
    order, refund = (await world.admin("GET", "/v1/queues")).json()["items"]

    assert (order["workflow"], order["version"], order["pool"], order["namespace"]) == (
        "order",
        "1",
        "default",
        "default",
    )
    assert (order["pending"], order["published"], order["claimed"]) == (1, 0, 0)
    assert 0 <= order["oldestAgeMs"] < 60_000
    assert 0 <= order["polledAgoMs"] < 60_000
    assert order["publishers"] == []
    assert (refund["workflow"], refund["claimed"], refund["oldestAgeMs"], refund["polledAgoMs"]) == (
        "refund",
        1,
        None,
        None,
    )


async def test_queues_of_a_namespace_by_pages(world: World) -> None:
    """The list is of one namespace, paged; `next` is null on the last page."""
    for number in range(3):
        await world.submit(workflow=f"w{number}:x%")
    await world.admin(
        "POST", "/v1/runs", {"workflow": "order", "version": "1"}, headers={"pointsman-namespace": "default2"}
    )
    first = (await world.admin("GET", "/v1/queues?limit=2")).json()
    second = (await world.admin("GET", f"/v1/queues?limit=2&after={first['next']}")).json()

    assert [item["workflow"] for item in first["items"] + second["items"]] == ["w0:x%", "w1:x%", "w2:x%"]
    assert second["next"] is None


async def test_executors(world: World) -> None:
    """Claims are counted by who holds them, with the age of the refresh longest ago."""
    for _ in range(3):
        await world.submit()
    caller = await world.caller("execute")
    await claims(caller, poll(limit=2))
    await claims(caller, poll(limit=1, executor={"id": "a", "sdk": "python/1"}))
    first, second = (await world.admin("GET", "/v1/executors")).json()["items"]

    assert (first["id"], first["sdk"], first["claims"]) == ("a", "python/1", 1)
    assert (second["id"], second["kind"], second["host"], second["claims"]) == ("poller", "worker", "h", 2)
    assert 0 <= second["oldestRefreshAgeMs"] < 60_000
    elsewhere = await world.admin("GET", "/v1/executors", headers={"pointsman-namespace": "other"})
    assert elsewhere.json() == {"items": [], "next": None}


@pytest.mark.parametrize("path", ["/v1/queues", "/v1/executors"])
async def test_who_may_look(world: World, path: str) -> None:
    """The views need the scope read, and take no parameter they do not know."""
    refused(await world.nobody("GET", path), 401, "unauthorized")
    refused(await (await world.caller("execute"))("GET", path), 403, "forbidden")
    refused(await world.admin("GET", f"{path}?after=x"), 400, "bad_parameter")
    refused(await world.admin("GET", f"{path}?limit=501"), 400, "bad_parameter")
    refused(await world.admin("GET", f"{path}?page=1"), 400, "bad_parameter")


async def test_why_nobody_serves_a_run(world: World) -> None:
    """Without an endpoint or a poll the sentence says so; after a poll it says when somebody last asked."""
    run = await world.submit()
    path = f"/v1/runs/{run['id']}/why"
    before = (await world.admin("GET", path)).json()
    await claims(await world.caller("execute"), poll(limit=0))
    after = (await world.admin("GET", path)).json()

    assert before["sentence"].startswith("Nobody serves order 1:")
    assert before["facts"]["polledAgoMs"] is None
    assert "waits for a poller" in after["sentence"]
    assert after["facts"]["polledAgoMs"] >= 0
