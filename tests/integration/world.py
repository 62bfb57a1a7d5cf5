"""A dispatcher's services over one store, its clock in the test's hand, and the rows for the asking."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import pytest
import sqlalchemy as sa
from msgspec import Raw

from dispatcher import cancelling, errors, mailbox, operations, progress, submission
from dispatcher import claims as claiming
from dispatcher.recovery import RecoverOverdueOutboxEntries
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Daemons, Publishing, Recovery, Settings, Stalling
from dispatcher.stalling import StallUndeliverableRuns
from dispatcher.store import (
    Session,
    Statement,
    Store,
    backlog,
    endpoints,
    entries,
    events,
    fleet,
    invariants,
    records,
    runs,
    schema,
    transitions,
    waits,
)
from dispatcher.store.drivers import SqliteConnection, SqliteDriver
from dispatcher.timers import FireTimers
from endpoint_sdk.wire import clock, identity
from endpoint_sdk.wire.messages import (
    ClaimRun,
    Ending,
    ErrorObject,
    ExecutorInfo,
    Grant,
    HeldClaim,
    Park,
    Progress,
    Progressed,
    RecordIn,
    Refresh,
    Refreshed,
    WaitFor,
)
from endpoint_sdk.wire.operating import CancelRun, EventSent, ReleaseRun, RequeueRun, RunView, SendEvent, SubmitRun

IDLE_MS = 90_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NAMESPACE = "default"
ENDPOINT = "ep_1"


class Claim(NamedTuple):
    """A claim as its holder knows it; what a write of it names."""

    run_id: str
    revision: int
    id: str
    token: str

    def held(self) -> HeldClaim:
        return HeldClaim(self.run_id, self.revision, self.id, self.token)


@contextmanager
def refused(code: str) -> Iterator[None]:
    """The block is refused with exactly *code*."""
    with pytest.raises(errors.Refusal) as caught:
        yield
    assert caught.value.code == code
    assert type(caught.value) is errors.CODES[code]


def task(name: str = "charge", ordinal: int = 0, value: bytes = b"1", **fields: Any) -> RecordIn:
    """The ended record of a task that completed with *value*."""
    given = {"phase": "ended", "state": "completed", "attempt": 1, "value": Raw(value), **fields}
    return RecordIn("task", name, "abc", ordinal, **given)


def started(name: str = "charge", ordinal: int = 0) -> RecordIn:
    """The record an at-most-once task writes before its body."""
    return RecordIn("task", name, "abc", ordinal, "started", "started", 1)


def failed(name: str = "charge", ordinal: int = 0, message: str = "no", **fields: Any) -> RecordIn:
    """The ended record of a task that failed."""
    return RecordIn("task", name, "abc", ordinal, "ended", "failed", 1, error=ErrorObject("Boom", message), **fields)


class World:
    """Services over *store*; some dispatcher has been up for days, and stays up while time passes by `elapse`."""

    def __init__(self, store: Store, **sections: Any) -> None:
        self.store = store
        self.keys = ServerKeys.generated()
        self._shift_ms = 0
        self.configure(**sections)
        now = self.now()
        _without_fsync(store)
        self.sees(now, up_since=now - 30 * DAY_MS)

    def configure(
        self,
        recovery: Recovery | None = None,
        publishing: Publishing | None = None,
        stalling: Stalling | None = None,
    ) -> None:
        """The daemons run with these sections, the defaults for the rest."""
        daemons = Daemons(
            recover_overdue_outbox_entries=recovery or Recovery(),
            publish_pending_outbox_entries=publishing or Publishing(),
            stall_undeliverable_runs=stalling or Stalling(),
        )
        self.settings = Settings(daemons=daemons)
        self.recovery = RecoverOverdueOutboxEntries(
            self.store, self.settings.recovery, self.settings.publishing, self.settings.stalling
        )
        self.stalling = StallUndeliverableRuns(self.store, self.settings.stalling)
        self.timers = FireTimers(self.store)

    # --- time
    def now(self) -> int:
        """The database's clock."""
        return self.store.transact_blocking(lambda session: session.now())

    def monotonic(self) -> float:
        """A process's own clock, in seconds, that goes with the database's."""
        return time.monotonic() + self._shift_ms / 1_000

    def advance(self, ms: int) -> None:
        """The database's clock is *ms* further, backwards if negative; nobody was up in between."""
        self.set_clock(self._shift_ms + ms)

    def set_clock(self, shift_ms: int) -> None:
        """The database's clock is *shift_ms* ahead of the machine's."""
        self._shift_ms = shift_ms
        driver = self.store.driver
        if isinstance(driver, SqliteDriver):
            driver.shift_ms = self._shift_ms
            return
        statement = (
            "CREATE OR REPLACE FUNCTION pointsman_now() RETURNS bigint LANGUAGE sql VOLATILE AS "
            f"'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + ({self._shift_ms})'"
        )
        with driver.raw() as connection:
            connection.execute(statement)

    def elapse(self, ms: int) -> None:
        """As `advance`, another dispatcher having been well all the time."""
        self.advance(ms)
        self.sees(self.now())

    def sees(self, seen_at: int, up_since: int | None = None) -> None:
        """The fleet row says that somebody was well at *seen_at*, and *up_since* if given."""

        def operation(session: Session) -> None:
            since = fleet.get(session).up_since if up_since is None else up_since
            fleet.tick(session, seen_at=seen_at, up_since=since)

        self.store.transact_blocking(operation)

    # --- callers and operators
    async def submit(self, workflow: str = "order", **fields: Any) -> str:
        """The id of a run just submitted."""
        request = SubmitRun(workflow, **{"version": "1", "input": Raw(b'{"cents":1}'), **fields})
        return (await submission.submit(self.store, NAMESPACE, request, "tester", None)).run.id

    async def cancel(self, run_id: str, *, now: bool = True, reason: str = "") -> RunView:
        """An operator cancels the run, at once unless told otherwise."""
        return await cancelling.cancel(
            self.store, self.settings, NAMESPACE, run_id, CancelRun(reason=reason, now=now), "operator"
        )

    async def free(self, run_id: str, reason: str = "") -> RunView:
        """An operator releases the run's claim."""
        return await operations.release(self.store, self.settings, NAMESPACE, run_id, ReleaseRun(reason), "operator")

    async def requeue(self, run_id: str, **fields: Any) -> RunView:
        return await operations.requeue(self.store, self.settings, NAMESPACE, run_id, RequeueRun(**fields), "operator")

    async def send(self, run_id: str, name: str = "go", value: bytes = b"1", event_id: str | None = None) -> EventSent:
        """The answer to an event sent to the run."""
        return await mailbox.send(self.store, NAMESPACE, run_id, SendEvent(name, Raw(value), event_id), "sender")

    # --- executors
    async def grant(self, run_id: str, revision: int, claim_id: str, **fields: Any) -> Grant:
        """What the server answers to the claim of a delivery at *revision*."""
        executor = fields.pop("executor", ExecutorInfo("executor-1"))
        request = ClaimRun(revision, claim_id, executor, 30_000, **fields)
        token = self.keys.claim_token(run_id, revision)
        return await claiming.claim(self.store, self.keys, self.settings.recovery, run_id, request, token)

    async def claim(
        self, run_id: str, revision: int | None = None, claim_id: str | None = None, **fields: Any
    ) -> Claim:
        """The claim of the delivery at *revision*, by default the run's own."""
        expected = self.run(run_id).revision if revision is None else revision
        grant = await self.grant(run_id, expected, claim_id or identity.new("clm"), **fields)
        return Claim(run_id, grant.revision, grant.claim_id, grant.token)

    async def write(
        self,
        claim: Claim,
        *written: RecordIn,
        ending: Ending | None = None,
        request_id: str | None = None,
        note: str | None = None,
        signal_seq: int = 0,
        signals_after: int = 0,
    ) -> Progressed:
        """The answer to a progress call of *claim*."""
        request = Progress(
            claim.revision,
            claim.id,
            request_id or identity.new("req"),
            signal_seq=signal_seq,
            signals_after=signals_after,
            note=note,
            records=list(written),
            ending=ending,
        )
        return await progress.apply(self.store, self.keys, self.settings, claim.run_id, request, claim.token)

    async def park(self, claim: Claim, *waiting: WaitFor, told: bool = False, **fields: Any) -> Progressed:
        """The answer to a park of *claim* that waits for these."""
        return await self.write(claim, ending=Park(list(waiting), told), **fields)

    async def refresh(self, *held: Claim, step: str | None = None) -> Refreshed:
        """The answer to a refresh of these claims, which are in the task *step*."""
        claims = [msgspec.structs.replace(claim.held(), step=step) for claim in held]
        return await claiming.refresh(self.store, self.keys, Refresh(claims))

    async def is_held(self, claim: Claim) -> bool:
        """Whether the server answers held to a refresh of *claim* alone."""
        answer = await self.refresh(claim)
        assert len(answer.held) + len(answer.lost) == 1
        return bool(answer.held)

    def forged(self, claim: Claim, **changed: Any) -> Claim:
        """*claim* with other numbers and a token that fits them: what only the fence can refuse."""
        other = claim._replace(**changed)
        return other._replace(token=self.keys.write_token(other.run_id, other.revision, other.id))

    async def recovers(self) -> dict[str, int]:
        """What a recovery tick did."""
        return await self.recovery.once()

    async def fires(self) -> int:
        """How many runs a tick of the timers queued."""
        return (await self.timers.once())["fired"]

    def sleep(self, ms: int = HOUR_MS, name: str = "rest", ordinal: int = 0) -> WaitFor:
        """A sleep that ends *ms* from now."""
        return WaitFor("sleep", name, ordinal, deadline=clock.to_wire(self.now() + ms))

    def event(self, name: str = "go", ordinal: int = 0, *, within_ms: int | None = None) -> WaitFor:
        """A wait for an event, with a deadline if it has to come in time."""
        deadline = None if within_ms is None else clock.to_wire(self.now() + within_ms)
        return WaitFor("event", name, ordinal, deadline=deadline)

    def retry(self, ms: int = HOUR_MS, name: str = "charge", ordinal: int = 0) -> WaitFor:
        """A wait to try a task again *ms* from now."""
        return WaitFor("retry", name, ordinal, "abc", clock.to_wire(self.now() + ms))

    # --- rows
    def run(self, run_id: str) -> runs.Row:
        found = self.store.transact_blocking(lambda session: runs.get(session, run_id))
        assert found is not None
        return found

    def status(self, run_id: str) -> tuple[str, int]:
        """Where the run is: its status and revision."""
        row = self.run(run_id)
        return row.status, row.revision

    def entry(self, run_id: str) -> entries.Entry:
        found = self.maybe_entry(run_id)
        assert found is not None
        return found

    def maybe_entry(self, run_id: str) -> entries.Entry | None:
        return self.store.transact_blocking(lambda session: entries.get(session, run_id))

    def history(self, run_id: str) -> list[transitions.Transition]:
        return self.store.transact_blocking(lambda session: transitions.page(session, run_id, after=-1, limit=1_000))

    def records(self, run_id: str) -> list[records.Row]:
        return self.store.transact_blocking(lambda session: records.page(session, run_id, after=0, limit=20_000))

    def outcomes(self, run_id: str) -> list[tuple[str, str, int, str, bytes | None]]:
        """What the dispatcher recorded of the run's waits: kind, name, ordinal, state and value, in order."""
        return [
            (row.kind, row.name, row.ordinal, row.state, row.value)
            for row in self.records(run_id)
            if row.claim_id == "server"
        ]

    def waits(self, run_id: str) -> list[waits.Row]:
        return self.store.transact_blocking(lambda session: waits.of_run(session, run_id))

    def mailbox(self, run_id: str) -> list[events.Row]:
        return self.store.transact_blocking(lambda session: events.page(session, run_id, after=0, limit=1_000))

    def fleet(self) -> fleet.Fleet:
        return self.store.transact_blocking(fleet.get)

    def set_entry(self, run_id: str, /, **values: Any) -> None:
        """The entry's columns are as given: a past the test does not want to live through."""
        statement = Statement(
            sa.update(schema.outbox_entry).where(schema.outbox_entry.c.run_id == run_id).values(values)
        )
        self.store.transact_blocking(lambda session: session.run(statement))

    def add_endpoint(self) -> None:
        """There is an endpoint, `ENDPOINT`, which serves every namespace and lists no workflow."""
        given = endpoints.Configuration("e", "http://e", "generic", 50, True, [])

        def operation(session: Session) -> None:
            if endpoints.named(session, "*", given.name) is None:
                endpoints.insert(session, ENDPOINT, "*", "yaml", given)

        self.store.transact_blocking(operation)

    def lease(self, queue: str, *, now: int, until: int, route: str = "push") -> list[entries.Entry]:
        """The first entry of *queue* that is due at *now*, if any, published to `ENDPOINT` by *route* until *until*."""
        return self.store.transact_blocking(
            lambda session: backlog.lease(
                session, queue, ENDPOINT, way=0, ways=1, limit=1, now=now, until=until, route=route
            )
        )

    def publish(self, run_id: str, *, push_number: int = 1, due_in_ms: int = 30_000, **values: Any) -> None:
        """The entry is published to an endpoint as a relay would have done it, its claim due in *due_in_ms*."""
        self.add_endpoint()
        now = self.now()
        published = {"status": "published", "route": "push", "publisher": ENDPOINT, "published_at": now}
        self.set_entry(run_id, **published, push_number=push_number, next_publish_at=now + due_in_ms, **values)

    def set_run(self, run_id: str, /, **values: Any) -> None:
        """The run's columns are as given."""
        statement = Statement(sa.update(schema.run).where(schema.run.c.id == run_id).values(values))
        self.store.transact_blocking(lambda session: session.run(statement))

    def restore(self, entry: entries.Entry, run: runs.Row) -> None:
        """Entry and run are as they were, and what happened since never did: a failover lost its commits."""
        history, row, narrow = schema.run_transition, schema.run, schema.outbox_entry
        statements = [
            Statement(sa.delete(history).where(history.c.run_id == run.id, history.c.revision > run.revision)),
            Statement(sa.update(row).where(row.c.id == run.id).values(msgspec.structs.asdict(run))),
            Statement(sa.update(narrow).where(narrow.c.run_id == run.id).values(msgspec.structs.asdict(entry))),
        ]
        self.store.transact_blocking(lambda session: [session.run(statement) for statement in statements])

    def check(self, *, leaving_out: Sequence[str] = ()) -> None:
        """Nothing in the rows breaks an invariant."""
        found = self.store.transact_blocking(invariants.check)
        assert [breach for breach in found if not breach.startswith(tuple(leaving_out))] == []


def _without_fsync(store: Store) -> None:
    """SQLite does not wait for the disk: no test here pulls the plug."""
    for connection in store._open:
        if isinstance(connection, SqliteConnection):
            connection._connection.execute("PRAGMA synchronous = OFF")


async def claims(world: World, count: int) -> list[Claim]:
    """The claims of *count* runs just submitted."""
    return [await world.claim(await world.submit()) for _ in range(count)]


def details(row: transitions.Transition) -> dict[str, Any]:
    """The details of a move."""
    decoded: dict[str, Any] = msgspec.json.decode(row.details or "{}")
    return decoded
