"""Schedules over HTTP: every answer and every code, on both databases."""

from typing import Any

import pytest

from dispatcher import schedule_owners
from dispatcher.settings import Settings
from endpoint_sdk.wire import clock
from endpoint_sdk.wire.messages import Schedule, ServedWorkflow
from tests.contract.api import World, refused

HOURLY = {"workflow": "report", "version": "1", "cron": "0 * * * *"}
PATH = "/v1/schedules/hourly"


async def put(world: World, name: str = "hourly", **fields: Any) -> dict[str, Any]:
    """The schedule, as the API shows it."""
    answer = await world.admin("PUT", f"/v1/schedules/{name}", {**HOURLY, **fields})
    assert answer.status_code in {200, 201}, answer.text
    found: dict[str, Any] = answer.json()["schedule"]
    return found


async def described(world: World) -> None:
    """The configuration file describes the schedule nightly."""
    given = {"nightly": {"workflow": "report", "cron": "0 2 * * *", "timezone": "Europe/Berlin"}}
    await schedule_owners.apply_file(world.store, Settings.model_validate({"schedules": given}).schedules)


async def declared(world: World, schedule: Schedule | None) -> None:
    """The code of the workflow digest, polled for at version 1, declares *schedule*."""
    await world.dispatcher.registry.pollers.saw("default", [("digest", "1")])
    await world.dispatcher.registry.declarations.put("default", [ServedWorkflow("digest", "1", schedule=schedule)])
    await world.dispatcher.following.once()


async def test_a_schedule_of_the_api(world: World) -> None:
    """What was put is shown: its rule, its next five occurrences, and that none has started."""
    answer = await world.admin("PUT", PATH, {**HOURLY, "input": {"a": 1}, "tags": {"team": "x"}})
    assert answer.status_code == 201
    shown = answer.json()["schedule"]
    assert (await world.admin("GET", PATH)).json() == {"schedule": shown}
    upcoming = [clock.from_wire(moment) for moment in shown.pop("next")]
    assert [at % 3_600_000 for at in upcoming] == [0] * 5
    assert upcoming == list(range(upcoming[0], upcoming[0] + 5 * 3_600_000, 3_600_000))
    assert shown.pop("createdAt")
    assert shown.pop("updatedAt")
    assert shown == {
        "name": "hourly",
        "namespace": "default",
        "workflow": "report",
        "version": "1",
        "cron": "0 * * * *",
        "timezone": "UTC",
        "everyMs": None,
        "input": {"a": 1},
        "overlap": "skip",
        "catchUp": 1,
        "jitterMs": 0,
        "pool": "default",
        "tags": {"team": "x"},
        "priority": 5,
        "owner": "api",
        "state": "active",
        "problem": None,
        "last": None,
        "skipped": 0,
    }


async def test_put_again_and_delete(world: World) -> None:
    """A second put changes the schedule, a delete ends it, and then there is none."""
    await put(world)
    answer = await world.admin("PUT", PATH, {**HOURLY, "cron": "30 * * * *"})
    assert (answer.status_code, answer.json()["schedule"]["cron"]) == (200, "30 * * * *")
    assert (await world.admin("DELETE", PATH)).json() == {"deleted": True}
    for method, path in (("GET", PATH), ("DELETE", PATH), ("POST", f"{PATH}/pause"), ("POST", f"{PATH}/run-now")):
        refused(await world.admin(method, path), 404, "schedule_not_found")


REFUSED = [
    ({"cron": "99 * * * *"}, 422, "schedule_invalid"),
    ({"cron": "0 0 31 2 *"}, 422, "schedule_invalid"),
    ({"cron": None}, 422, "schedule_invalid"),
    ({"everyMs": 5_000}, 422, "schedule_invalid"),
    ({"timezone": "Europe/Berln"}, 422, "timezone_unknown"),
    ({"everyMs": 999}, 400, "malformed"),
    ({"catchUp": 101}, 400, "malformed"),
    ({"overlap": "queue"}, 400, "malformed"),
    ({"time_zone": "UTC"}, 400, "unknown_field"),
    ({"tags": {str(number): "" for number in range(21)}}, 422, "tags_too_many"),
    ({"workflow": "\N{GRINNING FACE}" * 200, "pool": "\N{GRINNING FACE}" * 200}, 422, "queue_too_long"),
]


