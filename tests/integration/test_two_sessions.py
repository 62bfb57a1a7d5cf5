"""What two sessions of PostgreSQL under READ COMMITTED do to one another, and what SQLite does instead.

A statement's snapshot is older than the lock it waits for: each test is an experiment in which a store that forgot it
would lose a record, tell an owner that it lost, or stop in a deadlock.
"""

import asyncio
import sqlite3
import threading

import pytest
import sqlalchemy as sa
from msgspec import Raw

from dispatcher import errors, submission
from dispatcher.store import Session, Statement, Store, backlog, entries, runs
from dispatcher.store import endpoints as endpoint_store
from dispatcher.store.drivers import SqliteDriver
from endpoint_sdk.wire.messages import Complete, Release
from endpoint_sdk.wire.operating import SubmitRun
from tests.integration.sessions import Pair
from tests.integration.world import IDLE_MS, NAMESPACE, World, claims, refused, task

FLUSH = Statement(sa.select(sa.func.pg_stat_force_next_flush()))
UPDATES = Statement(sa.text("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'outbox_entry'"))


async def test_progress_uncommitted_while_recovery_looks(pair: Pair) -> None:
    """A: recovery skips an entry whose holder is writing, and finds it fresh afterwards."""
    claim = await pair.one.claim(await pair.one.submit())
    pair.one.elapse(IDLE_MS + 1_000)
    write = await pair.begin(pair.one.write(claim, task()))
    assert (await pair.other.recovers())["released"] == 0
    pair.commit()
    await write
    assert (await pair.other.recovers())["released"] == 0
    assert await pair.other.is_held(claim)


async def test_release_uncommitted_while_the_holder_writes(pair: Pair) -> None:
    """A: a write that waited for the release of its claim is refused, and the next owner's history is complete."""
    claim = await pair.one.claim(await pair.one.submit())
    await pair.one.write(claim, task("a"))
    freed = await pair.begin(pair.one.free(claim.run_id))
    write = await pair.blocks(pair.other.write(claim, task("b"), ending=Complete(Raw(b"1"))))
    pair.commit()
    await freed
    with refused("revision_conflict"):
        await write
    grant = await pair.other.grant(claim.run_id, 2, "clm_b")
    assert [record.name for record in grant.records] == ["a"]


async def test_final_write_repeated_while_the_first_is_uncommitted(pair: Pair) -> None:
    """I6: a copy of a final write that waited for the first finds its request id and is answered alike."""
    claim = await pair.one.claim(await pair.one.submit())
    ending = Complete(Raw(b"1"))
    first = await pair.begin(pair.one.write(claim, task(), ending=ending, request_id="req_1"))
    second = await pair.blocks(pair.other.write(claim, task(), ending=ending, request_id="req_1"))
    pair.commit()
    assert await first == await second
    assert len(pair.other.records(claim.run_id)) == 1


async def test_claim_answer_holds_what_was_committed_while_it_waited(pair: Pair) -> None:
    """C: a claim that waited for the entry reads the history later than its lock: records written meanwhile are in."""
    old = await pair.one.claim(await pair.one.submit())
    await pair.one.write(old, task("a"))
    write = await pair.begin(pair.one.write(old, task("b"), ending=Release("handoff")))
    claim = await pair.blocks(pair.other.grant(old.run_id, 2, "clm_b"))
    pair.commit()
    await write
    grant = await claim
    assert grant.revision == 3
    assert [record.name for record in grant.records] == ["a", "b"]


async def test_two_claims_of_one_revision(pair: Pair) -> None:
    """I1: the claim that waited for another's commit is refused, and finds the winner in the later statement."""
    run_id = await pair.one.submit()
    winner = await pair.begin(pair.one.claim(run_id, 0))
    loser = await pair.blocks(pair.other.claim(run_id, 0))
    pair.commit()
    assert (await winner).revision == 1
    with refused("already_claimed"):
        await loser


async def test_claim_repeated_while_the_first_is_uncommitted(pair: Pair) -> None:
    """I6: a copy of a claim that waited for the first is granted the same."""
    run_id = await pair.one.submit()
    first = await pair.begin(pair.one.claim(run_id, 0, "clm_a"))
    second = await pair.blocks(pair.other.claim(run_id, 0, "clm_a"))
    pair.commit()
    assert await first == await second


