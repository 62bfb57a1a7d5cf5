"""Operating on many runs at once: which, at what pace, and each of them once."""

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from dispatcher import bulk
from dispatcher.bulk import ApplyActions
from dispatcher.store import Session, Statement, schema
from dispatcher.store import bulk as bulk_store
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.actions import ActionStarted, ActionView, BulkAction, WhichRuns
from endpoint_sdk.wire.messages import Stall
from tests.integration.sessions import Pair
from tests.integration.world import HOUR_MS, NAMESPACE, World, refused, task


async def _start(world: World, action: Any, dry_run: bool = False, **fields: Any) -> ActionStarted:
    options = {name: fields.pop(name) for name in ("reason_given", "now", "to_version", "discard") if name in fields}
    request = BulkAction(
        action,
        WhichRuns(**fields),
        reason=options.get("reason_given", ""),
        now=options.get("now", False),
        version=options.get("to_version"),
        discard_unconsumed=options.get("discard", False),
        dry_run=dry_run,
    )
    return await bulk.start(world.store, NAMESPACE, request, "operator")


async def _finish(world: World, started: ActionStarted, ticks: int = 50) -> ActionView:
    """The action once it is finished, the clock going on between the ticks."""
    assert started.id is not None
    daemon = ApplyActions(world.store, world.settings)
    for _ in range(ticks):
        await daemon.once()
        found = await bulk.get(world.store, NAMESPACE, started.id)
        if found.finished_at is not None:
            return found
        world.elapse(1_000)
    raise AssertionError(f"not finished after {ticks} ticks: {found}")


async def _stalled(world: World, reason: str = "divergence", **fields: Any) -> str:
    claim = await world.claim(await world.submit(**fields))
    await world.write(claim, task(), ending=Stall("divergence", {"recorded": [{"seq": 1}]}))
    world.set_run(claim.run_id, reason=reason)
    return claim.run_id


async def test_a_dry_run_tells_how_many(world: World) -> None:
    """Nothing is stored and nothing happens, but the count is the one the action would have."""
    ids = [await world.submit() for _ in range(3)]
    assert await _start(world, "cancel", workflow="order", dry_run=True) == ActionStarted(None, 3, started=False)
    assert await ApplyActions(world.store, world.settings).once() == {"applied": 0, "refused": 0, "more": 0}
    assert {world.status(run_id)[0] for run_id in ids} == {"queued"}
    assert await _start(world, "cancel", workflow="none") == ActionStarted(None, 0, started=False)


async def test_every_condition_of_a_filter_has_to_hold(world: World) -> None:
    """Status, reason, workflow, version, key, tags, age and ids each leave out what they do not fit."""
    wanted = await _stalled(world, "crash_loop", workflow="bill", version="2", idempotency_key="k", tags={"a": "b"})
    await _stalled(world)
    await world.submit("bill", version="2")
    fitting: dict[str, Any] = {
        "status": "stalled",
        "reason": "crash_loop",
        "workflow": "bill",
        "version": "2",
        "idempotency_key": "k",
        "tags": {"a": "b"},
        "ids": [wanted],
    }
    for name, value in fitting.items():
        started = await _start(world, "requeue", dry_run=True, **{name: value})
        assert started.matched == (2 if name == "status" else 1), name
    assert (await _start(world, "requeue", dry_run=True, **fitting)).matched == 1
    assert (await _start(world, "requeue", dry_run=True, ids=[wanted], reason="other")).matched == 0
    assert (await _start(world, "requeue", dry_run=True, stuck_for_ms=HOUR_MS, status="stalled")).matched == 0
    world.elapse(2 * HOUR_MS)
    assert (await _start(world, "requeue", dry_run=True, stuck_for_ms=HOUR_MS, status="stalled")).matched == 2


async def test_an_action_is_for_runs_it_applies_to(world: World) -> None:
    """By their status: a requeue for stalled ones, a wake for those that wait, a release for those claimed."""
    await _stalled(world)
    await world.submit()
    await world.submit(delay_ms=HOUR_MS)
    held = await world.claim(await world.submit())
    await world.park(await world.claim(await world.submit()), world.event())
    await world.cancel(await world.submit())
    matched = {
        action: (await _start(world, action, workflow="order", dry_run=True)).matched
        for action in ("cancel", "pause", "resume", "requeue", "wake", "release")
    }
    assert matched == {"cancel": 5, "pause": 4, "resume": 0, "requeue": 1, "wake": 2, "release": 1}
    assert (await _finish(world, await _start(world, "pause", workflow="order"))).applied == 4
    assert (await _start(world, "resume", workflow="order", dry_run=True)).matched == 4
    assert (await _finish(world, await _start(world, "resume", workflow="order"))).applied == 4
    assert world.run(held.run_id).stop is None


