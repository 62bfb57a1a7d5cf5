"""The one write of a claim holder: records, their order, endings, repeats and the fence."""

import asyncio

import msgspec
import pytest
from msgspec import Raw

from dispatcher.settings import Runs, Stalling
from endpoint_sdk.wire import identity
from endpoint_sdk.wire.messages import Complete, Ending, ErrorObject, Fail, Progressed, RecordIn, Release, Stall
from tests.integration.world import IDLE_MS, World, details, failed, refused, started, task

ENDINGS: dict[str, tuple[Ending, str]] = {
    "complete": (Complete(Raw(b'{"ok": true}')), "completed"),
    "fail": (Fail(ErrorObject("Declined", "no funds", {"code": 7})), "failed"),
    "release": (Release("handoff"), "queued"),
    "stall": (Stall("divergence", {"expected": "a"}), "stalled"),
}


async def test_records_are_numbered_in_the_order_they_arrive(world: World) -> None:
    """Each new record has the next number of the run, over calls and over claims."""
    claim = await world.claim(await world.submit())
    await world.write(claim, task("a"), task("b"))
    await world.write(claim, task("c"), ending=Release("handoff"))
    second = await world.claim(claim.run_id)
    await world.write(second, task("d"))
    assert [(row.seq, row.name, row.claim_id) for row in world.records(claim.run_id)] == [
        (1, "a", claim.id),
        (2, "b", claim.id),
        (3, "c", claim.id),
        (4, "d", second.id),
    ]


async def test_record_keeps_every_field(world: World) -> None:
    """What an executor writes comes back as written."""
    claim = await world.claim(await world.submit())
    written = RecordIn(
        "task",
        "charge",
        "0123456789abcdef",
        3,
        "ended",
        "failed",
        2,
        error=ErrorObject("Declined", "no", {"cents": 1}),
        preview="charge(1)",
        started_at="2026-12-01T10:00:00.000Z",
        finished_at="2026-12-01T10:00:01.500Z",
        next_attempt_at="2026-12-01T12:00:05.000+02:00",
    )
    await world.write(claim, written, ending=Release("handoff"))
    [record] = (await world.grant(claim.run_id, 2, "clm_b")).records
    assert msgspec.structs.asdict(record) == {
        **msgspec.structs.asdict(written),
        "seq": 1,
        "claim_id": claim.id,
        "next_attempt_at": "2026-12-01T10:00:05.000Z",
    }


async def test_repeat_of_a_record_is_accepted_and_stored_once(world: World) -> None:
    """I6: a record sent again under its claim, alone or among new ones or twice in a call, is one row."""
    claim = await world.claim(await world.submit())
    await world.write(claim, task("a"), request_id="req_1")
    answer = await world.write(claim, task("a"), request_id="req_1")
    assert answer == Progressed(1)
    await world.write(claim, task("a"), task("b"), task("b"))
    assert [(row.seq, row.name) for row in world.records(claim.run_id)] == [(1, "a"), (2, "b")]


async def test_first_value_of_a_record_stays(world: World) -> None:
    """Records are insert-only: a later copy with another value changes nothing."""
    claim = await world.claim(await world.submit())
    await world.write(claim, task("a", value=b"1"))
    await world.write(claim, task("a", value=b"2"))
    assert [row.value for row in world.records(claim.run_id)] == [b"1"]


async def test_phases_and_attempts_have_addresses_of_their_own(world: World) -> None:
    """A started record, its outcome and the next attempt stand beside one another."""
    claim = await world.claim(await world.submit())
    await world.write(claim, started(), failed(), task(attempt=2))
    assert [(row.phase, row.attempt) for row in world.records(claim.run_id)] == [
        ("started", 1),
        ("ended", 1),
        ("ended", 2),
    ]


async def test_record_of_another_claim_is_never_written_again(world: World) -> None:
    """I7: an address recorded under an earlier claim is refused as a whole call, and nothing of the call is stored."""
    first = await world.claim(await world.submit())
    await world.write(first, task("a"), ending=Release("handoff"))
    second = await world.claim(first.run_id)
    with refused("record_conflict"):
        await world.write(second, task("b"), task("a"), ending=Complete(Raw(b"1")))
    assert [row.name for row in world.records(first.run_id)] == ["a"]
    assert await world.is_held(second)


async def test_a_start_record_of_another_claim_is_refused(world: World) -> None:
    """I7: an at-most-once task started under a lost claim cannot be started under the next."""
    first = await world.claim(await world.submit())
    await world.write(first, started())
    await world.free(first.run_id)
    grant = await world.grant(first.run_id, 2, "clm_b")
    assert [(record.phase, record.claim_id) for record in grant.records] == [("started", first.id)]
    second = world.forged(first, revision=3, id="clm_b")
    with refused("record_conflict"):
        await world.write(second, started())


