"""Any order of calls, repeats of any earlier call included, against a model of who owns what.

The model is the contract in small: where it and the rows, or it and an answer, differ, an invariant is broken.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec import Raw

from dispatcher import endings as dispatcher_endings
from dispatcher import errors
from dispatcher.settings import Recovery
from dispatcher.store import Statement, Store, entries, schema
from endpoint_sdk.wire.messages import Complete, Ending, ErrorObject, Fail, Grant, RecordIn, Release, Stall
from tests.integration.machines import run_on_postgresql, run_on_sqlite
from tests.integration.model import Owned, Request
from tests.integration.world import IDLE_MS, Claim, World, task

DEADLINE_MS = 30_000


class Dispatch(RuleBasedStateMachine):
    """Rules are calls and time; every answer is checked as it comes, every row after each step."""

    runs = Bundle("runs")
    requests = Bundle("requests")
    claims = Bundle("claims")
    leases = Bundle("leases")

    def __init__(self, open_store: Callable[[], Store]) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.store = open_store()
        self.world = World(self.store, recovery=Recovery(max_releases_per_second=100_000))
        self.model: dict[str, Owned] = {}
        self.numbers = itertools.count()
        self.up = True
        self.up_since = 0
        self.world.add_endpoint()

    def teardown(self) -> None:
        self.world.set_clock(0)
        self.store.transact_blocking(lambda session: session.run(Statement(sa.delete(schema.run))))
        self.store.close()
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(work)

    def serve(self, request: Request) -> Any:
        """The answer to *request*, which is what the model says it must be."""
        before = self.world.now()
        expected = request.expect()
        try:
            answer = self.do(request.send())
        except errors.Refusal as refusal:
            answer = refusal.code
        got = (answer.revision, answer.claim_id) if isinstance(answer, Grant) else answer
        assert got == expected, f"{got} instead of {expected}"
        assert self.world.now() - before < 5_000, "the model takes a call for an instant"
        return answer

    # --- calls
    @initialize(target=runs)
    def first(self) -> Owned:
        return self._submit()

    @precondition(lambda self: len(self.model) < 3)  # few runs, so that much happens to each
    @rule(target=runs)
    def submit(self) -> Owned:
        return self._submit()

    def _submit(self) -> Owned:
        run = Owned(self.do(self.world.submit()))
        self.model[run.id] = run
        return run

    @rule(target=requests, run=runs)
    def claim(self, run: Owned) -> Request:
        """An executor claims the delivery of the run's present revision, and may not hear of it."""
        request = self._claim_request(run, run.revision, f"clm_{next(self.numbers)}")
        self.serve(request)
        return request

    @rule(target=requests, run=runs, late=st.integers(1, 4))
    def claim_late(self, run: Owned, late: int) -> Request:
        """An executor claims a delivery of an older revision."""
        request = self._claim_request(run, max(0, run.revision - late), f"clm_{next(self.numbers)}")
        self.serve(request)
        return request

    def _claim_request(self, run: Owned, revision: int, claim_id: str) -> Request:
        return Request(
            run,
            lambda: self.world.grant(run.id, revision, claim_id),
            lambda: run.claimed(revision, claim_id, self.world.now()),
        )

    @rule(target=claims, request=requests)
    def repeat(self, request: Request) -> Any:
        """Any earlier request arrives again: a client's retry, a copy of the network, a reply that was lost."""
        answer = self.serve(request)
        if isinstance(answer, Grant):
            return Claim(request.run.id, answer.revision, answer.claim_id, answer.token)
        return Claim(request.run.id, request.run.revision, "clm_never", "pmw_never")

    @rule(target=claims, run=runs)
    def take(self, run: Owned) -> Claim:
        """A claim whose holder heard of it; of a run that cannot be claimed, one that was never granted."""
        return self._take(run)

    def _take(self, run: Owned) -> Claim:
        claim_id = f"clm_{next(self.numbers)}"
        answer = self.serve(self._claim_request(run, run.revision, claim_id))
        never = Claim(run.id, run.revision, claim_id, "")
        return self.world.forged(never, revision=answer.revision if isinstance(answer, Grant) else run.revision)

    @rule(target=requests, claim=claims, ordinals=st.lists(st.integers(0, 3), max_size=3))
    def record(self, claim: Claim, ordinals: list[int]) -> Request:
        """The holder records tasks, maybe some it recorded before."""
        return self._write(claim, [task("step", ordinal) for ordinal in ordinals], None)

    @rule(
        target=requests,
        claim=claims,
        ordinals=st.lists(st.integers(0, 3), max_size=1),
        ending=st.sampled_from(
            [
                Complete(Raw(b"1")),
                Fail(ErrorObject("Boom", "x")),
                Release("handoff"),
                Release("pause"),
                Stall("divergence"),
            ]
        ),
    )
    def finish(self, claim: Claim, ordinals: list[int], ending: Ending) -> Request:
        """The holder ends its claim."""
        return self._write(claim, [task("step", ordinal) for ordinal in ordinals], ending)

    def _write(self, claim: Claim, written: list[RecordIn], ending: Ending | None) -> Request:
        run, request_id = self.model[claim.run_id], f"req_{next(self.numbers)}"
        claim = self.world.forged(claim)
        request = Request(
            run,
            lambda: self.world.write(claim, *written, ending=ending, request_id=request_id),
            lambda: run.written(claim, written, ending, request_id, self.world.now()),
        )
        self.serve(request)
        return request

    @rule(claims=st.lists(claims, max_size=4))
    def refresh(self, claims: list[Claim]) -> None:
        """One process refreshes what it thinks it holds."""
        known = [self.world.forged(claim) for claim in claims]
        answer = self.do(self.world.refresh(*known))
        expected = sorted((claim.run_id, claim.revision, self.model[claim.run_id].holds(claim)) for claim in known)
        got = [(held.run_id, held.expected_revision, True) for held in answer.held]
        got += [(lost.run_id, lost.expected_revision, False) for lost in answer.lost]
        assert sorted(got) == expected
        for lost in answer.lost:
            cancelled = self.model[lost.run_id].status == "cancelled"
            assert lost.code == ("cancelled" if cancelled else "revision_conflict")
        for claim in known:
            if self.model[claim.run_id].holds(claim):
                self.model[claim.run_id].alive_at = self.world.now()

    # --- relays
    @rule(target=leases, run=runs, route=st.sampled_from(["push", "redis"]))
    def lease(self, run: Owned, route: str = "push") -> entries.Entry | None:
        """A relay leases the run if it waits for a delivery."""
        entry, now = self.world.maybe_entry(run.id), self.world.now()
        if entry is None:
            return None
        self.world.set_entry(run.id, rank=-1)
        found = self.world.lease(entry.queue, now=now + 10**7, until=now + DEADLINE_MS, route=route)
        for leased in found:
            other = self.model[leased.run_id]
            assert other.status == "queued"
            assert other.deadline is None
            other.pushes += 1
            other.deadline, other.counts = now + DEADLINE_MS, route == "push"
            assert leased.revision == other.revision
        self.world.set_entry(run.id, rank=0)
        return found[0] if found else None

    @rule(leased=leases)
    def outcome(self, leased: entries.Entry | None) -> None:
        """A relay writes that a delivery failed, however late, however often."""
        if leased is None:
            return
        run = self.model[leased.run_id]
        mine = self._is_out(leased)
        changed = self.store.transact_blocking(
            lambda session: dispatcher_endings.unpublish(
                session,
                self.world.settings.publishing,
                self.world.settings.stalling,
                leased,
                reason="server-error",
                counted=leased.route == "push",
                delay_ms=None,
            )
        )
        assert changed == mine
        if mine:
            run.unpublished()

    @rule(leased=leases)
    def copied(self, leased: entries.Entry | None) -> None:
        """A relay writes that a broker took a delivery, however late, however often."""
        if leased is None or leased.route == "push":
            return
        mine, due_at = self._is_out(leased), self.world.now() + 60_000
        copy = entries.Handed(leased, due_at, 0)
        assert self.store.transact_blocking(lambda session: entries.note_copies(session, [copy])) == mine
        if mine:
            self.model[leased.run_id].deadline = due_at

    def _is_out(self, leased: entries.Entry) -> bool:
        """Whether the delivery *leased* is the run's last, and unclaimed."""
        run, current = self.model[leased.run_id], self.world.maybe_entry(leased.run_id)
        return (
            run.status == "queued"
            and run.deadline is not None
            and current is not None
            and (run.revision, current.push_number) == (leased.revision, leased.push_number)
        )

    # --- time and recovery
    @rule(ms=st.sampled_from([10_000, 40_000, 200_000]))
    def elapse(self, ms: int) -> None:
        """Time passes, some dispatcher being up."""
        if self.up:
            self.world.elapse(ms)
        else:
            self.world.advance(ms)

    @rule()
    def outage(self) -> None:
        """No dispatcher is up for ten minutes."""
        self.world.advance(600_000)
        self.up = False

    @rule()
    def recover(self) -> None:
        """A recovery tick releases exactly the claims silent for the idle timeout, and redelivers what is overdue."""
        if not self.up:
            self.up, self.up_since = True, self.world.now()
        now = self.world.now()
        for run in self.model.values():
            if run.status == "running" and now - max(run.alive_at, self.up_since) > IDLE_MS:
                run.release(None, kills=run.kills + 1, endings=run.endings + 1)
            elif run.deadline is not None and run.deadline <= now and now - self.up_since >= DEADLINE_MS:
                run.unpublished()
        self.do(self.world.recovers())

    @rule()
    def silence(self) -> None:
        """Nobody is heard of for longer than the idle timeout, and recovery looks."""
        self.elapse(200_000)
        self.recover()

    @rule(run=runs)
    def dies(self, run: Owned) -> None:
        """An executor claims and dies."""
        self._take(run)
        self.silence()

    @rule(target=requests, run=runs, ordinal=st.integers(0, 3))
    def works(self, run: Owned, ordinal: int) -> Request:
        """An executor claims and records one task."""
        return self._write(self._take(run), [task("step", ordinal)], None)

    @rule(run=runs)
    def pushed_in_vain(self, run: Owned) -> None:
        """A push of the run is answered with a failure, and answered so once more when the next is out."""
        first = self.lease(run)
        self.outcome(first)
        self.lease(run)
        self.outcome(first)

    # --- operators
    @rule(run=runs)
    def cancel_now(self, run: Owned) -> None:
        """Cancelling at once ends everything but what has ended."""
        expected = "run_finished" if run.status in {"completed", "failed"} else "cancelled"
        if run.status not in {"completed", "failed", "cancelled"}:
            run.move("cancelled")
        assert self._operated(self.world.cancel(run.id)) == expected

    @rule(run=runs)
    def free(self, run: Owned) -> None:
        """An operator takes a running run from its executor."""
        expected = "queued" if run.status == "running" else "illegal_transition"
        if run.status == "running":
            run.release(None, kills=run.kills, endings=run.endings)
        assert self._operated(self.world.free(run.id)) == expected

    @rule(run=runs)
    def requeue(self, run: Owned) -> None:
        """An operator gives a stalled run another life."""
        expected = "queued" if run.status == "stalled" else "illegal_transition"
        if run.status == "stalled":
            run.kills = run.endings = 0
            run.move("queued")
        assert self._operated(self.world.requeue(run.id)) == expected

    def _operated(self, work: Coroutine[Any, Any, Any]) -> str:
        try:
            status: str = self.do(work).status
        except errors.Refusal as refusal:
            return refusal.code
        return status

    # --- what is always true
    @invariant()
    def rows_are_sound(self) -> None:
        """The checker finds nothing (I1, I2, I7, I8)."""
        self.world.check()

    @invariant()
    def rows_are_the_models(self) -> None:
        """Every run is where the model has it, owned by whom the model says, counted as the model counts (I10)."""
        for run in self.model.values():
            assert self.world.status(run.id) == (run.status, run.revision)
            entry = self.world.maybe_entry(run.id)
            if entry is None:
                assert run.status not in {"queued", "running"}
                continue
            assert entry.claim_id == run.owner
            assert (entry.kills, entry.endings) == (run.kills, run.endings)
            assert (entry.status == "published") == (run.deadline is not None)

    @invariant()
    def records_stay(self) -> None:
        """I7: each address was recorded once, under the claim that owned the run then, and numbers have no gap."""
        for run in self.model.values():
            rows = self.world.records(run.id)
            assert {(row.name, row.ordinal): row.claim_id for row in rows} == run.records
            assert [row.seq for row in rows] == list(range(1, len(rows) + 1))

    @invariant()
    def history_knows_every_request(self) -> None:
        """I6: the request id of every move is found at its revision."""
        for run in self.model.values():
            assert {row.revision: row.request_id for row in self.world.history(run.id)} == run.requests


def test_machine_on_sqlite(sqlite_template: Path, tmp_path: Path) -> None:
    """On SQLite, no order of calls, repeats and time breaks the model."""
    run_on_sqlite(Dispatch, sqlite_template, tmp_path, examples=60, steps=40)


def test_machine_on_postgresql(empty_postgres_url: str) -> None:
    """On PostgreSQL, too."""
    run_on_postgresql(Dispatch, empty_postgres_url, examples=10, steps=30)
