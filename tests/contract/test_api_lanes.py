"""Keyed concurrency, tags and priorities over HTTP: what a caller sees of runs that wait for a place."""

from typing import Any

import pytest

from dispatcher import lane_keys
from dispatcher.store import Session, entries, runs
from endpoint_sdk.wire import identity
from endpoint_sdk.wire.messages import Concurrency, ServedWorkflow
from tests.contract.api import World


async def declared(world: World, limit: int | None, key: str | None = "customer") -> None:
    """The workflow `order` is declared to run so many at once of those alike in tag *key*."""
    concurrency = None if limit is None else Concurrency(limit, key)
    await world.dispatcher.registry.declarations.put("default", [ServedWorkflow("order", "1", concurrency=concurrency)])


async def placed(world: World) -> int:
    """How many runs have got places in a tick."""
    return (await world.dispatcher.lanes.once())["opened"]


async def why(world: World, run: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await world.admin("GET", f"/v1/runs/{run['id']}/why")).json()
    return found


async def test_held_runs_are_shown(world: World) -> None:
    """A run that waits for a place says whom it waits for, and the queue counts it apart from what can be delivered."""
    await declared(world, 2)
    made = [await world.submit(tags={"customer": "acme"}) for _ in range(4)]
    assert await placed(world) == 2
    held = [run for run in made if "place" in (await why(world, run))["sentence"]]
    assert len(held) == 2
    found = [await why(world, run) for run in held]
    assert sorted(item["sentence"] for item in found) == [
        "The run waits for a place: 2 of 2 runs of customer=acme are under way.",
        "The run waits for a place: 2 of 2 runs of customer=acme are under way; 1 comes before it.",
    ]
    assert {item["next"] for item in found} == {"pointsman run list --workflow order --tag customer=acme"}
    assert {(item["facts"]["taken"], item["facts"]["limit"]) for item in found} == {(2, 2)}
    [queue] = (await world.admin("GET", "/v1/queues")).json()["items"]
    assert (queue["pending"], queue["published"], queue["claimed"], queue["held"]) == (2, 0, 0, 2)
    assert (await world.claim(held[0])).json()["error"]["code"] == "not_claimable"


async def test_a_run_whose_place_is_free(world: World) -> None:
    """Before the next tick, or when the bound is gone, it is said that the run gets its place in a moment."""
    await declared(world, 2)
    run = await world.submit(tags={"customer": "acme"})
    expected = "The run waits for a place and gets one in a moment."
    assert (await why(world, run))["sentence"] == expected
    await declared(world, None)
    assert (await why(world, run))["sentence"] == expected


@pytest.mark.parametrize(
    ("key", "tags", "words", "following"),
    [
        (None, {}, "1 of 1 runs of order", "pointsman run list --workflow order"),
        ("customer", {}, "1 of 1 runs of order alike in their tag", "pointsman run list --workflow order"),
        (
            "customer",
            {"customer": "a b"},
            "of customer=a b",
            "pointsman run list --workflow order --tag 'customer=a b'",
        ),
    ],
)
async def test_why_names_those_in_the_lane(
    world: World, key: str | None, tags: dict[str, str], words: str, following: str
) -> None:
    """Who shares the lane is named as the caller knows them, and the command lists them."""
    await declared(world, 1, key)
    first, second = await world.submit(tags=tags), await world.submit(tags=tags)
    await placed(world)
    [found] = [
        answer
        for answer in [await why(world, first), await why(world, second)]
        if "waits for a place" in answer["sentence"]
    ]
    assert words in found["sentence"]
    assert found["next"] == following


async def test_why_a_child_waits(world: World) -> None:
    """A child bounded by the `limit` of its parent's call waits for its siblings."""
    run = await world.submit()
    parent = identity.new("run")
    lane = lane_keys.lane_of_call(parent, "children:ab:0:resize", 1)

    def operation(session: Session) -> None:
        found = entries.lock(session, run["id"])
        assert found is not None
        entries.delete(session, run["id"])
        entries.insert(session, entries.New(run["id"], 0, found.queue, found.rank, 0, 1, lane.key))

    await world.store.transact(operation)
    found = await why(world, run)
    assert found["next"] == f"pointsman run show {parent}"


async def test_batches_have_lanes(world: World) -> None:
    """Each run of a batch is in the lane its workflow declares, whether its version was named or found."""
    await declared(world, 1, None)
    await world.dispatcher.registry.pollers.saw("default", [("order", "1")])
    body = {"runs": [{"workflow": "order", "version": "1"}, {"workflow": "order"}, {"workflow": "x", "version": "1"}]}
    results = (await world.admin("POST", "/v1/runs/batch", body)).json()["results"]
    ids = [result["run"]["id"] for result in results]

    def lanes(session: Session) -> list[str | None]:
        found = [runs.get(session, run_id) for run_id in ids]
        return [run.lane for run in found if run is not None]

    assert await world.store.transact(lanes) == ["default:order:", "default:order:", None]
    assert await placed(world) == 1


async def test_tags_filter_to_the_letter(world: World) -> None:
    """Every tag asked for has to be there with exactly that value, whatever characters it is made of."""
    odd = {"a": 'x","b":"1', "quote": '"', "%_": "\\", "ü": "é"}
    run = await world.submit(tags=odd)
    await world.submit(tags={"a": "x", "b": "1"})

    async def found(**tags: str) -> list[str]:
        answer = await world.admin("GET", "/v1/runs", params={f"tag.{name}": value for name, value in tags.items()})
        return [item["id"] for item in answer.json()["items"]]

    for name, value in odd.items():
        assert await found(**{name: value}) == [run["id"]]
    assert await found(**odd) == [run["id"]]
    for name, value in {"b": "2", "%": "\\", "quote": "", "a": "x\\"}.items():
        assert await found(**{name: value}) == []
