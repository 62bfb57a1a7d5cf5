"""Submitting, reading and operating over HTTP: every answer and every code, on both databases."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from endpoint_sdk.wire import identity, limits
from tests.contract.api import World, refused

UNKNOWN = identity.new("run")


async def test_submit_answers_the_run(world: World) -> None:
    """A submit answers 201 with the whole run, born queued at revision 0."""
    body = {"workflow": "order", "version": "1", "input": {"id": "ö", "n": 1.5}, "tags": {"a": "b"}, "priority": 9}
    answer = await world.admin("POST", "/v1/runs", body)
    run = answer.json()["run"]

    assert answer.status_code == 201
    assert answer.json()["created"] is True
    assert answer.headers["content-type"] == "application/json"
    assert identity.is_id("req", answer.headers["pointsman-request-id"])
    assert (run["status"], run["revision"], run["attempt"]) == ("queued", 0, 1)
    assert run["input"] == {"id": "ö", "n": 1.5}
    assert (run["tags"], run["priority"], run["pool"], run["claim"], run["result"]) == (
        {"a": "b"},
        9,
        "default",
        None,
        None,
    )
    assert (await world.admin("GET", f"/v1/runs/{run['id']}")).json() == {"run": run}


async def test_submit_without_version(world: World) -> None:
    """Without a version and without a discovered one the submit is refused."""
    refused(await world.admin("POST", "/v1/runs", {"workflow": "order"}), 422, "version_unknown")


async def test_idempotency_key(world: World) -> None:
    """The same key and input find the first run; another input is a conflict that names it."""
    body = {"workflow": "order", "version": "1", "idempotencyKey": "k", "input": {"a": 1, "b": 2}}
    first = (await world.admin("POST", "/v1/runs", body)).json()
    again = await world.admin("POST", "/v1/runs", {**body, "input": {"b": 2, "a": 1}})

    assert again.status_code == 200
    assert again.json() == {"run": first["run"], "created": False}
    error = refused(await world.admin("POST", "/v1/runs", {**body, "input": 2}), 409, "idempotency_conflict")
    assert error["details"] == {"runId": first["run"]["id"]}


async def test_request_id(world: World) -> None:
    """A repeated request id is answered as before: 200, created, the same run."""
    body = {"workflow": "order", "version": "1", "requestId": "r1"}
    first = await world.admin("POST", "/v1/runs", body)
    again = await world.admin("POST", "/v1/runs", body)

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()


MALFORMED = [
    (b"", "malformed", "empty"),
    (b"{", "malformed", "JSON"),
    (b"\xff", "malformed", "UTF-8"),
    (b'{"workflow": "\xff"}', "malformed", "UTF-8"),
    (b'{"workflow": "a", "input": "\xff"}', "malformed", "UTF-8"),
    (b'{"workflow": "a\\ud800"}', "malformed", "JSON"),
    (b'{"workflow": "a", "input": "\\udc00"}', "malformed", "JSON"),
    (b'{"workflow": "a", "input": NaN}', "malformed", "JSON"),
    (b'{"workflow": "a", "version": "1", "input": 1e999}', "malformed", "$.input"),
    (b'{"workflow": "a", "input": ' + b"[" * 300 + b"]" * 300 + b"}", "malformed", "200 levels"),
    (b'{"workflow": "a", "input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "malformed", "200 levels"),
    (b'{"workflow": "a", "input": ' + b'{"a":' * 100_000, "malformed", ""),
    (b"[]", "malformed", "$"),
    (b"null", "malformed", "$"),
    (b"{}", "malformed", "workflow"),
    (b'{"workflow": 5}', "malformed", "$.workflow"),
    (b'{"workflow": ""}', "malformed", "$.workflow"),
    (b'{"workflow": "a\\u0000b"}', "malformed", "$.workflow"),
    (b'{"workflow": "a\\nb"}', "malformed", "$.workflow"),
    (b'{"workflow": "a", "priority": 10}', "malformed", "$.priority"),
    (b'{"workflow": "a", "priority": true}', "malformed", "$.priority"),
    (b'{"workflow": "a", "priority": 1.5}', "malformed", "$.priority"),
    (b'{"workflow": "a", "tags": {"a": 1}}', "malformed", "$.tags"),
    (b'{"workflow": "a", "tags": {"a": "\\u0000"}}', "malformed", "$.tags"),
    (b'{"workflow": "a", "delayMs": -1}', "malformed", "$.delayMs"),
    (b'{"workflow": "a", "idempotency_key": "k"}', "unknown_field", "idempotency_key"),
]


@pytest.mark.parametrize(("body", "code", "told"), MALFORMED, ids=[str(body[:40]) for body, _, _ in MALFORMED])
async def test_malformed_bodies(world: World, body: bytes, code: str, told: str) -> None:
    """A body of the wrong form is a 400 that names the place, and nothing is stored."""
    error = refused(await world.admin("POST", "/v1/runs", content=body), 400, code)

    assert told in error["message"]
    assert (await world.admin("GET", "/v1/runs")).json()["items"] == []


async def test_content_type_is_not_asked_for(world: World) -> None:
    """JSON is JSON whatever the content type says."""
    answer = await world.admin(
        "POST", "/v1/runs", content=b'{"workflow":"a","version":"1"}', headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 201


async def test_sizes(world: World) -> None:
    """An input over 1 MiB, or tags over twenty are refused with their own codes."""
    big = {"workflow": "a", "version": "1", "input": "x" * limits.MAX_PAYLOAD}
    assert "input" in refused(await world.admin("POST", "/v1/runs", big), 413, "payload_too_large")["message"]
    fits = {**big, "input": "x" * (limits.MAX_PAYLOAD - 2)}
    assert (await world.admin("POST", "/v1/runs", fits)).status_code == 201
    many = {"workflow": "a", "version": "1", "tags": {str(n): "" for n in range(21)}}
    refused(await world.admin("POST", "/v1/runs", many), 422, "tags_too_many")


async def test_body_too_large_by_its_length(world: World) -> None:
    """A declared length over the limit is refused before a byte of the body is read."""
    read: list[bool] = []

    async def body() -> AsyncIterator[bytes]:
        read.append(True)
        yield b""

    answer = await world.admin("POST", "/v1/runs", content=body(), headers={"content-length": str(limits.MAX_BODY + 1)})

    refused(answer, 413, "body_too_large")
    assert answer.headers["connection"] == "close"
    assert read == []


async def test_body_too_large_while_it_streams(world: World) -> None:
    """A body without a length is refused as soon as it passes the limit."""
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b" " * (1024 * 1024)

    refused(await world.admin("POST", "/v1/runs", content=body()), 413, "body_too_large")
    assert sent <= limits.MAX_BODY // (1024 * 1024) + 2


async def test_batch(world: World) -> None:
    """Each run of a batch is stored or refused on its own, in order."""
    runs = [
        {"workflow": "a", "version": "1"},
        {"workflow": "a"},
        {"workflow": 5},
        {"workflow": "a", "version": "1", "x": 1},
        {"workflow": "b", "version": "1", "input": [1]},
    ]
    answer = await world.admin("POST", "/v1/runs/batch", {"runs": runs})
    results = answer.json()["results"]

    assert answer.status_code == 200
    assert [item["error"]["code"] if "error" in item else item["created"] for item in results] == [
        True,
        "version_unknown",
        "malformed",
        "unknown_field",
        True,
    ]
    assert results[4]["run"]["workflow"] == "b"
    refused(await world.admin("POST", "/v1/runs/batch", {"runs": []}), 400, "malformed")
    refused(await world.admin("POST", "/v1/runs/batch", {"runs": [runs[0]] * 501}), 400, "malformed")


async def test_list_filters_and_pages(world: World) -> None:
    """Runs are listed newest first, page by page, by every filter."""
    made = [
        await world.submit(workflow="a" if n % 2 else "b", tags={"n": str(n)}, idempotencyKey=f"k{n}") for n in range(5)
    ]
    ids = sorted((run["id"] for run in made), reverse=True)

    async def found(query: str) -> list[str]:
        answer = await world.admin("GET", f"/v1/runs?{query}")
        assert answer.status_code == 200, answer.text
        return [item["id"] for item in answer.json()["items"]]

    assert await found("") == ids
    page = (await world.admin("GET", "/v1/runs?limit=2")).json()
    assert [item["id"] for item in page["items"]] == ids[:2]
    assert await found(f"limit=2&after={page['next']}") == ids[2:4]
    assert (await world.admin("GET", "/v1/runs?limit=5")).json()["next"] is None
    assert await found("tag.n=3") == [made[3]["id"]]
    assert await found("idempotencyKey=k1&workflow=a") == [made[1]["id"]]
    assert len(await found("workflow=a")) == 2
    assert await found("version=2") == []
    assert await found("status=running") == []
    assert await found("stuckForMs=3600000") == []


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=501",
        "limit=x",
        "limit=1.0",
        "limit=%D9%A1",
        "limit=" + "9" * 5000,
        "limit=1&limit=2",
        "status=done",
        "after=zzz",
        "stuckForMs=-1",
        "nope=1",
        "tag.=1",
        "workflow=%ff",
        "workflow=%00",
        "&".join(f"tag.{n}=1" for n in range(21)),
    ],
)
async def test_bad_queries(world: World, query: str) -> None:
    """A query parameter that is unknown, repeated or of the wrong form is a 400."""
    refused(await world.admin("GET", f"/v1/runs?{query}"), 400, "bad_parameter")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/transitions"),
        ("GET", "/records"),
        ("GET", "/result"),
        ("GET", "/why"),
        ("POST", "/cancel"),
        ("POST", "/release"),
        ("POST", "/requeue"),
    ],
)
async def test_unknown_and_foreign_runs(world: World, method: str, path: str) -> None:
    """A run that does not exist, or lives in another namespace, is not found; a malformed id is a bad parameter."""
    run = await world.submit()
    stranger = await world.caller("operate", namespace="other")

    refused(await world.admin(method, f"/v1/runs/{UNKNOWN}{path}"), 404, "run_not_found")
    refused(await stranger(method, f"/v1/runs/{run['id']}{path}"), 404, "run_not_found")
    for malformed in ("run_x", "%00", "%ff", "x" * 300, UNKNOWN.lower()):
        refused(await world.admin(method, f"/v1/runs/{malformed}{path}"), 400, "bad_parameter")


async def test_transitions_page(world: World) -> None:
    """The history starts with the birth and pages by revision."""
    grant = await world.held()
    path = f"/v1/runs/{grant['run']['id']}/transitions"
    page = (await world.admin("GET", f"{path}?limit=1")).json()

    assert [(item["revision"], item["from"], item["to"]) for item in page["items"]] == [(0, None, "queued")]
    rest = (await world.admin("GET", f"{path}?after={page['next']}")).json()
    assert [(item["revision"], item["from"], item["to"]) for item in rest["items"]] == [(1, "queued", "running")]
    assert rest["next"] is None
    refused(await world.admin("GET", f"{path}?after=-2"), 400, "bad_parameter")


async def test_result_waits_for_the_end(world: World) -> None:
    """A waiting request is answered as soon as the run ends, with its result."""
    grant = await world.held()
    path = f"/v1/runs/{grant['run']['id']}/result"
    early = await world.admin("GET", path)
    assert (early.status_code, early.json()["status"]) == (202, "running")

    waiting = asyncio.create_task(world.admin("GET", f"{path}?waitMs=20000"))
    assert (await world.progress(grant, {"kind": "complete", "result": {"total": 5}})).status_code == 200
    async with asyncio.timeout(5):
        answer = await waiting

    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["result"]) == ("completed", {"total": 5})


async def test_result_of_a_failure(world: World) -> None:
    """A failed run's result is its error object."""
    grant = await world.held()
    error = {"type": "CardDeclined", "message": "no", "retryable": False}
    await world.progress(grant, {"kind": "fail", "error": error})
    answer = await world.admin("GET", f"/v1/runs/{grant['run']['id']}/result")

    assert (answer.status_code, answer.json()["status"]) == (200, "failed")
    assert answer.json()["error"]["type"] == "CardDeclined"