async def test_refresh_batch_with_duplicates(pair: Pair) -> None:
    """D: the same claim three times in one refresh is held three times, and nobody is told that it lost."""
    first, second = [await pair.one.claim(await pair.one.submit()) for _ in range(2)]
    answer = await pair.one.refresh(first, first, second, first)
    assert sorted(held.run_id for held in answer.held) == sorted([first.run_id] * 3 + [second.run_id])
    assert answer.lost == []


async def test_record_batch_with_a_repeat_inside(pair: Pair) -> None:
    """D: a call that carries one record twice, and one stored before, stores each once and is accepted."""
    claim = await pair.one.claim(await pair.one.submit())
    await pair.one.write(claim, task("a"))
    await pair.one.write(claim, task("b"), task("a"), task("b"), task("c"))
    assert [(row.seq, row.name) for row in pair.one.records(claim.run_id)] == [(1, "a"), (2, "b"), (3, "c")]


async def test_cancel_waits_for_a_claim(pair: Pair) -> None:
    """E: entry, then run: a cancel that runs into a claim waits for it, then fences it; there is no deadlock."""
    run_id = await pair.one.submit()
    claim = await pair.begin(pair.one.claim(run_id, 0))
    cancel = await pair.blocks(pair.other.cancel(run_id))
    pair.commit()
    granted = await claim
    assert (await cancel).status == "cancelled"
    with refused("cancelled"):
        await pair.one.write(granted, task())


async def test_claim_waits_for_a_cancel(pair: Pair) -> None:
    """E: a claim that runs into a cancel waits for it and is refused with its code."""
    run_id = await pair.one.submit()
    cancel = await pair.begin(pair.one.cancel(run_id))
    claim = await pair.blocks(pair.other.claim(run_id, 0))
    pair.commit()
    assert (await cancel).status == "cancelled"
    with refused("cancelled"):
        await claim


async def test_an_operation_that_lost_its_entry_is_told_to_try_again(pair: Pair) -> None:
    """E: a release that waited while its run was claimed away and finished never locks against the order."""
    claim = await pair.one.claim(await pair.one.submit())
    done = await pair.begin(pair.one.write(claim, ending=Complete(Raw(b"1"))))
    freed = await pair.blocks(pair.other.free(claim.run_id))
    pair.commit()
    await done
    with refused("illegal_transition"):
        await freed


async def test_requeue_seen_between_two_locks_is_unavailable(pair: Pair) -> None:
    """E: an operator's call that saw no entry, then a queued run, does not touch it: 503, to be repeated."""
    claim = await pair.one.claim(await pair.one.submit())
    await pair.one.write(claim, ending=Complete(Raw(b"1")))
    run_id = await pair.one.submit()
    entry = pair.one.entry(run_id)
    pair.one.store.transact_blocking(lambda session: entries.delete(session, run_id))
    with refused("unavailable"):
        await pair.other.cancel(run_id)
    pair.one.store.transact_blocking(
        lambda session: entries.insert(
            session, entries.New(run_id, 0, entry.queue, entry.rank, entry.next_publish_at, 1)
        )
    )


async def test_claims_and_cancels_at_once(pair: Pair) -> None:
    """E: forty runs claimed and cancelled at the same moment end in forty cancels; every refusal has its code."""
    ids = [await pair.one.submit() for _ in range(40)]
    claims = [pair.one.claim(run_id, 0) for run_id in ids]
    cancels = [pair.other.cancel(run_id) for run_id in ids]
    answers = await asyncio.gather(
        *(call for both in zip(claims, cancels, strict=True) for call in both), return_exceptions=True
    )
    for answer in answers:
        assert not isinstance(answer, BaseException) or getattr(answer, "code", "") == "cancelled", answer
    assert {pair.one.status(run_id)[0] for run_id in ids} == {"cancelled"}


