"""Claim, refresh and progress over HTTP: what an executor is answered, on both databases."""

from typing import Any

import pytest

from endpoint_sdk.wire import identity, limits
from tests.contract.api import World, refused

RECORD = {
    "kind": "task",
    "name": "charge",
    "argsHash": "0" * 32,
    "ordinal": 0,
    "phase": "ended",
    "state": "completed",
    "attempt": 1,
    "value": {"cents": 500},
}


async def test_claim_answers_a_grant(world: World) -> None:
    """A claim answers all that execution needs, one revision on."""
    run = await world.submit(input={"id": 1}, tags={"a": "b"})
    grant = (await world.claim(run, "clm_a")).json()

    assert (grant["revision"], grant["claimId"]) == (1, "clm_a")
    assert grant["run"]["input"] == {"id": 1}
    assert grant["records"] == []
    assert grant["idleTimeoutMs"] == 90_000
    assert world.keys.check_write_token(grant["token"], run["id"], 1, "clm_a")
    shown = (await world.admin("GET", f"/v1/runs/{run['id']}")).json()["run"]
    assert shown["claim"]["executor"]["id"] == "test"


async def test_second_claim_is_refused(world: World) -> None:
    """One delivery is claimed once; a repeat of the same claim is granted again (I1, I6)."""
    run = await world.submit()
    first = await world.claim(run, "clm_a")

    assert (await world.claim(run, "clm_a")).json()["token"] == first.json()["token"]
    refused(await world.claim(run, "clm_b"), 409, "already_claimed")


async def test_claim_refusals(world: World) -> None:
    """Every reason a claim is refused for has its code."""
    stale = await world.submit()
    await world.admin("POST", f"/v1/runs/{(await world.claim(stale)).json()['run']['id']}/release")
    refused(await world.claim(stale), 409, "stale_delivery")

    cancelled = await world.submit()
    await world.admin("POST", f"/v1/runs/{cancelled['id']}/cancel")
    refused(await world.claim(cancelled), 409, "cancelled")

    finished = await world.submit()
    grant = (await world.claim(finished)).json()
    await world.progress(grant, {"kind": "complete", "result": 1})
    refused(await world.claim(finished), 409, "run_finished")

    refused(await world.claim({"id": identity.new("run"), "revision": 0}), 404, "run_not_found")


async def test_claim_tokens(world: World) -> None:
    """A claim needs the claim token of this run at this revision; anything else is the one 401."""
    run, other = await world.submit(), await world.submit()
    path = f"/v1/runs/{run['id']}/claim"
    body = {"expectedRevision": 0, "claimId": "c", "executor": {"id": "x"}, "refreshIntervalMs": 1}
    wrong = [
        world.keys.claim_token(other["id"], 0),
        world.keys.claim_token(run["id"], 1),
        world.keys.write_token(run["id"], 0, "c"),
        "pmc_",
        "pmk_x",
    ]

    for token in wrong:
        refused(await world.bearer(token)("POST", path, body), 401, "unauthorized")
    refused(await world.nobody("POST", path, body), 401, "unauthorized")
    refused(await world.admin("POST", path, body), 401, "unauthorized")
    token = world.keys.claim_token(run["id"], 0)
    for missing in body:
        partial = {key: value for key, value in body.items() if key != missing}
        refused(await world.bearer(token)("POST", path, partial), 400, "malformed")
    assert (await world.bearer(token)("POST", path, {**body, "fromTheFuture": 1})).status_code == 200


async def test_progress_records_and_completes(world: World) -> None:
    """Records and the ending are stored together; the next readers see them."""
    grant = await world.held()
    run_id = grant["run"]["id"]
    answer = await world.progress(grant, records=[RECORD])
    assert (answer.status_code, answer.json()["revision"]) == (200, 1)
    answer = await world.progress(grant, {"kind": "complete", "result": [1]})
    assert answer.json()["revision"] == 2

    run = (await world.admin("GET", f"/v1/runs/{run_id}")).json()["run"]
    assert (run["status"], run["result"]) == ("completed", [1])
    records = (await world.admin("GET", f"/v1/runs/{run_id}/records")).json()["items"]
    assert [(item["seq"], item["name"], item["value"]) for item in records] == [(1, "charge", {"cents": 500})]


async def test_late_write_is_fenced(world: World) -> None:
    """A write of a former owner is 409 revision_conflict and names no newer revision (I2)."""
    grant = await world.held()
    await world.admin("POST", f"/v1/runs/{grant['run']['id']}/release")
    error = refused(await world.progress(grant, records=[RECORD]), 409, "revision_conflict")

    assert "2" not in error["message"]
    assert "details" not in error or error["details"] is None