@pytest.mark.parametrize(("fields", "status", "code"), REFUSED)
async def test_refused_schedules(world: World, fields: dict[str, Any], status: int, code: str) -> None:
    """What could never start anything is refused, and nothing of it is stored."""
    error = refused(await world.admin("PUT", PATH, {**HOURLY, **fields}), status, code)
    assert code != "timezone_unknown" or error["hint"] == "Did you mean 'Europe/Berlin'?"
    assert (await world.admin("GET", "/v1/schedules")).json() == {"items": [], "next": None}


async def test_pages(world: World) -> None:
    """Schedules are listed by name, a page at a time, those of the caller's namespace only."""
    for name in ("c", "a", "b"):
        await put(world, name)
    stranger = await world.caller("read", namespace="elsewhere")
    first = (await world.admin("GET", "/v1/schedules?limit=2")).json()
    rest = (await world.admin("GET", f"/v1/schedules?limit=2&after={first['next']}")).json()
    assert [item["name"] for item in first["items"] + rest["items"]] == ["a", "b", "c"]
    assert rest["next"] is None
    assert (await stranger("GET", "/v1/schedules")).json()["items"] == []
    refused(await stranger("GET", "/v1/schedules/a"), 404, "schedule_not_found")


async def test_scopes(world: World) -> None:
    """Readers look, operators act."""
    await put(world)
    reader = await world.caller("submit")
    assert (await reader("GET", PATH)).status_code == 200
    for verb in ("run-now", "pause", "resume", "backfill"):
        refused(await reader("POST", f"{PATH}/{verb}", {}), 403, "forbidden")
    refused(await reader("PUT", PATH, HOURLY), 403, "forbidden")
    refused(await reader("DELETE", PATH), 403, "forbidden")


async def test_pause_and_resume(world: World) -> None:
    """A paused schedule has nothing to come; resumed it goes on from now; each may be said twice."""
    await put(world)
    for verb, state, upcoming in (("pause", "paused", 0), ("resume", "active", 5)):
        for _ in range(2):
            shown = (await world.admin("POST", f"{PATH}/{verb}")).json()["schedule"]
            assert (shown["state"], len(shown["next"])) == (state, upcoming)


async def test_run_now(world: World) -> None:
    """A run starts beside the occurrences; its request id makes a repeat harmless, and without one it is another."""
    await put(world, input={"a": 1})
    first = await world.admin("POST", f"{PATH}/run-now", {"requestId": "r1"})
    again = await world.admin("POST", f"{PATH}/run-now", {"requestId": "r1"})
    assert (first.status_code, again.status_code) == (201, 200)
    run = first.json()["run"]
    assert (run["schedule"], run["scheduledFor"], run["input"], run["status"]) == ("hourly", None, {"a": 1}, "queued")
    assert again.json() == first.json()
    other = (await world.admin("POST", f"{PATH}/run-now")).json()["run"]
    assert other["id"] != run["id"]


async def test_run_now_of_a_workflow_nobody_served(world: World) -> None:
    """Without a version there is nothing to start."""
    await put(world, version=None)
    refused(await world.admin("POST", f"{PATH}/run-now"), 422, "version_unknown")


async def test_backfill(world: World) -> None:
    """Each occurrence of the range has one run, however often it is asked for, also when the input has changed."""
    await put(world)
    body = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-01T03:00:00+00:00"}
    first = (await world.admin("POST", f"{PATH}/backfill", body)).json()["runs"]
    assert [(item["scheduledFor"], item["created"]) for item in first] == [
        (f"2026-03-01T0{hour}:00:00.000Z", True) for hour in range(3)
    ]
    await put(world, input={"new": True})
    body["to"] = "2026-03-01T04:00:00Z"
    second = (await world.admin("POST", f"{PATH}/backfill", body)).json()["runs"]
    assert [item["created"] for item in second] == [False, False, False, True]
    assert [item["runId"] for item in second[:3]] == [item["runId"] for item in first]
    run = (await world.admin("GET", f"/v1/runs/{first[0]['runId']}")).json()["run"]
    assert (run["scheduledFor"], run["status"], run["schedule"]) == ("2026-03-01T00:00:00.000Z", "queued", "hourly")
    assert run["dueAt"] == run["createdAt"], "what is long past takes its turn now"


