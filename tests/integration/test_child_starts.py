"""Starting children: fenced, repeatable at any point, each refused by itself, in few statements (I2, I6)."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from dispatcher import child_views
from dispatcher.lanes import OpenPlaces
from dispatcher.store import declarations
from dispatcher.store.children import call_of
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.child_messages import ChildOutcome, ChildStart
from endpoint_sdk.wire.messages import Complete, Concurrency, ErrorObject, Fail, Release, Retry, ServedWorkflow
from tests.integration.families import (
    RESIZE,
    SHIP,
    child,
    children_of,
    completes,
    fails,
    forget,
    many,
    outcome,
    parked,
    renumber,
    ship,
    start,
    started,
    wait_for,
)
from tests.integration.world import IDLE_MS, NAMESPACE, Claim, World, refused, task


async def parent(world: World, **fields: Any) -> Claim:
    """The claim of a run that has started nothing yet."""
    return await world.claim(await world.submit("family", **fields))


async def test_a_child_has_what_it_is_given_and_the_rest_of_its_parent(world: World) -> None:
    """Pool and tags can be given: a tag replaces the parent's of that name, the others stay."""
    claim = await parent(world, tags={"a": "1", "b": "2"})
    [run_id] = await started(world, claim, child(pool="gpu", tags={"b": "3", "c": "4"}, input=Raw(b'{"x":1}')))
    row = world.run(run_id)
    assert (row.pool, row.tags, row.input, row.workflow, row.version) == (
        "gpu",
        '{"a":"1","b":"3","c":"4"}',
        b'{"x":1}',
        "ship",
        "1",
    )
    assert (row.parent_call, row.parent_index, row.generation) == ("child:ab:0:ship", 0, 0)


async def test_only_the_claim_holder_starts_children(world: World) -> None:
    """I2: a claim that was lost starts nothing, whatever it knows; a token of another claim is none."""
    claim = await parent(world)
    await world.free(claim.run_id)
    with refused("revision_conflict"):
        await start(world, claim, child())
    later = await world.claim(claim.run_id)
    with refused("unauthorized"):
        await start(world, claim._replace(revision=later.revision), child())
    with refused("revision_conflict"):
        await start(world, world.forged(later, id=claim.id), child())
    await world.cancel(claim.run_id)
    with refused("cancelled"):
        await start(world, later, child())
    assert world.run(claim.run_id).children == 0


async def test_a_start_counts_as_progress_and_as_a_refresh(world: World) -> None:
    """I10: starting children is progress, also before their call has its record."""
    claim = await parent(world)
    await world.write(claim, ending=Release("handoff"))
    again = await world.claim(claim.run_id)
    world.elapse(IDLE_MS - 1_000)
    await started(world, again, *many(2, count=1))
    assert world.entry(claim.run_id).endings == 0
    world.elapse(2_000)
    assert (await world.recovers())["released"] == 0


async def test_a_call_in_chunks_is_recorded_with_the_last(world: World) -> None:
    """A call of many has its record once all of its children have started, whatever order the chunks come in."""
    claim = await parent(world)
    await started(world, claim, *many(5, first=2, count=3))
    await started(world, claim, *many(5, count=1))
    assert world.records(claim.run_id) == []
    await started(world, claim, *many(5, first=1, count=1))
    [record] = world.records(claim.run_id)
    assert (record.kind, record.phase, record.value) == ("children", "started", b'{"total":5}')
    assert [row.parent_index for row in children_of(world, claim.run_id, RESIZE)] == [0, 1, 2, 3, 4]


async def test_an_executor_that_died_between_chunks(world: World) -> None:
    """I7: the next claim begins with the first chunk again; what was started is found, and nothing runs twice."""
    claim = await parent(world)
    first = await started(world, claim, *many(4, count=2))
    await completes(world, first[0])
    world.elapse(IDLE_MS + 1_000)
    await world.recovers()
    second = await world.claim(claim.run_id)
    assert await started(world, second, *many(4, count=2)) == first
    rest = await started(world, second, *many(4, first=2, count=2))
    assert (await world.park(second, wait_for(RESIZE))).parked
    assert world.waits(claim.run_id)[0].open == 3
    for run_id in (first[1], *rest):
        await completes(world, run_id)
    assert outcome(world, claim.run_id, RESIZE) == {"total": 4}


async def test_one_child_named_twice_in_a_request(world: World) -> None:
    """The same call and index twice in one request is one child."""
    claim = await parent(world)
    answer = await start(world, claim, child(), child(), *many(1), *many(1))
    assert [item.created for item in answer.children] == [True, False, True, False]
    assert answer.children[0].id == answer.children[1].id
    assert world.run(claim.run_id).children == 2


