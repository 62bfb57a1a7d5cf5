"""The one write of a claim holder: new records, and optionally how the claim ends.

The fence, repeats and the count of endings: infra/docs/protocol.md, I2, I6 and I10.
"""

from typing import Final, NamedTuple

import msgspec

from dispatcher import endings, errors, parking
from dispatcher.records import from_wire, to_wire
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, entries, records, runs, transitions
from dispatcher.waking import SERVER
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import (
    Cancelled,
    Complete,
    Ending,
    ErrorObject,
    Fail,
    Park,
    Progress,
    Progressed,
    Record,
    Release,
    Stall,
)

_ACTOR: Final = "executor"
_UNKNOWN_VERSION_MS: Final = 30_000


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
    _check_size(request.ending)

    def operation(session: Session) -> Progressed:
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
            _end(session, settings, entry, request, ending, progressed=progressed)
            return _ended(request)
        seen = _goes_on(session, entry, request, recorded)
        signals = _lacking(session, request, run_id, before=recorded.first) if entry.signals else []
        return Progressed(request.expected_revision, seen.stop, seen.signal_seq, signals=signals)

    return await store.transact(operation)


def _check_size(ending: Ending | None) -> None:
    if isinstance(ending, Complete) and len(bytes(ending.result)) > limits.MAX_PAYLOAD:
        raise errors.TooLarge("payload_too_large", f"the result is over {limits.MAX_PAYLOAD} bytes")
    if isinstance(ending, Fail) and len(msgspec.json.encode(ending.error)) > limits.MAX_PAYLOAD:
        raise errors.TooLarge("payload_too_large", f"the error is over {limits.MAX_PAYLOAD} bytes")
    if isinstance(ending, Stall) and len(msgspec.json.encode(ending.details)) > limits.MAX_PAYLOAD:
        raise errors.TooLarge("payload_too_large", f"the details are over {limits.MAX_PAYLOAD} bytes")


def _ended(request: Progress) -> Progressed:
    return Progressed(request.expected_revision + 1, parked=True if isinstance(request.ending, Park) else None)


def _refused(
    session: Session, entry: entries.Entry, run: runs.Row, request: Progress, recorded: Recorded
) -> Progressed:
    _goes_on(session, entry, request, recorded)
    signals = _lacking(session, request, run.id)
    return Progressed(request.expected_revision, run.stop, run.signal_seq, parked=False, signals=signals)


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


def _end(
    session: Session,
    settings: Settings,
    entry: entries.Entry,
    request: Progress,
    ending: Ending,
    *,
    progressed: bool,
) -> None:
    match ending:
        case Complete(result):
            _finish(session, entry, request, "completed", result=bytes(result))
        case Fail(error):
            # No database holds a NUL in a text; the error itself is kept as it came.
            reason = error.type[:200].replace("\0", "")
            _finish(session, entry, request, "failed", reason=reason, error=_encoded(error, settings))
        case Stall(reason, details):
            endings.stall(
                session, entry, reason, details, actor=_ACTOR, request_id=request.request_id, note=request.note
            )
        case Cancelled():
            run = runs.lock(session, entry.run_id)
            if run is None or run.stop != "cancel":
                raise errors.Unprocessable("cancel_not_requested", "nobody has asked for this run to be cancelled")
            _finish(session, entry, request, "cancelled", reason=run.cancel_reason)
        case Release() as release:
            _release(session, settings, entry, request, release, progressed=progressed)


def _encoded(error: ErrorObject, settings: Settings) -> bytes:
    kept = error if settings.runs.record_tracebacks else msgspec.structs.replace(error, traceback=None)
    return msgspec.json.encode(kept)


def _finish(
    session: Session,
    entry: entries.Entry,
    request: Progress,
    status: str,
    *,
    reason: str | None = None,
    result: bytes | None = None,
    error: bytes | None = None,
) -> None:
    runs.move(
        session,
        entry.run_id,
        entry.revision,
        "running",
        status,  # type: ignore[arg-type]
        reason=reason,
        actor=_ACTOR,
        request_id=request.request_id,
        note=request.note,
        result=result,
        error=error,
        deliveries=entries.delete(session, entry.run_id),
    )
    session.announce("finished", entry.run_id)


def _release(
    session: Session,
    settings: Settings,
    entry: entries.Entry,
    request: Progress,
    ending: Release,
    *,
    progressed: bool,
) -> None:
    counted = not progressed and ending.reason != "pause"
    default_ms = _UNKNOWN_VERSION_MS if ending.reason == "unknown_version" else 0
    endings.release(
        session,
        settings.stalling,
        entry,
        reason=ending.reason,
        actor=_ACTOR,
        request_id=request.request_id,
        delay_ms=default_ms if ending.delay_ms is None else ending.delay_ms,
        endings=0 if progressed else entry.endings + counted,
        kills=0 if progressed else entry.kills,
        note=request.note,
    )