@pytest.mark.parametrize("wait", ["20001", "-1", "x", ""])
async def test_result_wait_is_bounded(world: World, wait: str) -> None:
    """waitMs is 0 to 20 000."""
    run = await world.submit()
    refused(await world.admin("GET", f"/v1/runs/{run['id']}/result?waitMs={wait}"), 400, "bad_parameter")


async def test_why(world: World) -> None:
    """Why is a sentence, facts and a next command."""
    run = await world.submit()
    found = (await world.admin("GET", f"/v1/runs/{run['id']}/why")).json()

    assert found["sentence"]
    assert set(found) == {"sentence", "facts", "next"}


async def test_cancel(world: World) -> None:
    """A queued run is cancelled at once; again is 200; a finished one is a conflict."""
    run = await world.submit()
    first = await world.admin("POST", f"/v1/runs/{run['id']}/cancel")
    again = await world.admin("POST", f"/v1/runs/{run['id']}/cancel", {"reason": "x"})
    assert first.json()["run"]["status"] == "cancelled"
    assert (again.status_code, again.json()) == (200, first.json())

    grant = await world.held()
    await world.progress(grant, {"kind": "complete", "result": None})
    refused(await world.admin("POST", f"/v1/runs/{grant['run']['id']}/cancel"), 409, "run_finished")


