"""What an operator does to a run, in every status it can be in."""

import pytest
from msgspec import Raw

from dispatcher import cancelling, operations
from dispatcher.settings import Stalling
from endpoint_sdk.wire import identity
from endpoint_sdk.wire.messages import Complete, ErrorObject, Fail, Stall
from endpoint_sdk.wire.operating import CancelRun, ReleaseRun, RequeueRun
from tests.integration.world import IDLE_MS, World, details, refused, task


async def _in(world: World, status: str) -> str:
    """A run in *status*."""
    run_id = await world.submit()
    if status == "cancelled":
        await world.cancel(run_id)
    elif status != "queued":
        claim = await world.claim(run_id)
        endings = {
            "completed": Complete(Raw(b"1")),
            "failed": Fail(ErrorObject("E", "x")),
            "stalled": Stall("divergence"),
        }
        if status in endings:
            await world.write(claim, ending=endings[status])  # type: ignore[arg-type]
    assert world.status(run_id)[0] == status
    return run_id


@pytest.mark.parametrize(
    ("status", "cancel", "cancel_now", "release", "requeue"),
    [
        ("queued", "cancelled", "cancelled", "illegal_transition", "illegal_transition"),
        ("running", "running", "cancelled", "queued", "illegal_transition"),
        ("stalled", "cancelled", "cancelled", "illegal_transition", "queued"),
        ("completed", "run_finished", "run_finished", "illegal_transition", "illegal_transition"),
        ("failed", "run_finished", "run_finished", "illegal_transition", "illegal_transition"),
        ("cancelled", "cancelled", "cancelled", "illegal_transition", "illegal_transition"),
    ],
)
async def test_every_operation_in_every_status(
    world: World, status: str, cancel: str, cancel_now: str, release: str, requeue: str
) -> None:
    """Each operation moves the run as the lifecycle says, or is refused with its code and moves nothing."""
    for call, expected in (
        (lambda run_id: world.cancel(run_id, now=False), cancel),
        (world.cancel, cancel_now),
        (world.free, release),
        (world.requeue, requeue),
    ):
        run_id = await _in(world, status)
        before = world.status(run_id)
        if expected in {"queued", "running", "cancelled"}:
            view = await call(run_id)
            assert view.status == expected
            assert view.revision == before[1] + (status != expected)
        else:
            with refused(expected):
                await call(run_id)
            assert world.status(run_id) == before


async def test_unknown_runs_and_other_namespaces(world: World) -> None:
    """A run that is not there, or in another namespace, is not found, whatever is asked of it."""
    run_id = await world.submit()
    for call in (world.cancel, world.free, world.requeue):
        with refused("run_not_found"):
            await call(identity.new("run"))
    with refused("run_not_found"):
        await cancelling.cancel(world.store, world.settings, "other", run_id, CancelRun(now=True), "x")
    with refused("run_not_found"):
        await operations.release(world.store, world.settings, "other", run_id, ReleaseRun(), "x")
    with refused("run_not_found"):
        await operations.requeue(world.store, world.settings, "other", run_id, RequeueRun(), "x")
    assert world.status(run_id) == ("queued", 0)


async def test_cancel_now_fences_at_once(world: World) -> None:
    """Cancelling a running run takes its claim: refresh is lost as cancelled, writes are refused as cancelled."""
    claim = await world.claim(await world.submit())
    await world.cancel(claim.run_id, reason="not wanted")
    assert world.maybe_entry(claim.run_id) is None
    assert [lost.code for lost in (await world.refresh(claim)).lost] == ["cancelled"]
    with refused("cancelled"):
        await world.write(claim, task(), ending=Complete(Raw(b"1")))
    last = world.history(claim.run_id)[-1]
    assert (last.revision, last.status, last.reason, last.actor) == (2, "cancelled", "not wanted", "operator")
    assert world.run(claim.run_id).finished_at is not None


async def test_a_stalled_run_is_cancelled_with_the_stalls_reason(world: World) -> None:
    """The reason of the stall stays with the cancelled run; the operator's is in its history."""
    first, second = await _in(world, "stalled"), await _in(world, "stalled")
    assert (await world.cancel(first, now=False)).reason == "divergence"
    assert (await world.cancel(second, reason="enough")).reason == "divergence"
    assert details(world.history(second)[-1]) == {"reason": "enough"}


async def test_release_lets_another_executor_claim(world: World) -> None:
    """An operator's release queues the run at once, counts no kill, and fences the former owner."""
    run_id = await world.submit()
    world.set_entry(run_id, endings=2, kills=1)
    claim = await world.claim(run_id)
    view = await world.free(run_id, "stuck")
    entry = world.entry(run_id)
    assert (view.status, view.revision, view.claim, view.reason) == ("queued", 2, None, "stuck")
    assert (entry.status, entry.endings, entry.kills) == ("pending", 2, 1)
    assert entry.next_publish_at <= world.now()
    assert not await world.is_held(claim)
    assert (await world.claim(run_id)).revision == 3


async def test_requeue_has_fresh_counters_and_clock(world: World) -> None:
    """A requeued run starts over: no endings, no kills, a new queue time, the given version, its records kept."""
    run_id = await world.submit()
    await world.write(await world.claim(run_id), task("reserve"))
    for _ in range(3):
        world.elapse(IDLE_MS + 1_000)
        await world.recovers()
        if world.status(run_id)[0] == "queued":
            await world.claim(run_id)
    assert world.status(run_id)[0] == "stalled"
    world.elapse(3_600_000)
    view = await world.requeue(run_id, version="2")
    entry = world.entry(run_id)
    assert (view.status, view.version, view.reason) == ("queued", "2", "requeued")
    assert (entry.endings, entry.kills, entry.failures, entry.push_number) == (0, 0, 0, 0)
    assert entry.queue == "default:order:2:default"
    assert entry.queued_at == pytest.approx(world.now(), abs=2_000)
    grant = await world.grant(run_id, view.revision, "clm_new")
    assert [record.name for record in grant.records] == ["reserve"]
    assert grant.run.version == "2"


async def test_requeue_discards_only_what_a_stall_lists(world: World) -> None:
    """`discardUnconsumed` is refused where there is nothing to discard."""
    run_id = await _in(world, "stalled")
    with refused("nothing_to_discard"):
        await world.requeue(run_id, discard_unconsumed=True)


async def test_deliveries_are_counted_over_stalls(world: World) -> None:
    """How often a run was pushed is remembered when its entry goes."""
    world.configure(stalling=Stalling(max_endings_without_progress=1))
    run_id = await world.submit()
    world.publish(run_id, push_number=4, due_in_ms=-1)
    await world.recovers()
    assert world.run(run_id).deliveries == 4
    assert details(world.history(run_id)[-1])["deliveries"] == 4
    view = await world.requeue(run_id)
    assert view.deliveries == 4


async def test_refusals_name_status_and_operation(world: World) -> None:
    """409 illegal_transition says what the run is and what was asked of it."""
    run_id = await world.submit()
    with pytest.raises(Exception, match="queued") as caught:
        await world.requeue(run_id)
    assert getattr(caught.value, "details", None) == {"status": "queued", "operation": "requeue"}
