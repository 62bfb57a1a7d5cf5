"""Parking: the claim is given up, what ends a wait is recorded, and the run goes on from there (I9)."""

import msgspec
import pytest
from msgspec import Raw

from endpoint_sdk.wire import clock
from endpoint_sdk.wire.child_messages import ChildStart
from endpoint_sdk.wire.messages import ErrorObject, Park, Progressed, RecordIn, Release, WaitFor
from tests.integration.families import start
from tests.integration.world import HOUR_MS, World, details, refused, task


async def test_a_sleep_is_parked_woken_and_recorded(world: World) -> None:
    """A run that sleeps has no entry and no claim; at its time it is queued with the sleep's outcome, and goes on."""
    claim = await world.claim(await world.submit())
    await world.write(claim, task())
    assert await world.park(claim, world.sleep(HOUR_MS)) == Progressed(2, parked=True)
    assert world.status(claim.run_id) == ("sleeping", 2)
    assert world.maybe_entry(claim.run_id) is None
    with refused("revision_conflict"):
        await world.write(claim, task("b"))
    world.elapse(HOUR_MS - 1_000)
    assert await world.fires() == 0
    world.elapse(2_000)
    assert await world.fires() == 1
    assert await world.fires() == 0
    assert world.status(claim.run_id) == ("queued", 3)
    assert world.outcomes(claim.run_id) == [("sleep", "rest", 0, "completed", b"null")]
    assert world.waits(claim.run_id) == []
    grant = await world.grant(claim.run_id, 3, "clm_2")
    assert [(record.seq, record.kind, record.claim_id) for record in grant.records] == [
        (1, "task", claim.id),
        (2, "sleep", "server"),
    ]
    assert grant.waits == []


KINDS = {
    "sleeping": ("sleep",),
    "awaiting_retry": ("sleep", "retry"),
    "awaiting_child": ("sleep", "retry", "child"),
    "awaiting_event": ("sleep", "retry", "children", "event"),
}


@pytest.mark.parametrize("status", KINDS)
async def test_what_others_have_to_end_names_the_status(world: World, status: str) -> None:
    """The status of a parked run names the wait that only somebody else can end, if it has one."""
    deadline = clock.to_wire(world.now() + HOUR_MS)
    claim = await world.claim(await world.submit())
    for kind in {"child", "children"}.intersection(KINDS[status]):
        await start(world, claim, ChildStart(kind, "a", "1", "", 0, Raw(b"1")))  # type: ignore[arg-type]
    await world.park(claim, *(WaitFor(kind, "a", 0, deadline=deadline) for kind in KINDS[status]))  # type: ignore[arg-type]
    assert world.status(claim.run_id) == (status, 2)
    assert len(world.waits(claim.run_id)) == len(KINDS[status])


async def test_the_earliest_deadline_wakes_and_the_others_stay(world: World) -> None:
    """A wake-up answers what is over; the rest stays armed with its deadlines, which the next grant carries."""
    claim = await world.claim(await world.submit())
    long, event = world.sleep(3 * HOUR_MS, "long"), world.event(within_ms=2 * HOUR_MS)
    await world.park(claim, world.sleep(HOUR_MS, "short"), long, event)
    world.elapse(HOUR_MS + 1)
    assert await world.fires() == 1
    assert world.outcomes(claim.run_id) == [("sleep", "short", 0, "completed", b"null")]
    assert (await world.grant(claim.run_id, 3, "clm_2")).waits == [event, long]


async def test_a_sleep_keeps_its_first_deadline(world: World) -> None:
    """C64: a sleep armed before ends when it was to end then, whatever a later park says of it."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.sleep(HOUR_MS, "long"), world.sleep(1_000, "short"))
    world.elapse(2_000)
    await world.fires()
    second = await world.claim(claim.run_id)
    assert (await world.park(second, world.sleep(9 * HOUR_MS, "long"))).parked
    world.elapse(HOUR_MS)
    assert await world.fires() == 1
    assert [name for _, name, *_ in world.outcomes(claim.run_id)] == ["short", "long"]


async def test_what_ended_while_the_run_was_queued_is_told_at_the_next_park(world: World) -> None:
    """An armed sleep that ended while the run ran refuses the park, with its outcome."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.sleep(HOUR_MS, "long"), world.sleep(1_000, "short"))
    world.elapse(2_000)
    await world.fires()
    second = await world.claim(claim.run_id)
    world.elapse(HOUR_MS)
    answer = await world.park(second, world.sleep(9 * HOUR_MS, "long"))
    assert answer.parked is False
    assert [(signal.name, signal.seq) for signal in answer.signals] == [("short", 1), ("long", 2)]
    assert world.status(claim.run_id) == ("running", 4)