async def test_repeated_ending_is_answered_as_before(world: World) -> None:
    """An ending repeated under its request id is 200 with the same revision (I6)."""
    grant = await world.held()
    ending = {"kind": "complete", "result": 1}
    first = await world.progress(grant, ending, requestId="req_1")
    again = await world.progress(grant, ending, requestId="req_1")

    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()
    refused(await world.progress(grant, ending, requestId="req_2"), 409, "revision_conflict")


async def test_progress_tokens(world: World) -> None:
    """A write needs the write token of this claim."""
    grant = await world.held()
    for token in (world.keys.write_token(grant["run"]["id"], 1, "other"), "pmw_", "pmk_x", grant["token"][:-1]):
        refused(await world.progress({**grant, "token": token}), 401, "unauthorized")
    refused(await world.nobody("POST", f"/v1/runs/{grant['run']['id']}/progress", {}), 401, "unauthorized")


async def test_progress_refusals(world: World) -> None:
    """A record that cannot be stored is refused with its code."""
    grant = await world.held()
    big = {**RECORD, "value": "x" * limits.MAX_PAYLOAD}
    refused(await world.progress(grant, records=[big]), 413, "payload_too_large")
    big_end = {"kind": "complete", "result": "x" * limits.MAX_PAYLOAD}
    refused(await world.progress(grant, big_end), 413, "payload_too_large")
    refused(await world.progress(grant, {"kind": "nope"}), 400, "malformed")
    refused(await world.progress(grant, records=[{**RECORD, "ordinal": -1}]), 400, "malformed")
    await world.progress(grant, records=[RECORD])
    released = await world.admin("POST", f"/v1/runs/{grant['run']['id']}/release")
    next_grant = (await world.claim(released.json()["run"])).json()
    refused(await world.progress(next_grant, records=[RECORD]), 422, "record_conflict")


async def test_refresh(world: World) -> None:
    """Refresh says held or lost per claim; a claim with a wrong token is in neither list (I3)."""
    held, gone, done = await world.held(), await world.held(), await world.held()
    await world.admin("POST", f"/v1/runs/{gone['run']['id']}/release")
    await world.admin("POST", f"/v1/runs/{done['run']['id']}/cancel", {"now": True})
    unknown = identity.new("run")

    def named(run_id: str, grant: dict[str, Any], token: str) -> dict[str, Any]:
        return {"runId": run_id, "expectedRevision": 1, "claimId": grant["claimId"], "token": token}

    claims = [named(grant["run"]["id"], grant, grant["token"]) for grant in (held, gone, done)]
    claims.append(named(unknown, held, world.keys.write_token(unknown, 1, held["claimId"])))
    claims.append(named(held["run"]["id"], held, "pmw_wrong"))
    answer = (await world.nobody("POST", "/v1/claims/refresh", {"claims": claims})).json()

    assert [item["runId"] for item in answer["held"]] == [held["run"]["id"]]
    assert {item["runId"]: item["code"] for item in answer["lost"]} == {
        gone["run"]["id"]: "revision_conflict",
        done["run"]["id"]: "cancelled",
        unknown: "run_not_found",
    }


@pytest.mark.parametrize("body", [{}, {"claims": {}}, {"claims": [1]}, {"claims": [{"runId": "x"}]}])
async def test_malformed_refresh(world: World, body: Any) -> None:
    """A refresh of the wrong form is a 400, which an executor never reads as a loss."""
    refused(await world.nobody("POST", "/v1/claims/refresh", body), 400, "malformed")


async def test_records_page_for_the_claim_holder(world: World) -> None:
    """A claim holder pages its records with the write token; another claim's token is refused."""
    grant = await world.held()
    path = f"/v1/runs/{grant['run']['id']}/records"
    await world.progress(grant, records=[RECORD, {**RECORD, "ordinal": 1}])
    page = (await world.bearer(grant["token"])("GET", f"{path}?after=1")).json()

    assert ([item["ordinal"] for item in page["items"]], page["next"]) == ([1], None)
    refused(await world.bearer(grant["token"])("GET", f"{path}?after=x"), 400, "bad_parameter")
    await world.admin("POST", f"/v1/runs/{grant['run']['id']}/release")
    refused(await world.bearer(grant["token"])("GET", path), 401, "unauthorized")
