"""The one write of a claim holder: new records, and optionally how the claim ends.

The fence, repeats and the count of endings: infra/docs/protocol.md, I2, I6 and I10.
"""

from typing import Final, NamedTuple

import msgspec

from dispatcher import errors, finishing, parking
from dispatcher.records import from_wire, to_wire
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, children, entries, records, runs, transitions
from dispatcher.waking import SERVER
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import Park, Progress, Progressed, Record, Restart, Retry

_ACTOR: Final = "executor"


class Recorded(NamedTuple):
    """Whether a call brought new records, and the lowest number of all it carried, None if it carried none.

    What the dispatcher has recorded itself is not the call's: it is news to the executor.
    """

    new: bool
    first: int | None


async def apply(
    store: Store, keys: ServerKeys, settings: Settings, run_id: str, request: Progress, token: str
) -> Progressed:
    """Records, their order and the ending are stored in one transaction, or nothing is.

    Every accepted call counts as a refresh. A repeat whose ending was applied is answered as before.

    Raises Unauthorized for a token of another claim, Conflict (`revision_conflict`, `cancelled`), NotFound, TooLarge
    or Unprocessable (`history_limit`, `record_conflict`).
    """
    if not keys.check_write_token(token, run_id, request.expected_revision, request.claim_id):
        raise errors.Unauthorized("unauthorized", "the write token is not this claim's")
    rows = [from_wire(record, run_id, 0, request.claim_id) for record in request.records]
    waiting = parking.rows_of(run_id, request.ending) if isinstance(request.ending, Park) else []
    finishing.check_size(request.ending)

    def operation(session: Session) -> Progressed:
        if isinstance(request.ending, (Retry, Restart)):
            children.lock(session, run_id)
        entry = entries.lock_held(session, run_id, request.expected_revision, request.claim_id)
        if entry is None:
            return _repeated(session, run_id, request)
        recorded = _record(session, run_id, rows)
        ending = request.ending
        if isinstance(ending, Park):
            refused = parking.park(session, entry, request, ending, waiting, _ACTOR)
            return _ended(request) if refused is None else _refused(session, entry, refused, request, recorded)
        if ending is not None:
            progressed = recorded.new or entry.recorded_at is not None
            finishing.finish(session, settings, entry, request, ending, progressed=progressed)
            return _ended(request)
        seen = _goes_on(session, entry, request, recorded)
        signals = _lacking(session, request, run_id, before=recorded.first) if entry.signals else []
        reason = _cancel_reason(session, run_id) if seen.stop == "cancel" else None
        return Progressed(request.expected_revision, seen.stop, seen.signal_seq, signals=signals, stop_reason=reason)

    return await store.transact(operation)


def _ended(request: Progress) -> Progressed:
    return Progressed(request.expected_revision + 1, parked=True if isinstance(request.ending, Park) else None)


def _refused(
    session: Session, entry: entries.Entry, run: runs.Row, request: Progress, recorded: Recorded
) -> Progressed:
    _goes_on(session, entry, request, recorded)
    signals = _lacking(session, request, run.id)
    reason = run.cancel_reason if run.stop == "cancel" else None
    return Progressed(
        request.expected_revision, run.stop, run.signal_seq, parked=False, signals=signals, stop_reason=reason
    )


def _cancel_reason(session: Session, run_id: str) -> str | None:
    run = runs.get(session, run_id)
    return None if run is None else run.cancel_reason


def _goes_on(session: Session, entry: entries.Entry, request: Progress, recorded: Recorded) -> entries.Seen:
    stamp = entries.note_progress if recorded.new else entries.refresh
    seen = stamp(session, entry.run_id, entry.revision, request.claim_id)
    assert seen is not None, "the entry is locked"
    if request.note is not None:
        runs.set_note(session, entry.run_id, request.note)
    return seen


def _lacking(session: Session, request: Progress, run_id: str, *, before: int | None = None) -> list[Record]:
    """The outcomes of waits the executor has not been handed, up to its own records in this call: replay's order."""
    rows = records.by_claim(session, run_id, SERVER, after=request.signals_after)
    return [to_wire(row) for row in rows if before is None or row.seq < before]


def _repeated(session: Session, run_id: str, request: Progress) -> Progressed:
    if transitions.carries(session, run_id, request.expected_revision + 1, request.request_id):
        return _ended(request)
    run = runs.get(session, run_id)
    if run is None:
        raise errors.NotFound("run_not_found", "there is no such run")
    if run.status == "cancelled":
        raise errors.Conflict("cancelled", "the run was cancelled")
    raise errors.Conflict("revision_conflict", "this claim no longer holds the run")


def _record(session: Session, run_id: str, rows: list[records.Row]) -> Recorded:
    """Each new record of *rows* has the next number of the run."""
    if not rows:
        return Recorded(new=False, first=None)
    numbers = []
    seq = last = records.last_seq(session, run_id)
    for row in rows:
        numbered = msgspec.structs.replace(row, seq=seq + 1)
        if records.insert(session, numbered):
            seq += 1
            numbers.append(seq)
        elif (stored := _repeat(session, numbered)).claim_id != SERVER:
            numbers.append(stored.seq)
    if seq > limits.MAX_RECORDS:
        raise errors.Unprocessable("history_limit", f"a run holds at most {limits.MAX_RECORDS} records")
    return Recorded(new=seq > last, first=min(numbers, default=None))


def _repeat(session: Session, row: records.Row) -> records.Row:
    stored = records.at(session, row)
    # A sleep may end on both sides at once: what the dispatcher has recorded of it stands.
    if stored is None or stored.claim_id not in {row.claim_id, SERVER}:
        raise errors.Unprocessable(
            "record_conflict",
            f"{row.name!r} number {row.ordinal} was recorded under another claim",
            hint="the executor did not replay its whole history",
        )
    return stored