async def test_a_park_names_all_it_waits_for(world: World) -> None:
    """What was armed and the next park does not name is waited for no more."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.event("never"), world.sleep(1_000))
    world.elapse(2_000)
    await world.fires()
    second = await world.claim(claim.run_id)
    await world.park(second, world.event("other"))
    assert [wait.name for wait in world.waits(claim.run_id)] == ["other"]
    await world.send(claim.run_id, "never")
    assert world.status(claim.run_id) == ("awaiting_event", 5)


async def test_a_retry_leaves_no_record_and_moves_its_deadline(world: World) -> None:
    """A wait to try a task again goes without a record, and the next one at its address has a time of its own."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.retry(1_000), world.event())
    world.elapse(2_000)
    assert await world.fires() == 1
    assert world.records(claim.run_id) == []
    second = await world.claim(claim.run_id)
    await world.park(second, world.retry(HOUR_MS), world.event())
    assert await world.fires() == 0
    await world.send(claim.run_id)
    third = await world.claim(claim.run_id)
    later = await world.park(third, world.retry(2 * HOUR_MS), signal_seq=1)
    assert later.parked
    world.elapse(HOUR_MS + 1)
    assert await world.fires() == 0
    world.elapse(HOUR_MS)
    assert await world.fires() == 1


async def test_a_retry_that_is_due_already_is_parked_and_woken(world: World) -> None:
    """A retry has no outcome that would keep a late copy of a refused park refused, so its park is never refused."""
    claim = await world.claim(await world.submit())
    assert (await world.park(claim, world.retry(0))).parked
    assert await world.fires() == 1


async def test_a_park_is_progress(world: World) -> None:
    """I10: endings and kills are counted afresh after a park."""
    run_id = await world.submit()
    for _ in range(9):
        await world.write(await world.claim(run_id), ending=Release("handoff"))
    await world.park(await world.claim(run_id), world.sleep(1_000))
    world.elapse(2_000)
    await world.fires()
    await world.write(await world.claim(run_id), ending=Release("handoff"))
    assert world.status(run_id)[0] == "queued"
    assert world.entry(run_id).endings == 1


async def test_records_and_a_park_are_one_write(world: World) -> None:
    """Records that come with a park are stored before it, refused or not."""
    claim = await world.claim(await world.submit())
    await world.send(claim.run_id)
    answer = await world.write(claim, task("a"), ending=Park([world.event()]))
    assert answer.parked is False
    assert [(row.seq, row.kind) for row in world.records(claim.run_id)] == [(1, "task"), (2, "event")]
    again = await world.write(claim, task("b"), ending=Park([world.sleep()]), signal_seq=answer.signal_seq)
    assert again.parked
    assert [row.name for row in world.records(claim.run_id)] == ["a", "go", "b"]


async def test_a_refused_park_tells_what_to_wait_for(world: World) -> None:
    """Refused is an answer, not an error: revision, claim and outcomes so far, and the number to park with."""
    claim = await world.claim(await world.submit())
    await world.send(claim.run_id, "noise")
    answer = await world.park(claim, world.event())
    assert answer == Progressed(1, signal_seq=1, parked=False)
    assert await world.is_held(claim)
    assert world.waits(claim.run_id) == []
    assert (await world.park(claim, world.event(), signal_seq=1)).parked


async def test_later_answers_carry_outcomes_the_executor_lacks(world: World) -> None:
    """What a lost copy of a park recorded is in every later answer, until the executor says that it has it."""
    claim = await world.claim(await world.submit())
    await world.send(claim.run_id)
    await world.park(claim, world.event(), signal_seq=1)
    [signal] = (await world.write(claim)).signals
    assert (signal.kind, signal.seq) == ("event", 1)
    assert (await world.write(claim, task("a"))).signals == [signal]
    assert (await world.write(claim, task("b"), signals_after=1)).signals == []


async def test_an_answer_to_records_carries_what_came_before_them(world: World) -> None:
    """Replay hands out by number: an outcome recorded after a record is not told before that record's answer."""
    claim = await world.claim(await world.submit())
    await world.write(claim, task("a"))
    await world.send(claim.run_id)
    await world.park(claim, world.event())
    repeat = await world.write(claim, task("a"))
    assert repeat.signals == []
    assert [signal.seq for signal in (await world.write(claim)).signals] == [2]


async def test_a_grant_begins_afresh(world: World) -> None:
    """Outcomes are in the records of the next grant; answers under that claim do not repeat them."""
    claim = await world.claim(await world.submit())
    await world.send(claim.run_id)
    await world.park(claim, world.event())
    await world.write(claim, ending=Release("handoff"))
    grant = await world.grant(claim.run_id, 2, "clm_2")
    assert [record.kind for record in grant.records] == ["event"]
    assert grant.signal_seq == 1
    second = await world.claim(claim.run_id, 2, "clm_2")
    assert (await world.write(second)).signals == []