async def test_cancel_now_fences(world: World) -> None:
    """Cancel-now ends a running run and its executor learns it."""
    grant = await world.held()
    answer = await world.admin("POST", f"/v1/runs/{grant['run']['id']}/cancel", {"now": True})

    assert answer.json()["run"]["status"] == "cancelled"
    refused(await world.progress(grant, {"kind": "complete", "result": 1}), 409, "cancelled")


async def test_release_and_requeue(world: World) -> None:
    """Release puts a running run back; what the status does not allow is refused naming both."""
    grant = await world.held()
    run_id = grant["run"]["id"]
    released = await world.admin("POST", f"/v1/runs/{run_id}/release", {"reason": "stuck"})

    assert (released.json()["run"]["status"], released.json()["run"]["revision"]) == ("queued", 2)
    for verb in ("release", "requeue"):
        error = refused(await world.admin("POST", f"/v1/runs/{run_id}/{verb}"), 409, "illegal_transition")
        assert "queued" in error["message"]
        assert verb in error["message"]
    refused(await world.admin("POST", f"/v1/runs/{run_id}/release", {"why": 1}), 400, "unknown_field")


async def test_unknown_paths_and_methods(world: World) -> None:
    """Nothing there is 404; another method is 405 and Allow says which; HEAD is a GET without a body."""
    for path in ("/", "/v1", "/v1/", "/v1/runs/", "/v2/runs", "/v1/nope", f"/v1/runs/{UNKNOWN}/nope"):
        refused(await world.admin("GET", path), 404, "route_not_found")
    answer = await world.admin("PUT", "/v1/runs")
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD, POST"
    head = await world.admin("HEAD", "/v1/runs")
    assert (head.status_code, head.content) == (200, b"")
