"""Events: stored once, numbered, handed out in their order, and never lost, whatever the run is doing."""

import asyncio

import msgspec
import pytest
from msgspec import Raw

from dispatcher import control, errors, mailbox
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import Complete, ErrorObject, Release
from endpoint_sdk.wire.operating import KeyedRun, Nothing, SendToMany, SentToOne
from tests.integration.world import HOUR_MS, NAMESPACE, World, refused


async def test_an_event_wakes_the_run_that_waits_for_it(world: World) -> None:
    """The event is the outcome of the wait: its value, its id as the preview; the run is queued in the same write."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.event())
    assert world.status(claim.run_id) == ("awaiting_event", 2)
    sent = await world.send(claim.run_id, value=b'{"ok":true}', event_id="evt_1")
    assert (sent.event_id, sent.stored) == ("evt_1", True)
    assert world.status(claim.run_id) == ("queued", 3)
    [record] = world.records(claim.run_id)
    assert (record.kind, record.name, record.state, record.value, record.preview, record.claim_id) == (
        "event",
        "go",
        "completed",
        b'{"ok":true}',
        "evt_1",
        "server",
    )
    assert [event.consumed for event in world.mailbox(claim.run_id)] == [1]


async def test_an_event_of_another_name_wakes_nobody(world: World) -> None:
    """It stays in the mailbox until somebody asks for it."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.event())
    await world.send(claim.run_id, "other")
    assert world.status(claim.run_id) == ("awaiting_event", 2)
    assert [(event.number, event.name, event.consumed) for event in world.mailbox(claim.run_id)] == [(1, "other", None)]


async def test_the_nth_wait_of_a_name_takes_the_nth_event(world: World) -> None:
    """Events of a name are handed out first come, first served, over parks and over claims."""
    claim = await world.claim(await world.submit())
    for value in (b"1", b"2"):
        await world.send(claim.run_id, value=value)
    answer = await world.park(claim, world.event(ordinal=0))
    assert [signal.value for signal in answer.signals] == [Raw(b"1")]
    answer = await world.park(claim, world.event(ordinal=1), world.event(ordinal=2), signal_seq=answer.signal_seq)
    assert [(signal.ordinal, signal.value) for signal in answer.signals] == [(0, Raw(b"1")), (1, Raw(b"2"))]
    assert (await world.park(claim, world.event(ordinal=2), signal_seq=2)).parked
    await world.send(claim.run_id, value=b"3")
    assert world.outcomes(claim.run_id)[-1] == ("event", "go", 2, "completed", b"3")


async def test_a_repeated_event_is_stored_once(world: World) -> None:
    """I6: an event id is good for one event of its name in a run, also when the run has ended since."""
    claim = await world.claim(await world.submit())
    assert (await world.send(claim.run_id, event_id="a")).stored
    assert not (await world.send(claim.run_id, value=b"2", event_id="a")).stored
    assert (await world.send(claim.run_id, "other", event_id="a")).stored
    await world.write(claim, ending=Complete(Raw(b"1")))
    assert not (await world.send(claim.run_id, event_id="a")).stored
    with refused("run_finished"):
        await world.send(claim.run_id, event_id="b")
    assert [event.value for event in world.mailbox(claim.run_id)] == [b"1", b"1"]


async def test_who_may_be_sent_what(world: World) -> None:
    """An event is for a run of the sender's namespace, and small."""
    with refused("run_not_found"):
        await world.send("run_" + "0" * 26)
    run_id = await world.submit()
    with refused("payload_too_large"):
        await world.send(run_id, value=b'"' + b"a" * limits.MAX_EVENT + b'"')


async def test_events_come_before_the_run_asks(world: World) -> None:
    """C62: an event is kept for a run that is scheduled, queued or running, and found by its first wait."""
    later = await world.submit(delay_ms=HOUR_MS)
    await world.send(later, value=b"0")
    assert world.status(later) == ("scheduled", 0)
    run_id = await world.submit()
    await world.send(run_id, value=b"1")
    assert world.status(run_id) == ("queued", 0)
    claim = await world.claim(run_id)
    assert (await world.park(claim, world.event(), signal_seq=1)).signals[0].value == Raw(b"1")