async def test_a_deadlock_is_retried(pair: Pair) -> None:
    """40P01 reaches no caller: two operations that lock in opposite orders both succeed."""
    first, second = await pair.one.submit(), await pair.one.submit()
    meet = threading.Barrier(2)
    tries = []

    def locking(session: Session, before: str, after: str) -> str:
        tries.append(before)
        entries.lock(session, before)
        if len(tries) <= 2:
            meet.wait(10)
        entries.lock(session, after)
        return after

    answers = await asyncio.gather(
        pair.one.store.transact(lambda session: locking(session, first, second)),
        pair.other.store.transact(lambda session: locking(session, second, first)),
    )
    assert list(answers) == [second, first]
    assert len(tries) == 3


async def test_batches_with_the_same_keys_in_opposite_orders(pair: Pair) -> None:
    """Two submit batches that name the same keys from both ends deadlock in the index and both succeed."""
    keys = [f"key-{number}" for number in range(50)]

    async def submit(world: World, order: list[str]) -> list[str]:
        requests = [(SubmitRun("order", version="1", idempotency_key=key), None) for key in order]
        found = await submission.submit_batch(world.store, NAMESPACE, requests, "tester")
        assert all(isinstance(item, submission.Submission) for item in found)
        return [item.run.id for item in found if isinstance(item, submission.Submission)]

    ours, theirs = await asyncio.gather(submit(pair.one, keys), submit(pair.other, keys[::-1]))
    assert ours == theirs[::-1]
    assert len(set(ours)) == 50


async def test_a_lock_held_for_long_is_unavailable(pair: Pair) -> None:
    """A write that waits longer than the lock timeout is 503, its outcome unknown to nobody: nothing was stored."""
    claim = await pair.one.claim(await pair.one.submit())
    first = await pair.begin(pair.one.write(claim, task("a")))
    with refused("unavailable"):
        await pair.other.write(claim, task("b"))
    pair.commit()
    await first
    assert [row.name for row in pair.one.records(claim.run_id)] == ["a"]


async def test_a_write_is_stamped_after_its_lock_wait(pair: Pair) -> None:
    """F: a write that waited is stamped when it got the lock, not when its transaction or statement began."""
    claim = await pair.one.claim(await pair.one.submit())
    first = await pair.begin(pair.one.write(claim, task()))
    second = await pair.blocks(pair.other.write(claim, task("ship")))
    waited = pair.other.now()
    pair.commit()
    await first
    await second
    stamped = pair.other.entry(claim.run_id).refreshed_at
    assert stamped is not None
    assert stamped >= waited


async def test_one_locked_entry_does_not_hold_up_a_refresh(pair: Pair) -> None:
    """F: a refresh answers at once; the claim whose entry is being written is in neither list, the others are held."""
    busy, free = await claims(pair.one, 2)
    write = await pair.begin(pair.one.write(busy, task()))
    answer = await pair.other.refresh(busy, free)
    pair.commit()
    await write
    assert [held.run_id for held in answer.held] == [free.run_id]
    assert answer.lost == []
    assert await pair.other.is_held(busy)


async def test_relays_skip_what_another_leases(pair: Pair) -> None:
    """C36: four claimers of ten at once get ten each of forty, none twice."""
    ids = [await pair.one.submit() for _ in range(40)]
    queue, now = pair.one.entry(ids[0]).queue, pair.one.now()
    meet = threading.Barrier(4)

    def lease(session: Session) -> list[str]:
        found = backlog.lease(session, queue, "ep", way=0, ways=1, limit=10, now=now + 60_000, until=now + 90_000)
        meet.wait(10)
        return [entry.run_id for entry in found]

    taken = await asyncio.gather(*(world.store.transact(lease) for world in (pair.one, pair.other) * 2))
    assert [len(ids) for ids in taken] == [10, 10, 10, 10]
    assert {run_id for part in taken for run_id in part} == set(ids)


