"""Claiming a run and keeping the claim alive (infra/docs/protocol.md, I1 to I6)."""

from typing import Final

import msgspec

from dispatcher import errors, lifecycle
from dispatcher.records import to_wire
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Recovery
from dispatcher.store import Session, Store, entries, records, runs, waits
from endpoint_sdk.wire import clock, limits
from endpoint_sdk.wire.messages import (
    ClaimRun,
    ExecutorInfo,
    Grant,
    GrantedRun,
    Held,
    HeldClaim,
    LossCode,
    Lost,
    Record,
    Refresh,
    Refreshed,
    WaitFor,
)

_ACTOR: Final = "executor"
_FIRST_REVISION_AFTER_A_PARK: Final = 4  # born 0, claimed 1, parked 2, woken 3, claimed 4


async def claim(
    store: Store, keys: ServerKeys, settings: Recovery, run_id: str, request: ClaimRun, token: str
) -> Grant:
    """The run is running, one revision on, owned by `request.claim_id` alone; the grant holds all execution needs.

    A repeat of the same claim is granted again only while the run is still at the transition that claim made.

    Raises Unauthorized for a token of another run or revision, Conflict (`already_claimed`, `cancelled`,
    `run_finished`, `not_claimable`, `stale_delivery`) or NotFound (`run_not_found`).
    """
    if not keys.check_claim_token(token, run_id, request.expected_revision):
        raise errors.Unauthorized("unauthorized", "the claim token is not for this run at this revision")

    def operation(session: Session) -> Grant:
        run = _take(session, run_id, request)
        now = session.now()
        page = page_of_records(session, run_id, after=0)
        return grant(run, request.claim_id, keys, settings, now, page, armed(session, run))

    return await store.transact(operation)


def grant(
    run: runs.Row,
    claim_id: str,
    keys: ServerKeys,
    settings: Recovery,
    now_ms: int,
    page: tuple[list[Record], int | None],
    waiting: list[WaitFor],
) -> Grant:
    """What the holder of the claim *claim_id* needs to execute *run*: a *page* of its records, what is armed."""
    found, cursor = page
    return Grant(
        run=_granted_run(run),
        revision=run.revision,
        claim_id=claim_id,
        token=keys.write_token(run.id, run.revision, claim_id),
        idle_timeout_ms=settings.claim_idle_timeout_ms,
        claim_refresh_interval_ms=settings.claim_refresh_interval_ms,
        server_time=clock.to_wire(now_ms),
        signal_seq=run.signal_seq,
        stop=run.stop,
        records=found,
        records_after=cursor,
        waits=waiting,
        stop_reason=run.cancel_reason if run.stop == "cancel" else None,
    )


def armed(session: Session, run: runs.Row) -> list[WaitFor]:
    """What the run has been waiting for since an earlier park, with the deadlines it had then."""
    if run.revision < _FIRST_REVISION_AFTER_A_PARK:
        return []
    return [waiting_for(row) for row in waits.of_run(session, run.id)]


def waiting_for(row: waits.Row) -> WaitFor:
    """A wait as the wire names it."""
    return WaitFor(
        kind=row.kind,  # type: ignore[arg-type]  # only wire values are ever stored
        name=row.name,
        ordinal=row.ordinal,
        args_hash=row.args_hash,
        deadline=None if row.deadline_at is None else clock.to_wire(row.deadline_at),
    )


def _take(session: Session, run_id: str, request: ClaimRun) -> runs.Row:
    entry = entries.lock(session, run_id)
    expected = request.expected_revision
    if entry is not None and entry.status != "claimed" and entry.revision == expected and not entry.held:
        return _grant_first(session, entry, request)
    if (
        entry is not None
        and entry.revision == expected + 1
        and entries.refresh(session, run_id, expected + 1, request.claim_id)
    ):
        run = runs.get(session, run_id)
        assert run is not None
        return run
    raise _refusal(session, run_id, expected)


def _grant_first(session: Session, entry: entries.Entry, request: ClaimRun) -> runs.Row:
    executor = msgspec.json.encode(request.executor).decode()
    if not entries.claim(session, entry.run_id, entry.revision, request.claim_id, request.push_number, executor):
        raise errors.being_moved()
    return start(session, entry.run_id, entry.revision, request.claim_id, request.executor, request.push_number)


def start(
    session: Session, run_id: str, revision: int, claim_id: str, executor: ExecutorInfo, push_number: int | None
) -> runs.Row:
    """The run, whose entry was claimed at *revision* in this transaction, is running; the claim is in its history.

    Raises Unavailable when it is not queued at that revision.
    """
    run = runs.move(
        session,
        run_id,
        revision,
        "queued",
        "running",
        reason="claimed",
        actor=_ACTOR,
        request_id=claim_id,
        details={"executor": msgspec.to_builtins(executor), "pushNumber": push_number},
    )
    if run is None:
        raise errors.being_moved()
    return run


