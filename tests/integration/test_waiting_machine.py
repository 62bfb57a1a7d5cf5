"""Any order of parks, events, time, pauses, cancels and late copies: nothing is lost, doubled, or stuck (I9)."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec import Raw

from dispatcher import control, errors
from dispatcher.lifecycle import is_terminal
from dispatcher.settings import Recovery
from dispatcher.store import Statement, Store, schema
from endpoint_sdk.wire import identity
from endpoint_sdk.wire.messages import Cancelled, Complete, Ending, Park, Progressed, Release
from endpoint_sdk.wire.operating import Nothing
from tests.integration.machines import run_on_postgresql, run_on_sqlite
from tests.integration.waiting_model import Executor
from tests.integration.world import IDLE_MS, NAMESPACE, Claim, World, task

OPERATIONS = {"pause": control.pause, "resume": control.resume, "wake": control.wake}
WAITS = st.lists(st.sampled_from(["sleep", "retry", "a", "b", "late"]), min_size=1, max_size=4, unique=True)


class Sent(NamedTuple):
    """A write on the wire: it may come again, late and often."""

    claim: Claim
    ending: Ending
    request_id: str
    signal_seq: int
    first: Progressed


class Waiting(RuleBasedStateMachine):
    """One run, one executor that follows the contract, and everything that can happen to them."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.store = open_store()
        self.world = World(self.store, recovery=Recovery(max_releases_per_second=100_000))
        self.run_id = self.do(self.world.submit())
        self.executor: Executor | None = None
        self.parks: list[Sent] = []
        self.stored: list[tuple[str, str]] = []
        self.asked = False
        self.cancellable = False

    def teardown(self) -> None:
        try:
            self._comes_to_its_end()
        finally:
            self.world.set_clock(0)
            self.store.transact_blocking(lambda session: session.run(Statement(sa.delete(schema.run))))
            self.store.close()
            self.loop.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(work)

    @property
    def status(self) -> str:
        return self.world.run(self.run_id).status

    @initialize(cancelled=st.sampled_from([False, False, True]))
    def first(self, cancelled: bool) -> None:
        """Only some of the runs are ever cancelled, for little happens to a run after that."""
        self.cancellable = cancelled

    # --- an executor
    @rule(what=st.sampled_from(["records", "parks", "parks", "waits", "waits", "releases"]), kinds=WAITS)
    def executes(self, what: str, kinds: list[str]) -> None:
        """Whoever holds the run takes a step; if nobody does, somebody claims it. Few rules: each comes often."""
        if self.executor is None:
            if self.status == "queued":
                self.claim()
        elif what == "records":
            self.records()
        elif what == "parks":
            self.parks_once(kinds)
            self._comes_again(self.parks[-1:])
        elif what == "waits":
            self.parks_until_it_is_parked(kinds)
        else:
            self._write(Release("pause" if self.executor.stop == "pause" else "handoff"))

    def claim(self) -> None:
        """An executor claims the run; one that held it before is left with a claim that is gone."""
        grant = self.do(self.world.grant(self.run_id, self.world.run(self.run_id).revision, identity.new("clm")))
        self.executor = Executor(self.world, grant)

    def _write(self, ending: Ending | None = None, *, tasks: int = 0) -> Progressed | None:
        """The answer to the executor's write, None if it no longer holds its claim."""
        held = self.executor
        assert held is not None
        known = len([address for address in held.known if address[0] == "task"])
        records = [task("step", known + number) for number in range(tasks)]
        request_id = identity.new("req")
        write = self.world.write(
            held.claim,
            *records,
            ending=ending,
            request_id=request_id,
            signal_seq=held.signal_seq,
            signals_after=held.last_seq,
        )
        try:
            answer: Progressed = self.do(write)
        except errors.Conflict:
            self.executor = None
            return None
        held.known |= {("task", "step", known + number) for number in range(tasks)}
        if isinstance(ending, Park):
            self.parks.append(Sent(held.claim, ending, request_id, held.signal_seq, answer))
        if answer.revision != held.claim.revision:
            self.executor = None
        return answer

    def records(self) -> None:
        held = self.executor
        assert held is not None
        answer = self._write(tasks=1)
        if answer is not None:
            held.hears(answer)

    def parks_once(self, kinds: list[str]) -> None:
        """One park, of which the executor may not hear."""
        assert self.executor is not None
        self._write(Park(self.executor.wants(kinds), told=self.executor.stop == "cancel"))

    def parks_until_it_is_parked(self, kinds: list[str]) -> None:
        """An executor that hears its answers is refused only for what it did not know, and not for ever."""
        for _ in range(8):
            held = self.executor
            if held is None:
                return
            before = held.signal_seq, held.stop
            answer = self._write(Park(held.wants(kinds), told=held.stop == "cancel"))
            if answer is None or answer.parked:
                return
            assert held.hears(answer) or (held.signal_seq, held.stop) != before, "refused, and not told why"
        raise AssertionError("refused for ever")

    @precondition(lambda self: self.parks)
    @rule(back=st.integers(0, 3))
    def a_copy_comes_late(self, back: int) -> None:
        self._comes_again([self.parks[-1 - back % len(self.parks)]])

    def _comes_again(self, parks: list[Sent]) -> None:
        """A park once refused stays refused, and one that was accepted is answered as before."""
        for sent in parks:
            before = self.world.status(self.run_id)
            write = self.world.write(
                sent.claim, ending=sent.ending, request_id=sent.request_id, signal_seq=sent.signal_seq
            )
            try:
                answer: Progressed = self.do(write)
            except errors.Conflict:
                assert not sent.first.parked, "an accepted park is a repeat for ever"
            else:
                assert answer.parked == sent.first.parked
            assert self.world.status(self.run_id) == before

    # --- the others
    @precondition(lambda self: len(self.stored) < 12)
    @rule(name=st.sampled_from(["a", "b", "late"]), event_id=st.none() | st.sampled_from(["x", "y"]))
    def send(self, name: str, event_id: str | None) -> None:
        """An event is stored once for its id, unless the run has ended."""
        try:
            sent = self.do(self.world.send(self.run_id, name, event_id=event_id))
        except errors.Conflict:
            assert is_terminal(self.status)  # type: ignore[arg-type]
            return
        assert sent.stored == ((name, sent.event_id) not in self.stored)
        if sent.stored:
            self.stored.append((name, sent.event_id))

    @rule(verb=st.sampled_from(["pause", "resume", "resume", "wake", "cancel"]))
    def operates(self, verb: str) -> None:
        """An operator's call; where it makes no sense it is refused."""
        with contextlib.suppress(errors.Conflict):
            if verb != "cancel":
                self.operate(verb)
            elif self.cancellable:
                self.asked = self.do(self.world.cancel(self.run_id, now=False)).stop == "cancel"

    def operate(self, verb: str) -> None:
        self.do(OPERATIONS[verb](self.store, self.world.settings, NAMESPACE, self.run_id, Nothing(), "operator"))

    @rule(ms=st.sampled_from([1_000, 31_000, 61_000, IDLE_MS + 1_000]), recovers=st.booleans())
    def time_passes(self, ms: int, recovers: bool) -> None:
        """The timers look, and maybe recovery: of an executor that was silent for so long."""
        self.world.elapse(ms)
        self.do(self.world.fires())
        if recovers:
            self.do(self.world.recovers())

    # --- what holds after each step
    @invariant()
    def rows_are_sound(self) -> None:
        self.world.check()

    @invariant()
    def records_and_events_fit(self) -> None:
        """Numbers without a gap; each event that was handed out is one record, in the order in which events came."""
        rows = self.world.records(self.run_id)
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
        mailbox = self.world.mailbox(self.run_id)
        assert [(event.name, event.event_id) for event in mailbox] == self.stored
        assert [event.number for event in mailbox] == list(range(1, len(mailbox) + 1))
        for name in ("a", "b", "late"):
            handed = [event.consumed for event in mailbox if event.name == name and event.consumed is not None]
            outcomes = [row.seq for row in rows if (row.kind, row.name, row.state) == ("event", name, "completed")]
            assert handed == outcomes
            ordinals = [row.ordinal for row in rows if (row.kind, row.name) == ("event", name)]
            assert ordinals == list(range(len(ordinals)))

    @invariant()
    def a_request_stands(self) -> None:
        """An accepted cancel is not withdrawn while the run lives."""
        if self.asked and not is_terminal(self.status):  # type: ignore[arg-type]
            assert self.world.run(self.run_id).stop == "cancel"

    def _comes_to_its_end(self) -> None:
        """Whatever happened: a fair executor, and time, bring the run to an end."""
        for _ in range(12):
            status = self.status
            if is_terminal(status):  # type: ignore[arg-type]
                return
            if status == "paused":
                self.operate("resume")
            elif status == "stalled":
                self.do(self.world.requeue(self.run_id))
            elif status == "queued":
                self.claim()
            elif status == "running" and self.executor is not None:
                self._write(Cancelled() if self.executor.stop == "cancel" else Complete(Raw(b"1")))
            elif status == "running":
                self.time_passes(IDLE_MS + 1_000, recovers=True)
            else:
                self.operate("wake")
        raise AssertionError(f"the run is still {self.status}")


def test_machine_on_sqlite(sqlite_template: Path, tmp_path: Path) -> None:
    """On SQLite, no order of what can happen loses, doubles or stops anything."""
    run_on_sqlite(Waiting, sqlite_template, tmp_path, examples=80, steps=40)


def test_machine_on_postgresql(empty_postgres_url: str) -> None:
    """On PostgreSQL, too."""
    run_on_postgresql(Waiting, empty_postgres_url, examples=10, steps=30)