async def test_two_relays_never_overfill_an_endpoint(pair: Pair) -> None:
    """maxInFlight is kept by the lease query: a relay that waited for the endpoint's row counts the other's leases."""
    given = endpoint_store.Configuration("e", "http://e", "generic", 15, True, [])
    pair.one.store.transact_blocking(lambda session: endpoint_store.insert(session, "ep", "*", "yaml", given))
    ids = [await pair.one.submit() for _ in range(40)]
    queue, now = pair.one.entry(ids[0]).queue, pair.one.now()

    def lease(session: Session) -> int:
        room = min(10, backlog.room(session, "ep"))
        found = backlog.lease(session, queue, "ep", way=0, ways=1, limit=room, now=now + 60_000, until=now + 90_000)
        return len(found)

    first = await pair.begin(pair.one.store.transact(lease))
    second = await pair.blocks(pair.other.store.transact(lease))
    pair.commit()
    assert (await first, await second) == (10, 5)


async def test_claim_and_lease_of_one_entry(pair: Pair) -> None:
    """A relay skips the entry a claim is taking; the outcome of an older push then finds a claimed entry."""
    run_id = await pair.one.submit()
    entry, now = pair.one.entry(run_id), pair.one.now()
    claim = await pair.begin(pair.one.claim(run_id, 0))
    leased = pair.other.store.transact_blocking(
        lambda session: backlog.lease(
            session, entry.queue, "ep", way=0, ways=1, limit=1, now=now + 60_000, until=now + 90_000
        )
    )
    assert leased == []
    pair.commit()
    await claim


async def test_refreshes_are_heap_only(pair: Pair) -> None:
    """H: refreshed_at is in no index and pages have room, so refreshes are heap-only updates."""
    claims = [await pair.one.claim(await pair.one.submit()) for _ in range(50)]
    pair.one.store.transact_blocking(lambda session: session.one(FLUSH))
    before = _updates(pair.one)
    for _ in range(20):
        await pair.one.refresh(*claims)
    after = _updates(pair.one)
    updates, heap_only = after[0] - before[0], after[1] - before[1]
    assert updates == 1_000
    assert heap_only >= 0.9 * updates


def _updates(world: World) -> tuple[int, int]:
    """Updates of the outbox so far, and how many of them were heap-only; every idle session has reported."""

    async def flush() -> None:
        meet = threading.Barrier(world.store.driver.threads)

        def operation(session: Session) -> None:
            meet.wait(10)
            session.one(FLUSH)

        await asyncio.gather(*(world.store.transact(operation) for _ in range(world.store.driver.threads)))

    thread = threading.Thread(target=asyncio.run, args=(flush(),))
    thread.start()
    thread.join()
    row = world.store.transact_blocking(lambda session: session.one(UPDATES))
    assert row is not None
    return int(row[0]), int(row[1])


# --- SQLite
def test_sqlite_begins_immediately(sqlite_url: str) -> None:
    """S: a transaction that reads first holds the write lock at once: nobody writes between its read and its write."""
    store = Store.open(sqlite_url)
    world = World(store)
    run_id = asyncio.run(world.submit())
    driver = store.driver
    assert isinstance(driver, SqliteDriver)

    def operation(session: Session) -> str:
        entries.lock(session, run_id)
        other = sqlite3.connect(driver.path, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("UPDATE run SET note = 'x'")
        other.close()
        runs.set_note(session, run_id, "mine")
        return "done"

    assert store.transact_blocking(operation) == "done"
    assert world.run(run_id).note == "mine"
    store.close()


def test_sqlite_serves_one_process(sqlite_url: str) -> None:
    """The file is one process's: a second store on it is refused at the door, and may come when the first has left."""
    first = Store.open(sqlite_url)
    with pytest.raises(errors.StartUpError) as caught:
        Store.open(sqlite_url)
    assert caught.value.code == "database_in_use"
    first.close()
    Store.open(sqlite_url).close()


def test_sqlite_locked_by_another_is_unavailable(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file another writer holds for longer than the timeout is 503; nothing was stored, and the store goes on."""
    store = Store.open(sqlite_url)
    world = World(store)
    store.transact_blocking(lambda session: session.run(Statement(sa.text("PRAGMA busy_timeout = 50"))))
    driver = store.driver
    assert isinstance(driver, SqliteDriver)
    other = sqlite3.connect(driver.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with refused("unavailable"):
        asyncio.run(world.submit())
    other.execute("ROLLBACK")
    other.close()
    assert asyncio.run(world.submit()).startswith("run_")
    store.close()