async def test_a_child_is_refused_by_itself(world: World) -> None:
    """What is wrong with one child is its own error; the others start, and of its call nothing is recorded."""
    claim = await parent(world, tags={str(number): "" for number in range(19)})
    taken = await world.submit("ship", idempotency_key="k")
    big = Raw(b'"' + b"a" * limits.MAX_PAYLOAD + b'"')
    answer = await start(
        world,
        claim,
        child(0),
        child(1, input=big),
        child(2, tags={"x": "", "y": ""}),
        child(3, pool="€" * 200, name="€" * 200),
        child(4, idempotency_key="k"),
        *many(2, count=1),
        ChildStart("children", "resize", "1", "cd", 0, big, 1, 2),
    )
    codes = [None if item.error is None else item.error.type for item in answer.children]
    assert codes == [
        None,
        "payload_too_large",
        "tags_too_many",
        "queue_too_long",
        "idempotency_conflict",
        None,
        "payload_too_large",
    ]
    conflict = answer.children[4].error
    assert conflict is not None
    assert (conflict.details, conflict.retryable) == ({"runId": taken}, False)
    assert [(row.kind, row.ordinal) for row in world.records(claim.run_id)] == [("child", 0)]
    assert world.run(claim.run_id).children == 2


@pytest.mark.parametrize(
    "wrong",
    [
        child(index=1, total=2),
        child(total=2),
        *many(1, count=0),
        ChildStart("children", "a", "1", "", 0, Raw(b"1"), 1, 1),
    ],
)
async def test_places_a_call_does_not_have(world: World, wrong: ChildStart) -> None:
    """A call of one has one child, a call of many as many as it says."""
    with refused("malformed"):
        await start(world, await parent(world), wrong)


async def test_a_key_names_one_child(world: World) -> None:
    """A child under a key is found by a repeat; another call's start under that key is refused."""
    claim = await parent(world)
    first = await start(world, claim, child(idempotency_key="k"))
    again = await start(world, claim, child(idempotency_key="k"), child(1, idempotency_key="k"))
    assert [item.id for item in again.children] == [first.children[0].id, None]
    assert again.children[1].error is not None
    assert again.children[1].error.type == "idempotency_conflict"


async def test_a_forgotten_child_is_taken_up_again_by_its_key(world: World) -> None:
    """A run that begins anew and starts a child under the key of one it has forgotten goes on with that child."""
    claim = await parent(world)
    [run_id] = await started(world, claim, child(idempotency_key="k"))
    forget(world, claim.run_id)
    answer = await start(world, claim, child(7, idempotency_key="k"))
    assert [(item.id, item.created) for item in answer.children] == [(run_id, False)]
    assert (await world.park(claim, wait_for(ship(7)))).parked
    await completes(world, run_id)
    assert outcome(world, claim.run_id, ship(7)) == 2


async def test_a_retry_starts_a_child_that_failed_anew_under_its_key(world: World) -> None:
    """The next attempt of a run starts what failed again: the failed child has given its key up."""
    claim, [failed] = await parked(world, child(idempotency_key="k"))
    await fails(world, failed)
    await world.write(await world.claim(claim.run_id), ending=Retry(ErrorObject("ChildFailed", "no"), 0))
    await world.fires()
    second = await world.claim(claim.run_id)
    [again] = await started(world, second, child(idempotency_key="k"))
    assert again != failed
    assert (await world.park(second, wait_for())).parked
    await completes(world, again)
    assert outcome(world, claim.run_id) == 2


async def test_a_forgotten_child_tells_nobody(world: World) -> None:
    """The end of a child its parent has forgotten moves nothing."""
    claim, [run_id] = await parked(world, child())
    forget(world, claim.run_id)
    await completes(world, run_id)
    assert world.status(claim.run_id) == ("awaiting_child", 2)
    await world.cancel(claim.run_id)


async def test_a_wait_for_a_child_that_was_never_started(world: World) -> None:
    """Nothing would end such a wait, so the park is refused with the failure of the wait."""
    claim = await parent(world)
    answer = await world.park(claim, wait_for(), wait_for(RESIZE))
    assert answer.parked is False
    errors = [signal.error for signal in answer.signals]
    assert [error and error.details["type"] for error in errors] == ["child_not_found", "child_not_found"]


async def test_the_answer_carries_what_the_executor_lacks(world: World) -> None:
    """Outcomes that a refused park wrote come with the start's answer as far as they are before its own records."""
    claim = await parent(world)
    [first] = await started(world, claim, child(0))
    await completes(world, first)
    assert (await world.park(claim, wait_for(ship(0)))).parked is False
    answer = await start(world, claim, child(1))
    assert [(signal.kind, signal.seq) for signal in answer.signals] == [("child", 2)]
    assert (await start(world, claim, child(1), signals_after=2)).signals == []
    assert (await start(world, claim, child(0))).signals == []
    await world.cancel(claim.run_id, now=False)
    assert (await start(world, claim, child(1), signals_after=2)).stop == "cancel"