async def test_an_event_after_the_deadline_is_too_late(world: World) -> None:
    """What decides is when the event came, not when somebody looks: the late one is left to the next wait."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.event(within_ms=1_000))
    world.elapse(2_000)
    await world.send(claim.run_id)
    assert world.outcomes(claim.run_id)[0][3] == "failed"
    second = await world.claim(claim.run_id)
    answer = await world.park(second, world.event(ordinal=1), signal_seq=1)
    assert [signal.state for signal in answer.signals] == ["failed", "completed"]


async def test_an_event_in_time_is_handed_out_late(world: World) -> None:
    """An event that came in time to a paused run is its outcome, however late it resumes."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.event(within_ms=1_000))
    await control.pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    await world.send(claim.run_id)
    world.elapse(HOUR_MS)
    assert await world.fires() == 0
    await control.resume(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert world.outcomes(claim.run_id) == [("event", "go", 0, "completed", b"1")]


async def test_outcomes_are_in_the_order_in_which_things_happened(world: World) -> None:
    """Several answers found at once are recorded in the order of their moments, which replay keeps."""
    claim = await world.claim(await world.submit())
    await world.park(
        claim, world.sleep(3_000, "third"), world.event("second"), world.sleep(1_000, "first"), world.event("fourth")
    )
    await control.pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    world.elapse(2_000)
    await world.send(claim.run_id, "second")
    world.elapse(2_000)
    await world.send(claim.run_id, "fourth")
    await control.resume(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert [name for _, name, *_ in world.outcomes(claim.run_id)] == ["first", "second", "third", "fourth"]


async def test_four_concurrent_senders_to_one_parked_run(world: World) -> None:
    """All are stored: the first wakes the run, the others are in its mailbox."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.event())
    sent = await asyncio.gather(*(world.send(claim.run_id, value=b"%d" % number) for number in range(4)))
    assert all(answer.stored for answer in sent)
    assert [event.number for event in world.mailbox(claim.run_id)] == [1, 2, 3, 4]
    assert sorted(event.value for event in world.mailbox(claim.run_id)) == [b"0", b"1", b"2", b"3"]
    assert world.status(claim.run_id) == ("queued", 3)
    assert len(world.outcomes(claim.run_id)) == 1


async def test_one_event_to_many_runs(world: World) -> None:
    """Runs are named by id or by their caller's key; each has an outcome of its own, all under one event id."""
    parked = await world.claim(await world.submit())
    await world.park(parked, world.event())
    keyed = await world.submit(idempotency_key="k")
    ended = await world.submit()
    await world.cancel(ended)
    targets: list[str | KeyedRun] = [parked.run_id, KeyedRun("order", "k"), ended, "run_x", KeyedRun("order", "none")]
    request = SendToMany("go", Raw(b"1"), targets)
    found = await mailbox.send_to_many(world.store, NAMESPACE, request, "sender")
    first, second, *others = found
    assert isinstance(first, SentToOne)
    assert isinstance(second, SentToOne)
    assert (first.run_id, second.run_id) == (parked.run_id, keyed)
    assert first.event_id == second.event_id
    assert [other.code for other in others if isinstance(other, errors.Refusal)] == [
        "run_finished",
        "run_not_found",
        "run_not_found",
    ]
    assert world.status(parked.run_id) == ("queued", 3)


async def test_a_mailbox_is_read_in_pages(world: World) -> None:
    """Events are shown in their order, with the record that handed each out."""
    claim = await world.claim(await world.submit())
    for value in (b"1", b"2", b"3"):
        await world.send(claim.run_id, value=value)
    await world.park(claim, world.event())
    page, after = await mailbox.events_of(world.store, NAMESPACE, claim.run_id, limit=2, after=0)
    assert [(event.number, event.value, event.consumed_by) for event in page] == [
        (1, Raw(b"1"), 1),
        (2, Raw(b"2"), None),
    ]
    rest, end = await mailbox.events_of(world.store, NAMESPACE, claim.run_id, limit=2, after=after or 0)
    assert ([event.number for event in rest], end) == ([3], None)
    with refused("run_not_found"):
        await mailbox.events_of(world.store, "elsewhere", claim.run_id, limit=2, after=0)


@pytest.mark.parametrize("kind", ["sleep", "event", "retry"])
async def test_waking_early(world: World, kind: str) -> None:
    """An operator ends every wait of a run: a sleep is over, an event has not come in time, a retry is now."""
    claim = await world.claim(await world.submit())
    wait = {"sleep": world.sleep(), "event": world.event(), "retry": world.retry()}[kind]
    await world.park(claim, wait)
    view = await control.wake(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert (view.status, view.reason, view.waits) == ("queued", "woken", [])
    rows = world.records(claim.run_id)
    if kind == "retry":
        assert rows == []
        # The record of the failed attempt names a later time: what is armed tells the executor that it is over.
        grant = await world.grant(claim.run_id, 3, "clm_2")
        [armed] = grant.waits
        assert (armed.kind, (armed.deadline or "9") <= grant.server_time) == ("retry", True)
    elif kind == "sleep":
        assert [(row.state, row.value) for row in rows] == [("completed", b'"woken"')]
    else:
        assert msgspec.json.decode(rows[0].error or b"", type=ErrorObject).type == "WaitTimeout"
    with refused("illegal_transition"):
        await control.wake(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")


async def test_pausing_and_resuming_what_waits(world: World) -> None:
    """A paused run keeps its waits and goes back to them; time went on meanwhile."""
    claim = await world.claim(await world.submit())
    await world.park(claim, world.sleep(HOUR_MS), world.event())
    pause, resume = control.pause, control.resume
    paused = await pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert (paused.status, paused.wake_at, len(paused.waits)) == ("paused", None, 2)
    again = await pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert again.revision == paused.revision
    resumed = await resume(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert (resumed.status, len(resumed.waits)) == ("awaiting_event", 2)
    assert resumed.wake_at is not None
    await pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    world.elapse(2 * HOUR_MS)
    assert await world.fires() == 0
    resumed = await resume(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert resumed.status == "queued"
    assert world.outcomes(claim.run_id) == [("sleep", "rest", 0, "completed", b"null")]


async def test_pausing_what_is_queued_or_scheduled(world: World) -> None:
    """A paused run is neither delivered nor fired; it resumes to where it was, or to the queue if it is due."""
    pause, resume = control.pause, control.resume
    queued, scheduled = await world.submit(), await world.submit(delay_ms=HOUR_MS)
    for run_id in (queued, scheduled):
        view = await pause(world.store, world.settings, NAMESPACE, run_id, Nothing(), "operator")
        assert view.status == "paused"
        assert world.maybe_entry(run_id) is None
    view = await resume(world.store, world.settings, NAMESPACE, scheduled, Nothing(), "operator")
    assert (view.status, view.wake_at) == ("scheduled", view.due_at)
    await pause(world.store, world.settings, NAMESPACE, scheduled, Nothing(), "operator")
    world.elapse(2 * HOUR_MS)
    assert await world.fires() == 0
    for run_id in (queued, scheduled):
        view = await resume(world.store, world.settings, NAMESPACE, run_id, Nothing(), "operator")
        assert view.status == "queued"
        assert world.entry(run_id).status == "pending"


async def test_pausing_what_runs(world: World) -> None:
    """Pausing a running run is a request that its executor is told of; resuming withdraws it."""
    pause, resume = control.pause, control.resume
    claim = await world.claim(await world.submit())
    view = await pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert (view.status, view.stop) == ("running", "pause")
    assert (await world.write(claim)).stop == "pause"
    assert (await world.refresh(claim)).held[0].stop == "pause"
    await resume(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert (await world.write(claim)).stop is None
    await pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    await world.write(claim, ending=Release("pause"))
    assert world.status(claim.run_id) == ("paused", 2)
    view = await resume(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    assert (view.status, view.stop) == ("queued", None)


async def test_what_cannot_be_paused_or_resumed(world: World) -> None:
    """The refusal names the status and the operation."""
    claim = await world.claim(await world.submit())
    for operation in (control.resume, control.wake):
        with refused("illegal_transition"):
            await operation(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    world.set_run(claim.run_id, stop="cancel")
    with refused("cancel_requested"):
        await control.pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
    await world.write(claim, ending=Complete(Raw(b"1")))
    with refused("illegal_transition"):
        await control.pause(world.store, world.settings, NAMESPACE, claim.run_id, Nothing(), "operator")
