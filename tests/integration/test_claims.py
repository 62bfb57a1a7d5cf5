"""Claiming a run and refreshing the claim."""

import asyncio

import pytest
from msgspec import Raw

from dispatcher import claims
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Recovery
from endpoint_sdk.wire import identity
from endpoint_sdk.wire.messages import (
    ClaimRun,
    Complete,
    ErrorObject,
    ExecutorInfo,
    Fail,
    Lost,
    Refresh,
    Release,
    Stall,
)
from tests.integration.world import IDLE_MS, Claim, World, details, refused, task


async def test_claim_moves_one_revision_on(world: World) -> None:
    """A claim takes a queued run to running at the next revision, and its entry with it."""
    run_id = await world.submit()
    claim = await world.claim(run_id, claim_id="clm_a", push_number=1)
    entry = world.entry(run_id)
    assert claim.revision == 1
    assert world.status(run_id) == ("running", 1)
    assert (entry.status, entry.revision, entry.claim_id, entry.claim_push_number) == ("claimed", 1, "clm_a", 1)
    assert world.history(run_id)[1].request_id == "clm_a"


async def test_grant_carries_all_execution_needs(world: World) -> None:
    """The grant has the input, the records so far, the fence, the credential, the intervals and the server's time."""
    world.configure(recovery=Recovery(claim_idle_timeout_ms=9_000, claim_refresh_interval_ms=2_000))
    run_id = await world.submit(input=Raw(b'{"n": 7}'), tags={"customer": "c1"}, idempotency_key="order-7")
    first = await world.claim(run_id)
    await world.write(first, task("charge"), ending=Release("handoff"))
    grant = await world.grant(run_id, 2, "clm_b")
    assert (grant.run.id, bytes(grant.run.input), grant.run.tags) == (run_id, b'{"n": 7}', {"customer": "c1"})
    assert (grant.run.workflow, grant.run.version, grant.run.attempt) == ("order", "1", 1)
    assert grant.run.idempotency_key == "order-7"
    assert (grant.revision, grant.claim_id) == (3, "clm_b")
    assert world.keys.check_write_token(grant.token, run_id, 3, "clm_b")
    assert (grant.idle_timeout_ms, grant.claim_refresh_interval_ms) == (9_000, 2_000)
    assert [(record.seq, record.name) for record in grant.records] == [(1, "charge")]
    assert grant.records_after is None
    assert grant.stop is None
    assert grant.server_time.endswith("Z")


async def test_published_and_pending_entries_can_be_claimed(world: World) -> None:
    """A claim is granted whether its delivery is still in flight, or was given up and waits to be pushed again."""
    for status in ("published", "pending"):
        run_id = await world.submit()
        world.set_entry(run_id, status=status, next_publish_at=world.now() + 60_000)
        assert (await world.claim(run_id)).revision == 1


async def test_second_delivery_of_a_revision_is_refused(world: World) -> None:
    """C13: the same push handled twice gives one claim; the second is refused and takes nothing over."""
    run_id = await world.submit()
    owner = await world.claim(run_id, 0)
    with refused("already_claimed"):
        await world.claim(run_id, 0)
    assert await world.is_held(owner)
    assert world.status(run_id) == ("running", 1)


async def test_one_of_many_concurrent_claims_wins(world: World) -> None:
    """I1: twenty claims of one delivery at once are one grant and nineteen refusals."""
    run_id = await world.submit()
    answers = await asyncio.gather(*(world.claim(run_id, 0) for _ in range(20)), return_exceptions=True)
    granted = [answer for answer in answers if isinstance(answer, Claim)]
    refusals = {getattr(answer, "code", answer) for answer in answers if not isinstance(answer, Claim)}
    assert len(granted) == 1
    assert refusals == {"already_claimed"}


async def test_lost_reply_of_a_claim_is_harmless(world: World) -> None:
    """I6: the same claim sent again is granted again, at the same revision, and counts as a refresh."""
    run_id = await world.submit()
    first = await world.grant(run_id, 0, "clm_a")
    world.elapse(IDLE_MS - 5_000)
    again = await world.grant(run_id, 0, "clm_a")
    assert (again.revision, again.token) == (first.revision, first.token)
    assert len(world.history(run_id)) == 2
    world.elapse(IDLE_MS - 5_000)
    assert (await world.recovers())["released"] == 0


