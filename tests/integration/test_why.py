"""Why a run does not move: one sentence for each reason, and the command to type next."""

from typing import Any

import pytest
from msgspec import Raw

from dispatcher import control, why
from dispatcher.registry import Registry
from dispatcher.settings import Stalling
from endpoint_sdk.wire.messages import Complete, Ending, ErrorObject, Fail, Release, Retry, Stall
from endpoint_sdk.wire.operating import Nothing, Why
from tests.integration.world import DAY_MS, IDLE_MS, NAMESPACE, World, failed, task


async def _why(world: World, run_id: str) -> Why:
    return await why.why(world.store, Registry(world.store, world.keys), world.settings, NAMESPACE, run_id)


async def _killed(world: World, step: str | None) -> str:
    run_id = await world.submit()
    await world.write(await world.claim(run_id), task("reserve"))
    for killed in range(3):
        if killed:
            claim = await world.claim(run_id)
            await world.refresh(claim, step=step)
        elif step is not None:
            entry = world.entry(run_id)
            world.set_entry(run_id, step=step)
            assert entry.status == "claimed"
        world.elapse(IDLE_MS + 1_000)
        await world.recovers()
    return run_id


async def test_killed_at_a_step(world: World) -> None:
    """C20: the sentence names the task, how often and how its executor died, and the last record."""
    run_id = await _killed(world, "transcode")
    found = await _why(world, run_id)
    assert found.facts["reason"] == "killed_at_step"
    assert "died 3 times in the task 'transcode' (last: silent, " in found.sentence
    assert "last record: reserve" in found.sentence
    assert found.next == f"pointsman run requeue {run_id}"


async def test_a_crash_loop(world: World) -> None:
    """Where nobody knows the task, the sentence says after which record to look."""
    run_id = await _killed(world, None)
    found = await _why(world, run_id)
    assert found.facts["reason"] == "crash_loop"
    assert "died 3 times with nothing recorded between" in found.sentence
    assert "last record: reserve" in found.sentence
    assert found.next == f"pointsman run requeue {run_id}"


async def test_undeliverable(world: World) -> None:
    """Too many endings and too long a wait are two sentences of one reason."""
    world.configure(stalling=Stalling(max_endings_without_progress=1))
    claim = await world.claim(await world.submit())
    await world.write(claim, ending=Release("drain"))
    found = await _why(world, claim.run_id)
    assert found.facts["reason"] == "undeliverable"
    assert "1 endings brought no progress" in found.sentence
    world.configure()
    late = await world.submit()
    world.elapse(2 * DAY_MS)
    await world.stalling.once()
    found = await _why(world, late)
    assert (found.facts["reason"], "nobody claimed it" in found.sentence) == ("undeliverable", True)
    assert found.next == f"pointsman run requeue {late}"


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ({"message": "recorded task charge was never asked for"}, "recorded task charge was never asked for"),
        ({"message": 7, "killed": "x", "lastRecord": []}, "other tasks than the ones recorded"),
        ({"message": "{0} {x}", "killed": {"cause": "{0} {x}"}}, "({0} {x})"),
        ({}, "other tasks than the ones recorded"),
    ],
)
async def test_divergence(world: World, details: dict[str, Any], said: str) -> None:
    """The executor's own words are in the sentence, whatever else it wrote."""
    claim = await world.claim(await world.submit())
    await world.write(claim, ending=Stall("divergence", details))
    found = await _why(world, claim.run_id)
    assert said in found.sentence
    assert "--discard-unconsumed" in found.sentence
    assert found.next == f"pointsman run requeue {claim.run_id}"


async def test_what_an_operator_writes_is_not_taken_for_more(world: World) -> None:
    """A cancel's reason may be any words, and a pause in between does not hide why an attempt failed."""
    cancelled = await world.submit()
    await world.cancel(cancelled, reason="restarted_as")
    found = await _why(world, cancelled)
    assert (found.sentence, found.next) == ("The run is cancelled (restarted_as): nothing is left to do.", None)
    claim = await world.claim(await world.submit())
    await world.write(claim, ending=Retry(ErrorObject("Boom", "no"), 60_000))
    for operation in (control.pause, control.resume):
        await operation(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert (await _why(world, claim.run_id)).sentence.startswith("Attempt 1 failed (Boom) and the run waits")


async def test_every_other_status(world: World) -> None:
    """Ended runs, one between attempts and one that was asked to stop have a sentence of their own."""
    sentences = {}
    endings: dict[str, Ending] = {
        "completed": Complete(Raw(b"1")),
        "failed": Fail(ErrorObject("Boom", "no")),
        "retry": Retry(ErrorObject("Boom", "no"), 60_000),
    }
    for name, ending in endings.items():
        claim = await world.claim(await world.submit())
        await world.write(claim, ending=ending)
        sentences[name] = (await _why(world, claim.run_id)).sentence
    held = await world.claim(await world.submit())
    await world.cancel(held.run_id, now=False)
    sentences["running"] = (await _why(world, held.run_id)).sentence
    waiting = await world.claim(await world.submit())
    await world.write(waiting, failed(next_attempt_at="2030-01-01T00:00:00Z"))
    await world.park(waiting, world.retry())
    sentences["parked"] = (await _why(world, waiting.run_id)).sentence
    assert sentences["completed"] == "The run is completed: nothing is left to do."
    assert sentences["failed"] == "The run is failed (Boom): nothing is left to do."
    assert sentences["retry"].startswith("Attempt 1 failed (Boom) and the run waits for its next, until ")
    assert "and was asked to cancel itself by " in sentences["running"]
    assert sentences["parked"].startswith("The run waits to try 'charge' again")