async def test_stalled_runs_are_requeued_by_reason(world: World) -> None:
    """Those of the reason are queued on the version given and without what their stalls list, the others stay."""
    ids = [await _stalled(world) for _ in range(3)]
    other = await _stalled(world, "crash_loop")
    done = await _finish(
        world, await _start(world, "requeue", reason="divergence", to_version="2", discard=True), ticks=5
    )
    assert (done.matched, done.applied, done.refused) == (3, 3, 0)
    for run_id in ids:
        assert (world.status(run_id)[0], world.run(run_id).version, world.records(run_id)) == ("queued", "2", [])
        assert world.history(run_id)[-1].actor == "operator"
    assert world.status(other)[0] == "stalled"


async def test_cancel_carries_its_reason(world: World) -> None:
    """A bulk cancel asks or ends as a single one does, with its reason, at once if told so."""
    held, idle = await world.claim(await world.submit()), await world.submit()
    await _finish(world, await _start(world, "cancel", workflow="order", reason_given="sale over"))
    assert (world.run(held.run_id).stop, world.run(held.run_id).cancel_reason) == ("cancel", "sale over")
    assert (world.status(idle)[0], world.run(idle).reason) == ("cancelled", "sale over")
    await _finish(world, await _start(world, "cancel", workflow="order", now=True))
    assert world.status(held.run_id)[0] == "cancelled"


async def test_what_a_run_refuses_is_counted(world: World) -> None:
    """A run that has nothing to discard is refused and left alone; the action goes on with the next."""
    first, empty = await _stalled(world), await _stalled(world)
    claim = await world.claim(await world.submit())
    await world.write(claim, ending=Stall("divergence"))
    last = await _stalled(world)
    world.check()
    done = await _finish(world, await _start(world, "requeue", status="stalled", discard=True))
    assert (done.matched, done.applied, done.refused) == (4, 3, 1)
    assert [world.status(run_id)[0] for run_id in (first, empty, claim.run_id, last)] == [
        "queued",
        "queued",
        "stalled",
        "queued",
    ]


async def test_runs_born_later_are_left_out(world: World) -> None:
    """The action is for the runs there were when it was started."""
    await world.submit()
    started = await _start(world, "cancel", workflow="order")
    world.elapse(1_000)
    later = await world.submit()
    assert (await _finish(world, started)).applied == 1
    assert world.status(later)[0] == "queued"


async def test_the_pace_is_kept_whoever_applies(world: World) -> None:
    """Ten runs at most go at once, each moves the pace on by its share of a second, and nobody runs ahead of it."""
    for _ in range(25):
        await world.submit()
    begun = world.now()
    started = await _start(world, "cancel", workflow="order")
    one, other = (ApplyActions(world.store, world.settings) for _ in range(2))
    assert await one.once() == {"applied": 10, "refused": 0, "more": 1}
    action = world.store.transact_blocking(bulk_store.first)
    assert action is not None
    assert action.slot_at >= begun + 10 * 1_000 / 90
    ahead = Statement(sa.update(schema.bulk_action).values(slot_at=world.now() + 5_000))
    world.store.transact_blocking(lambda session: session.run(ahead))
    assert [(await daemon.once())["applied"] for daemon in (one, other)] == [0, 0]
    world.elapse(5_000)
    assert (await other.once())["applied"] == 10
    assert (await _finish(world, started)).applied == 25


async def test_who_goes_on_with_an_action_repeats_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails inside is counted once, logged, and no run is acted on twice."""
    ids = sorted([await world.submit() for _ in range(4)])
    started = await _start(world, "pause", workflow="order")
    real = bulk._ACTIONS["pause"]
    acted: list[str] = []

    def pause(session: Session, settings: Any, run: Any, *rest: Any) -> None:
        if run.id == ids[1]:
            raise RuntimeError("a mistake of ours")
        acted.append(run.id)
        real(session, settings, run, *rest)

    monkeypatch.setitem(bulk._ACTIONS, "pause", pause)
    done = await _finish(world, started)
    assert (done.applied, done.refused) == (3, 1)
    assert acted == [ids[0], ids[2], ids[3]]


async def test_two_dispatchers_apply_an_action_once(pair: Pair) -> None:
    """Two daemons at one action: every run is acted on by one of them, and the counts are right."""
    first, second = pair.one, pair.other
    ids = [await first.submit() for _ in range(12)]
    started = await _start(first, "pause", workflow="order")
    daemons = [ApplyActions(each.store, each.settings) for each in (first, second)]
    for _ in range(20):
        await asyncio.gather(*(daemon.once() for daemon in daemons))
        first.elapse(1_000)
    assert started.id is not None
    done = await bulk.get(first.store, NAMESPACE, started.id)
    assert (done.matched, done.applied, done.refused, done.finished_at is None) == (12, 12, 0, False)
    assert {first.status(run_id) for run_id in ids} == {("paused", 1)}


async def test_actions_that_are_refused(world: World) -> None:
    """An action without a condition, or with too many tags, is refused; one of another namespace is not found."""
    with refused("bad_parameter"):
        await _start(world, "cancel")
    with refused("bad_parameter"):
        await _start(world, "cancel", tags={str(number): "x" for number in range(limits.MAX_TAGS + 1)})
    await world.submit()
    started = await _start(world, "cancel", workflow="order")
    assert started.id is not None
    with refused("action_not_found"):
        await bulk.get(world.store, "other", started.id)