async def test_wrong_tokens_write_nothing(world: World) -> None:
    """A write needs the write token of exactly its run, revision and claim id."""
    claim = await world.claim(await world.submit())
    others = [
        world.forged(claim, id="clm_other").token,
        world.forged(claim, revision=2).token,
        world.keys.claim_token(claim.run_id, 0),
        "",
    ]
    for token in others:
        with refused("unauthorized"):
            await world.write(claim._replace(token=token), task())
    assert world.records(claim.run_id) == []


async def test_fence_is_revision_and_claim_id(world: World) -> None:
    """I2: with a valid token, another claim id at the right revision and the right one at another are both refused."""
    old = await world.claim(await world.submit())
    await world.free(old.run_id)
    new = await world.claim(old.run_id)
    for claim in (
        old,
        world.forged(old, revision=new.revision),
        world.forged(new, revision=1),
        world.forged(new, id="x"),
    ):
        with refused("revision_conflict"):
            await world.write(claim, task())
        for ending, _ in ENDINGS.values():
            with refused("revision_conflict"):
                await world.write(claim, ending=ending)
    assert world.records(old.run_id) == []
    assert world.status(old.run_id) == ("running", 3)


async def test_refusals_name_no_newer_revision(world: World) -> None:
    """I2: a fenced-out writer learns nothing it could go on under."""
    old = await world.claim(await world.submit())
    await world.free(old.run_id)
    await world.claim(old.run_id)
    with pytest.raises(Exception, match="no longer holds") as caught:
        await world.write(old, task())
    assert "3" not in str(caught.value)
    assert getattr(caught.value, "details", "missing") is None


async def test_refusals_after_cancel_and_for_unknown_runs(world: World) -> None:
    """A cancelled run answers `cancelled`, a run that is not there `run_not_found`."""
    claim = await world.claim(await world.submit())
    await world.cancel(claim.run_id)
    with refused("cancelled"):
        await world.write(claim, task(), ending=Complete(Raw(b"1")))
    with refused("run_not_found"):
        await world.write(world.forged(claim, run_id=identity.new("run")), task())
    assert world.records(claim.run_id) == []


@pytest.mark.parametrize("kind", ENDINGS)
async def test_ending_ends_the_claim(world: World, kind: str) -> None:
    """Each ending moves the run once, to its status, with records and ending in one transaction."""
    ending, status = ENDINGS[kind]
    claim = await world.claim(await world.submit())
    answer = await world.write(claim, task(), ending=ending, request_id="req_end")
    assert answer == Progressed(2)
    assert world.status(claim.run_id) == (status, 2)
    assert world.history(claim.run_id)[2].request_id == "req_end"
    assert len(world.records(claim.run_id)) == 1
    assert not await world.is_held(claim)


@pytest.mark.parametrize("kind", ENDINGS)
async def test_repeat_of_an_ending_is_answered_as_before(world: World, kind: str) -> None:
    """I6: a repeated ending is 200 with the same revision, at once, and after the run went on without its sender."""
    ending, _ = ENDINGS[kind]
    claim = await world.claim(await world.submit())
    first = await world.write(claim, task(), ending=ending, request_id="req_end")
    assert await world.write(claim, task(), ending=ending, request_id="req_end") == first
    if kind == "stall":
        await world.requeue(claim.run_id)
    if kind in {"stall", "release"}:
        await world.claim(claim.run_id)
        assert await world.write(claim, task(), ending=ending, request_id="req_end") == first
    else:
        with refused("revision_conflict"):
            await world.write(claim, ending=ending, request_id="req_other")
    assert len(world.records(claim.run_id)) == 1


async def test_concurrent_copies_of_an_ending_apply_once(world: World) -> None:
    """I6: ten copies of a final write at once are ten equal answers and one move."""
    claim = await world.claim(await world.submit())
    answers = await asyncio.gather(
        *(world.write(claim, task(), ending=Complete(Raw(b"1")), request_id="req_end") for _ in range(10))
    )
    assert answers == [Progressed(2)] * 10
    assert world.status(claim.run_id) == ("completed", 2)


async def test_result_and_error_are_stored(world: World) -> None:
    """A completed run has its result, a failed one its error and reason, without the traceback nobody asked for."""
    done = await world.claim(await world.submit())
    await world.write(done, ending=Complete(Raw(b'{"a": 1}')))
    assert world.run(done.run_id).result == b'{"a": 1}'
    broken = await world.claim(await world.submit())
    error = ErrorObject("Declined", "no", {"cents": 5}, retryable=False, traceback="secret line")
    await world.write(broken, ending=Fail(error))
    row = world.run(broken.run_id)
    assert row.reason == "Declined"
    assert row.error is not None
    assert msgspec.json.decode(row.error, type=ErrorObject) == msgspec.structs.replace(error, traceback=None)
    assert row.finished_at is not None