async def test_backfill_leaves_the_future(world: World) -> None:
    """What is still to come is left to the schedule."""
    await put(world, cron="0 0 1 1 *")
    body = {"from": "2026-01-01T00:00:00Z", "to": "2100-01-01T00:00:00Z"}
    runs = (await world.admin("POST", f"{PATH}/backfill", body)).json()["runs"]
    assert runs[0]["scheduledFor"] == "2026-01-01T00:00:00.000Z"
    assert all(clock.from_wire(item["scheduledFor"]) <= world.store.transact_blocking(_now) for item in runs)


async def test_backfill_begins_with_1970(world: World) -> None:
    """Moments before are those of no run: what the answer calls an occurrence is the one it started."""
    await put(world, cron="0 0 1 1 *", timezone="Europe/Amsterdam")
    body = {"from": "0001-01-01T00:00:00Z", "to": "1972-01-01T00:00:00Z"}
    runs = (await world.admin("POST", f"{PATH}/backfill", body)).json()["runs"]
    assert [item["scheduledFor"] for item in runs] == ["1970-12-31T23:00:00.000Z", "1971-12-31T23:00:00.000Z"]
    run = (await world.admin("GET", f"/v1/runs/{runs[0]['runId']}")).json()["run"]
    assert run["idempotencyKey"] == f"schedule:hourly:{clock.from_wire(runs[0]['scheduledFor'])}"


def _now(session: Any) -> int:
    return int(session.now())


@pytest.mark.parametrize(
    ("begin", "end", "status", "code"),
    [
        ("2026-03-01", "2026-03-02T00:00:00Z", 400, "malformed"),
        ("yesterday", "2026-03-02T00:00:00Z", 400, "malformed"),
        ("2026-03-02T00:00:00Z", "2026-03-02T00:00:00Z", 400, "malformed"),
        ("2026-03-01T00:00:00Z", "2026-03-31T00:00:00Z", 422, "backfill_too_long"),
    ],
)
async def test_refused_backfills(world: World, begin: str, end: str, status: int, code: str) -> None:
    """A range that is none, or of more than five hundred occurrences, starts nothing."""
    await put(world)
    refused(await world.admin("POST", f"{PATH}/backfill", {"from": begin, "to": end}), status, code)
    assert (await world.admin("GET", "/v1/runs")).json()["items"] == []


async def test_the_file_owns_its_schedules(world: World) -> None:
    """What the file describes is paused and resumed here, but changed there."""
    await described(world)
    body = {"workflow": "report", "everyMs": 5_000}
    refused(await world.admin("PUT", "/v1/schedules/nightly", body), 409, "schedule_owned_by_yaml")
    refused(await world.admin("DELETE", "/v1/schedules/nightly"), 409, "schedule_owned_by_yaml")
    paused = (await world.admin("POST", "/v1/schedules/nightly/pause")).json()["schedule"]
    assert (paused["owner"], paused["state"]) == ("yaml", "paused")
    await described(world)
    assert (await world.admin("GET", "/v1/schedules/nightly")).json()["schedule"]["state"] == "paused"


async def test_the_code_owns_its_schedules(world: World) -> None:
    """What the code declares is changed there; once it declares nothing the schedule is inactive and may be deleted."""
    await declared(world, Schedule(every_ms=60_000))
    path = "/v1/schedules/digest"
    refused(await world.admin("PUT", path, HOURLY), 409, "schedule_owned_by_code")
    refused(await world.admin("DELETE", path), 409, "schedule_owned_by_code")
    assert (await world.admin("POST", f"{path}/run-now")).json()["run"]["version"] == "1"
    await declared(world, None)
    shown = (await world.admin("GET", path)).json()["schedule"]
    assert (shown["state"], shown["next"]) == ("inactive", [])
    assert shown["problem"] == "Version 1 of the workflow, the latest, declares no schedule."
    assert (await world.admin("DELETE", path)).status_code == 200


async def test_the_last_run_is_shown(world: World) -> None:
    """A schedule shows the run it started last and how that is."""
    await put(world, cron=None, everyMs=1_000)
    firing = world.dispatcher.schedules
    while not (await firing.once())["started"]:
        await world.admin("GET", PATH)
    last = (await world.admin("GET", PATH)).json()["schedule"]["last"]
    run = (await world.admin("GET", f"/v1/runs/{last['runId']}")).json()["run"]
    assert (last["status"], last["scheduledFor"]) == ("queued", run["scheduledFor"])