async def test_a_sleep_that_ended_on_both_sides(world: World) -> None:
    """An executor's own record of a sleep whose outcome was recorded before is a repeat, not a conflict."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.sleep(1_000), signal_seq=7)
    world.elapse(2_000)
    await world.park(claim, world.sleep(-1_000), signal_seq=7)
    own = RecordIn("sleep", "rest", "", 0, "ended", "completed", 1, value=msgspec.Raw(b"null"))
    assert (await world.write(claim, own)).revision == 1
    assert world.outcomes(claim.run_id) == [("sleep", "rest", 0, "completed", b"null")]


async def test_what_both_sides_recorded_is_told_in_its_place(world: World) -> None:
    """The outcome the dispatcher recorded first comes before the record that shares a call with the executor's copy."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.sleep(-1_000))
    own = RecordIn("sleep", "rest", "", 0, "ended", "completed", 1, value=msgspec.Raw(b"null"))
    answer = await world.write(claim, task("a"), own)
    assert [(signal.name, signal.seq) for signal in answer.signals] == [("rest", 1)]


async def test_a_repeated_park_is_answered_as_before(world: World) -> None:
    """I6: a park whose answer was lost is found by its request id, also when the run has been woken and moved on."""
    claim = await world.claim(await world.submit())
    first = await world.park(claim, world.event(), request_id="req_1")
    assert await world.park(claim, world.event(), request_id="req_1") == first
    await world.send(claim.run_id)
    assert await world.park(claim, world.event(), request_id="req_1") == first
    await world.claim(claim.run_id)
    assert await world.park(claim, world.event(), request_id="req_1") == first
    with refused("revision_conflict"):
        await world.park(claim, world.event(), request_id="req_2")


async def test_a_wait_that_nothing_could_end_is_refused(world: World) -> None:
    """Sleeps and retries have a deadline, and a deadline is a time."""
    claim = await world.claim(await world.submit())
    for wait in (WaitFor("sleep", "a", 0), WaitFor("retry", "a", 0), WaitFor("event", "a", 0, deadline="soon")):
        with refused("malformed"):
            await world.park(claim, wait)
    assert await world.is_held(claim)


async def test_one_address_is_waited_for_once(world: World) -> None:
    """A wait named twice is one wait."""
    claim = await world.claim(await world.submit())
    assert (await world.park(claim, world.event(), world.event())).parked
    assert len(world.waits(claim.run_id)) == 1


async def test_history_names_the_waits(world: World) -> None:
    """The move that parks a run says how much it waits for, and until when."""
    claim = await world.claim(await world.submit())
    sleep = world.sleep()
    await world.park(claim, sleep, world.event())
    move = world.history(claim.run_id)[-1]
    assert (move.reason, move.actor, details(move)) == ("parked", "executor", {"waits": 2, "wakeAt": sleep.deadline})


async def test_a_thousand_waits(world: World) -> None:
    """Many waits are parked, woken by one and parked again, and only what changes is written."""
    claim = await world.claim(await world.submit())
    waiting = [world.event(f"e{number}") for number in range(1_000)]
    assert (await world.park(claim, *waiting)).parked
    await world.send(claim.run_id, "e7")
    second = await world.grant(claim.run_id, 3, "clm_2")
    assert len(second.waits) == 999
    assert second.signal_seq == 1


async def test_outcomes_beyond_one_answer_come_with_the_next(world: World) -> None:
    """A refused park tells no more than one answer holds; what is left refuses the next one, in its order."""
    claim = await world.claim(await world.submit())
    for number in range(20):
        await world.send(claim.run_id, value=b'"%d%s"' % (number, b"x" * 250_000))
    waiting = [world.event(ordinal=number) for number in range(20)]
    told: list[int] = []
    counts: list[int] = []
    while len(told) < 20:
        answer = await world.park(claim, *waiting[len(told) :], signal_seq=20, signals_after=max(told, default=0))
        assert answer.parked is False
        counts.append(len(answer.signals))
        told += [signal.seq for signal in answer.signals]
    assert (counts, told) == ([16, 4], list(range(1, 21)))


async def test_waits_of_many_names_take_few_statements(world: World) -> None:
    """However many names a run waits for, neither its park nor an event asks the database about each of them."""
    counts: list[tuple[int, int]] = []
    for count in (30, 90):
        claim = await world.claim(await world.submit())
        named = [world.event(f"e{number}") for number in range(count)]
        slept = [msgspec.structs.replace(world.sleep(), args_hash=str(number)) for number in range(count)]
        before = world.store.statements
        assert (await world.park(claim, *named, *slept)).parked
        parked = world.store.statements
        await world.send(claim.run_id, "e7")
        counts.append((parked - before, world.store.statements - parked))
        assert [row.name for row in world.records(claim.run_id)] == ["e7"]
    assert counts[0] == counts[1]


async def test_a_timeout_is_a_failed_record(world: World) -> None:
    """An event that did not come in time is recorded as WaitTimeout, which no retry mends."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.event(within_ms=1_000))
    world.elapse(2_000)
    assert await world.fires() == 1
    [record] = world.records(claim.run_id)
    assert (record.kind, record.state, record.attempt, record.phase) == ("event", "failed", 1, "ended")
    error = msgspec.json.decode(record.error or b"", type=ErrorObject)
    assert (error.type, error.retryable) == ("WaitTimeout", False)