async def test_tracebacks_are_kept_when_asked_for(world: World) -> None:
    """With `runs.recordTracebacks` the traceback of a failure is stored."""
    world.settings = world.settings.model_copy(update={"runs": Runs(record_tracebacks=True)})
    claim = await world.claim(await world.submit())
    await world.write(claim, ending=Fail(ErrorObject("Boom", "x", traceback="line 1")))
    assert b"line 1" in (world.run(claim.run_id).error or b"")


async def test_any_accepted_write_counts_as_a_refresh(world: World) -> None:
    """An empty call, a note, a repeated and a new record each keep the claim alive."""
    claim = await world.claim(await world.submit())
    await world.write(claim, task("a"))
    for records, note in (([], None), ([], "half way"), ([task("a")], None), ([task("b")], None)):
        world.elapse(IDLE_MS - 10_000)
        await world.write(claim, *records, note=note)
        world.elapse(20_000)
        assert (await world.recovers())["released"] == 0
    assert world.run(claim.run_id).note == "half way"


async def test_notes_come_with_endings_too(world: World) -> None:
    """A note sent with a final write is what the run shows."""
    for ending in (Complete(Raw(b"1")), Release("handoff"), Stall("divergence")):
        claim = await world.claim(await world.submit())
        await world.write(claim, ending=ending, note="last words")
        assert world.run(claim.run_id).note == "last words"


@pytest.mark.parametrize(
    ("reason", "delay_ms"), [("handoff", 0), ("drain", 0), ("pause", 0), ("unknown_version", 30_000)]
)
async def test_redelivery_delay_by_reason(world: World, reason: str, delay_ms: int) -> None:
    """A hand-off, a drain and a pause are redelivered at once, an unknown version after 30 s."""
    claim = await world.claim(await world.submit())
    await world.write(claim, ending=Release(reason))  # type: ignore[arg-type]
    entry = world.entry(claim.run_id)
    assert entry.next_publish_at - entry.queued_at == pytest.approx(delay_ms, abs=1_000)
    assert entry.publisher is None


async def test_a_release_may_ask_for_its_own_delay(world: World) -> None:
    """`delayMs` of a release is when it is delivered again; 0 is 0."""
    for delay_ms in (0, 7_000):
        claim = await world.claim(await world.submit())
        await world.write(claim, ending=Release("unknown_version", delay_ms))
        entry = world.entry(claim.run_id)
        assert entry.next_publish_at - entry.queued_at == pytest.approx(delay_ms, abs=1_000)


async def test_a_release_without_a_record_is_counted(world: World) -> None:
    """I10: only a release with no new record under its claim counts; one for a pause does not."""
    run_id = await world.submit()
    await world.write(await world.claim(run_id), ending=Release("handoff"))
    assert world.entry(run_id).endings == 1
    await world.write(await world.claim(run_id), ending=Release("pause"))
    assert world.entry(run_id).endings == 1
    await world.write(await world.claim(run_id), ending=Release("drain"))
    assert world.entry(run_id).endings == 2
    claim = await world.claim(run_id)
    await world.write(claim, task("a"))
    await world.write(claim, ending=Release("drain"))
    assert world.entry(run_id).endings == 0


async def test_a_repeated_record_is_no_progress(world: World) -> None:
    """I10: records of an earlier call of the claim count, a claim that only repeats what is stored does not exist."""
    run_id = await world.submit()
    world.set_entry(run_id, endings=4, kills=2)
    claim = await world.claim(run_id)
    await world.write(claim, task("a"), ending=Release("handoff"))
    assert (world.entry(run_id).endings, world.entry(run_id).kills) == (0, 0)


async def test_a_new_record_clears_the_counts(world: World) -> None:
    """I10: a new record is progress, seen in the counters at once; a refresh or an empty call is none."""
    run_id = await world.submit()
    world.set_entry(run_id, endings=4, kills=2)
    claim = await world.claim(run_id)
    await world.refresh(claim)
    await world.write(claim)
    assert (world.entry(run_id).endings, world.entry(run_id).kills) == (4, 2)
    await world.write(claim, task("a"))
    assert (world.entry(run_id).endings, world.entry(run_id).kills) == (0, 0)


async def test_counted_releases_stall_the_run(world: World) -> None:
    """I10: the release that reaches the limit stalls the run; its sender is answered as for any release."""
    world.configure(stalling=Stalling(max_endings_without_progress=3))
    run_id = await world.submit()
    for _ in range(2):
        await world.write(await world.claim(run_id), ending=Release("handoff"))
    claim = await world.claim(run_id)
    answer = await world.write(claim, ending=Release("handoff"), request_id="req_end")
    assert answer == Progressed(claim.revision + 1)
    assert world.status(run_id) == ("stalled", 6)
    assert world.run(run_id).reason == "undeliverable"
    assert details(world.history(run_id)[-1])["endings"] == 3
    assert await world.write(claim, ending=Release("handoff"), request_id="req_end") == answer