async def test_starts_are_records_of_the_run(world: World) -> None:
    """A run holds 10 000 records, starts among them: the call that would write one more starts nothing."""
    claim = await parent(world)
    await world.write(claim, task())
    renumber(world, claim.run_id, limits.MAX_RECORDS - 1)
    with refused("history_limit"):
        await start(world, claim, child(0), child(1))
    assert world.run(claim.run_id).children == 0
    await started(world, claim, child(0))


async def test_five_hundred_children_take_few_statements(world: World) -> None:
    """However many children a request starts, of one call or of as many calls, it takes fifteen statements at most."""
    claim = await parent(world)

    async def counted(*starts: ChildStart) -> int:
        before = world.store.statements
        await started(world, claim, *starts)
        return world.store.statements - before

    assert await counted(child(0)) <= 15
    assert await counted(*map(child, range(1, 501))) <= 15
    assert await counted(*many(501, count=1)) <= 15
    assert await counted(*many(501, first=1, count=500)) <= 15


async def test_a_run_without_a_parent_costs_nothing_more(world: World) -> None:
    """An end takes the statements it took before there were children: fence, entry, move and history."""
    for ending in (Complete(Raw(b"1")), Fail(ErrorObject("Boom", "no"))):
        claim = await parent(world)
        before = world.store.statements
        await world.write(claim, ending=ending)
        assert world.store.statements - before == (4 if isinstance(ending, Complete) else 5)


async def test_outcomes_are_read_in_pages(world: World) -> None:
    """The claim holder reads the results of a call in the order of its children, up to 4 MiB at a time."""
    claim = await parent(world)
    ids = await started(world, claim, *many(7))
    for number, run_id in enumerate(reversed(ids)):
        await completes(world, run_id, b'"' + b"%d" % number * (limits.MAX_PAYLOAD - 100) + b'"')
    call = call_of(RESIZE)
    first = await child_views.outcomes(world.store, world.keys, claim.run_id, claim.token, call, -1)
    assert ([item.index for item in first.items], first.next) == ([0, 1, 2], 2)
    assert first.items[0].id == ids[0]
    assert bytes(first.items[0].result)[:3] == b'"66'  # type: ignore[arg-type]
    second = await child_views.outcomes(world.store, world.keys, claim.run_id, claim.token, call, 2)
    assert ([item.index for item in second.items], second.next) == ([3, 4, 5], 5)
    last = await child_views.outcomes(world.store, world.keys, claim.run_id, claim.token, call, 5)
    assert ([item.index for item in last.items], last.next) == ([6], None)
    with refused("unauthorized"):
        await child_views.outcomes(world.store, world.keys, claim.run_id, "pmw_x", call, -1)


async def test_outcomes_of_children_that_failed_or_run(world: World) -> None:
    """Every child of the call is listed: one that runs has neither result nor error."""
    claim = await parent(world)
    ids = await started(world, claim, *many(3))
    await completes(world, ids[0])
    await fails(world, ids[1])
    page = await child_views.outcomes(world.store, world.keys, claim.run_id, claim.token, call_of(RESIZE), -1)
    assert [(item.status, item.error and item.error.type) for item in page.items] == [
        ("completed", None),
        ("failed", "Boom"),
        ("queued", None),
    ]
    assert page.items[2] == ChildOutcome(2, ids[2], "queued")
    nothing = await child_views.outcomes(world.store, world.keys, claim.run_id, claim.token, call_of(SHIP), -1)
    assert nothing.items == []


async def test_children_have_their_turns_in_order(world: World) -> None:
    """Children that share one place get it in the order of the call, not in that of random ids."""
    claim = await parent(world)
    ids = await started(world, claim, *many(8, limit=1))
    places = OpenPlaces(world.store, look_seconds=0)
    for run_id in ids:
        assert (await places.once())["opened"] == 1
        assert not world.entry(run_id).held
        await completes(world, run_id)


async def test_what_the_childs_code_declares_holds_for_it(world: World) -> None:
    """A child has the lane and the time its workflow declares; without a bound of its own, that of the call."""
    served = ServedWorkflow("ship", "1", concurrency=Concurrency(2, "customer"), timeout_ms=5_000)
    text = msgspec.json.encode(served).decode()
    world.store.transact_blocking(lambda session: declarations.put(session, NAMESPACE, [("ship", "1", text)]))
    claim = await parent(world, tags={"customer": "a b"})
    [own] = await started(world, claim, ChildStart("children", "ship", "1", "ab", 0, Raw(b"1"), limit=7))
    [call] = await started(world, claim, *many(1, limit=7))
    assert (world.run(own).lane, world.run(own).lane_limit) == ("default:ship:customer%3Da%20b", 2)
    assert world.run(own).expires_at is not None
    assert (world.run(call).lane, world.run(call).lane_limit) == (f"call:{claim.run_id}:{call_of(RESIZE)}", 7)
    assert world.run(call).expires_at is None