@pytest.mark.parametrize(
    "ending", [Complete(Raw(b"1")), Fail(ErrorObject("Boom", "no")), Release("drain"), Stall("divergence")]
)
async def test_claim_repeated_after_its_end_is_refused(world: World, ending: Complete | Fail | Release | Stall) -> None:
    """I6: a repeat of a claim whose run has moved on is never granted again."""
    run_id = await world.submit()
    claim = await world.claim(run_id, 0, "clm_a")
    await world.write(claim, task(), ending=ending)
    code = "stale_delivery" if isinstance(ending, Release | Stall) else "run_finished"
    with refused(code):
        await world.claim(run_id, 0, "clm_a")


async def test_refusal_codes_of_a_claim(world: World) -> None:
    """Every reason a claim is refused has its code, and none names a newer revision."""
    ended = await world.submit()
    await world.write(await world.claim(ended), ending=Complete(Raw(b"1")))
    with refused("run_finished"):
        await world.claim(ended, 0)
    cancelled = await world.submit()
    await world.cancel(cancelled)
    with refused("cancelled"):
        await world.claim(cancelled, 0)
    stalled = await world.submit()
    await world.write(await world.claim(stalled), ending=Stall("divergence"))
    with refused("not_claimable"):
        await world.claim(stalled, 2)
    running = await world.submit()
    await world.claim(running)
    with refused("not_claimable"):
        await world.claim(running, 1)
    with refused("stale_delivery"):
        await world.claim(running, 7)
    with refused("run_not_found"):
        await world.claim(identity.new("run"), 0)


async def test_claim_token_is_for_one_run_at_one_revision(world: World) -> None:
    """A delivery's token claims nothing but its own run at its own revision."""
    run_id, other = await world.submit(), await world.submit()
    tokens = {
        "another run": world.keys.claim_token(other, 0),
        "another revision": world.keys.claim_token(run_id, 1),
        "a write token": world.keys.write_token(run_id, 0, "clm_a"),
        "another server": ServerKeys.generated().claim_token(run_id, 0),
        "nothing": "",
        "no ASCII": "pmc_\udc80",
    }
    request = ClaimRun(0, "clm_a", ExecutorInfo("e"), 1_000)
    for token in tokens.values():
        with refused("unauthorized"):
            await claims.claim(world.store, world.keys, world.settings.recovery, run_id, request, token)
    assert world.status(run_id) == ("queued", 0)


async def test_seed_semantics(world: World) -> None:
    """A holds 5, recovery releases to 6, B claims and runs at 7: A's report at 5 is a revision_conflict."""
    run_id = await world.submit()
    for _ in range(2):
        await world.claim(run_id)
        await world.free(run_id)
    a = await world.claim(run_id)
    assert a.revision == 5
    world.elapse(IDLE_MS + 5_000)
    assert (await world.recovers())["released"] == 1
    assert world.status(run_id) == ("queued", 6)
    b = await world.claim(run_id)
    assert b.revision == 7
    with refused("revision_conflict"):
        await world.write(a, task("charge"))
    with refused("revision_conflict"):
        await world.write(a, ending=Complete(Raw(b'"a"')))
    assert await world.is_held(b)
    await world.write(b, task("charge"), ending=Complete(Raw(b'"b"')))
    assert world.run(run_id).result == b'"b"'
    assert len(world.records(run_id)) == 1


async def test_claims_belong_to_claim_ids(world: World) -> None:
    """C17: two executors of one name hold two claims; ending one leaves the other."""
    twin = ExecutorInfo("pod-0", host="pod-0")
    first, second = await world.submit(), await world.submit()
    a = await world.claim(first, executor=twin)
    b = await world.claim(second, executor=twin)
    await world.write(a, ending=Release("drain"))
    assert not await world.is_held(a)
    assert await world.is_held(b)
    c = await world.claim(first, executor=twin)
    with refused("revision_conflict"):
        await world.write(a, task())
    assert await world.is_held(c)


async def test_refresh_answers_per_claim(world: World) -> None:
    """I3: one call tells each claim held, or lost with its code, and the held ones are alive from now."""
    ids = [await world.submit() for _ in range(4)]
    kept, released, cancelled, ended = [await world.claim(run_id) for run_id in ids]
    await world.free(released.run_id)
    await world.cancel(cancelled.run_id)
    await world.write(ended, ending=Complete(Raw(b"1")))
    gone = world.forged(kept, run_id=identity.new("run"))
    answer = await world.refresh(kept, released, cancelled, ended, gone)
    assert [(held.run_id, held.expected_revision) for held in answer.held] == [(kept.run_id, 1)]
    assert sorted(answer.lost, key=lambda lost: lost.run_id) == sorted(
        [
            Lost(released.run_id, 1, "revision_conflict"),
            Lost(cancelled.run_id, 1, "cancelled"),
            Lost(ended.run_id, 1, "revision_conflict"),
            Lost(gone.run_id, 1, "run_not_found"),
        ],
        key=lambda lost: lost.run_id,
    )