def _refusal(session: Session, run_id: str, expected: int) -> errors.Refusal:
    run = runs.get(session, run_id)
    if run is None:
        return errors.NotFound("run_not_found", "there is no such run")
    if run.status == "cancelled":
        return errors.Conflict("cancelled", "the run was cancelled")
    if lifecycle.is_terminal(run.status):
        return errors.Conflict("run_finished", "the run has ended")
    if run.status == "running" and run.revision == expected + 1:
        return errors.Conflict("already_claimed", "another claim holds the run")
    if run.revision == expected:
        held = run.status == "queued"
        return errors.Conflict("not_claimable", "the run waits for a place" if held else f"the run is {run.status}")
    return errors.Conflict("stale_delivery", "the run has moved on since this delivery")


async def refresh(store: Store, keys: ServerKeys, request: Refresh) -> Refreshed:
    """Each claim named is held, and counts as alive from now, or lost with a code, or neither when nothing is known.

    Neither is one whose token is wrong, and one whose entry another transaction is writing. Lost is what committed rows
    show to be held by nobody, or by another: a claim once lost is never held again (I3).
    """
    known = [
        claim
        for claim in request.claims
        if keys.check_write_token(claim.token, claim.run_id, claim.expected_revision, claim.claim_id)
    ]
    known.sort(key=lambda claim: claim.run_id)

    def operation(session: Session) -> Refreshed:
        held: list[Held] = []
        lost: list[Lost] = []
        for claim in known:
            if seen := entries.refresh(session, claim.run_id, claim.expected_revision, claim.claim_id):
                held.append(Held(claim.run_id, claim.expected_revision, seen.stop))
                if claim.step != seen.step:
                    entries.note_step(session, claim.run_id, claim.expected_revision, claim.claim_id, claim.step)
            elif not _is_held(entries.get(session, claim.run_id), claim):
                lost.append(Lost(claim.run_id, claim.expected_revision, loss(session, claim)))
        return Refreshed(held, lost)

    return await store.transact(operation)


def _is_held(entry: entries.Entry | None, claim: HeldClaim) -> bool:
    return entry is not None and (entry.revision, entry.claim_id) == (claim.expected_revision, claim.claim_id)


def loss(session: Session, claim: HeldClaim) -> LossCode:
    """Why a claim is not held; never where the run is now (I2)."""
    run = runs.get(session, claim.run_id)
    if run is None:
        return "run_not_found"
    return "cancelled" if run.status == "cancelled" else "revision_conflict"


async def records_for_claim(
    store: Store, keys: ServerKeys, run_id: str, token: str, after: int
) -> tuple[list[Record], int | None]:
    """The next page of a held claim's records, for grants that did not carry all of them.

    Raises Unauthorized for a token that is not the current claim's, NotFound when there is no such run.
    """

    def operation(session: Session) -> tuple[list[Record], int | None]:
        check_held(session, keys, run_id, token)
        return page_of_records(session, run_id, after=after)

    return await store.transact(operation)


def check_held(session: Session, keys: ServerKeys, run_id: str, token: str) -> None:
    """Raises Unauthorized unless *token* is the write token of the run's current claim, NotFound without the run."""
    entry = entries.get(session, run_id)
    if entry is None and runs.get(session, run_id) is None:
        raise errors.NotFound("run_not_found", "there is no such run")
    held = entry is not None and entry.claim_id is not None
    if not held or not keys.check_write_token(token, run_id, entry.revision, entry.claim_id):  # type: ignore[union-attr, arg-type]
        raise errors.Unauthorized("unauthorized", "the write token is not the current claim's")


def page_of_records(
    session: Session, run_id: str, *, after: int, most_bytes: int = limits.GRANT_BYTES
) -> tuple[list[Record], int | None]:
    """Records beyond *after*, at most 1 000 or *most_bytes* of them, and the next page's start, None at the end."""
    rows = records.page(session, run_id, after=after, limit=limits.GRANT_RECORDS + 1)
    size = 0
    for count, row in enumerate(rows):
        size += records.size(row)
        if count and (count == limits.GRANT_RECORDS or size > most_bytes):
            return [to_wire(row) for row in rows[:count]], rows[count - 1].seq
    return [to_wire(row) for row in rows], None


def _granted_run(run: runs.Row) -> GrantedRun:
    return GrantedRun(
        id=run.id,
        namespace=run.namespace,
        workflow=run.workflow,
        version=run.version,
        attempt=run.attempt,
        input=msgspec.Raw(run.input),
        created_at=clock.to_wire(run.created_at),
        tags=msgspec.json.decode(run.tags, type=dict[str, str]),
        parent_id=run.parent_id,
        scheduled_for=None if run.scheduled_for is None else clock.to_wire(run.scheduled_for),
        idempotency_key=run.idempotency_key,
        generation=run.generation,
    )