async def test_refresh_of_a_lost_claim_keeps_nothing_alive(world: World) -> None:
    """C12: the former owner's refresh is lost and does not touch the new owner's claim."""
    run_id = await world.submit()
    old = await world.claim(run_id)
    await world.free(run_id)
    new = await world.claim(run_id)
    before = world.entry(run_id).refreshed_at
    world.elapse(50_000)
    assert not await world.is_held(old)
    assert not await world.is_held(world.forged(old, revision=new.revision))
    assert not await world.is_held(world.forged(new, revision=old.revision))
    assert world.entry(run_id).refreshed_at == before
    unknown = world.forged(new, run_id=identity.new("run"))
    assert (await world.refresh(unknown)).lost == [Lost(unknown.run_id, new.revision, "run_not_found")]
    world.elapse(50_000)
    assert (await world.recovers())["released"] == 1


async def test_refresh_with_a_wrong_token_is_unknown(world: World) -> None:
    """A claim whose token is wrong is neither held nor lost, and is not kept alive."""
    claim = await world.claim(await world.submit())
    stamped = world.entry(claim.run_id).refreshed_at
    world.elapse(10_000)
    for token in ("", "pmw_no", world.keys.claim_token(claim.run_id, claim.revision)):
        answer = await world.refresh(claim._replace(token=token))
        assert (answer.held, answer.lost) == ([], [])
    assert world.entry(claim.run_id).refreshed_at == stamped


async def test_refresh_of_nothing(world: World) -> None:
    """An empty refresh has an empty answer."""
    answer = await claims.refresh(world.store, world.keys, Refresh([]))
    assert (answer.held, answer.lost) == ([], [])


async def test_records_beyond_the_grant_are_paged(world: World) -> None:
    """A history of more than 1 000 records reaches the holder in pages, none twice, none left out."""
    run_id = await world.submit()
    claim = await world.claim(run_id)
    for start in range(0, 2_100, 700):
        await world.write(claim, *(task("step", number) for number in range(start, start + 700)))
    await world.write(claim, ending=Release("handoff"))
    grant = await world.grant(run_id, 2, "clm_b")
    seen = [record.seq for record in grant.records]
    after = grant.records_after
    assert len(seen) == 1_000
    while after is not None:
        page, after = await claims.records_for_claim(world.store, world.keys, run_id, grant.token, after)
        seen += [record.seq for record in page]
    assert seen == list(range(1, 2_101))


async def test_a_grant_is_at_most_four_mebibytes(world: World) -> None:
    """Large records page by size, one record at least on each page."""
    run_id = await world.submit()
    claim = await world.claim(run_id)
    big = b'"' + b"x" * 1_000_000 + b'"'
    for number in range(6):
        await world.write(claim, task("blob", number, big))
    await world.write(claim, ending=Release("handoff"))
    grant = await world.grant(run_id, 2, "clm_b")
    assert 1 <= len(grant.records) <= 4
    assert grant.records_after == grant.records[-1].seq
    rest, after = await claims.records_for_claim(world.store, world.keys, run_id, grant.token, grant.records_after)
    assert len(grant.records) + len(rest) == 6
    assert after is None


async def test_records_are_for_the_current_claim_only(world: World) -> None:
    """The page is refused to a former owner, to anybody when nobody holds the run, and for a run that is not there."""
    run_id = await world.submit()
    old = await world.claim(run_id)
    await world.free(run_id)
    with refused("unauthorized"):
        await claims.records_for_claim(world.store, world.keys, run_id, old.token, 0)
    new = await world.claim(run_id)
    with refused("unauthorized"):
        await claims.records_for_claim(world.store, world.keys, run_id, old.token, 0)
    assert await claims.records_for_claim(world.store, world.keys, run_id, new.token, 0) == ([], None)
    await world.write(new, ending=Complete(Raw(b"1")))
    with refused("unauthorized"):
        await claims.records_for_claim(world.store, world.keys, run_id, new.token, 0)
    with refused("run_not_found"):
        await claims.records_for_claim(world.store, world.keys, identity.new("run"), new.token, 0)


async def test_history_names_the_executor(world: World) -> None:
    """The move to running says which executor claimed, and from which push."""
    run_id = await world.submit()
    await world.claim(run_id, executor=ExecutorInfo("lambda-1", "lambda", "host-1", "python/1"), push_number=3)
    assert details(world.history(run_id)[1]) == {
        "executor": {"id": "lambda-1", "kind": "lambda", "host": "host-1", "sdk": "python/1"},
        "pushNumber": 3,
    }
