"""How a claim holder ends its claim, but for a park: the run completes, fails, tries again, begins anew, or is left.

The caller has locked the entry by the claim's fence.
"""

from typing import Any, Final

import msgspec

from dispatcher import again, endings, ends, errors
from dispatcher.settings import Settings
from dispatcher.store import Session, entries, runs
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import (
    Cancelled,
    Complete,
    Ending,
    ErrorObject,
    Fail,
    Progress,
    Release,
    Restart,
    Retry,
    Stall,
    Status,
)

ACTOR: Final = "executor"
_UNKNOWN_VERSION_MS: Final = 30_000


def check_size(ending: Ending | None) -> None:
    """Raises TooLarge `payload_too_large` for an ending no row may hold."""
    match ending:
        case Complete(result):
            _check(len(bytes(result)), "result")
        case Restart(input=payload):
            _check(len(bytes(payload)), "input")
        case Fail(error) | Retry(error=error):
            _check(len(msgspec.json.encode(error)), "error")
        case Stall(details=details):
            _check(len(msgspec.json.encode(details)), "details")


def _check(size: int, name: str) -> None:
    if size > limits.MAX_PAYLOAD:
        raise errors.TooLarge("payload_too_large", f"{name} is over {limits.MAX_PAYLOAD} bytes")


def finish(
    session: Session,
    settings: Settings,
    entry: entries.Entry,
    request: Progress,
    ending: Ending,
    *,
    progressed: bool,
) -> None:
    """The claim *entry* was locked with has ended as *ending* says; *progressed*: a record was written under it.

    Raises Unprocessable `cancel_not_requested`.
    """
    match ending:
        case Complete(result):
            _end(session, entry, request, "completed", result=bytes(result))
        case Fail(error):
            _fail(session, settings, entry, request, error)
        case Retry(error, delay_ms):
            _retry(session, settings, entry, request, error, delay_ms)
        case Restart(payload):
            _restart(session, entry, request, bytes(payload))
        case Stall(reason, details):
            endings.stall(
                session, entry, reason, details, actor=ACTOR, request_id=request.request_id, note=request.note
            )
        case Cancelled():
            _cancelled(session, entry, request)
        case Release() as release:
            _release(session, settings, entry, request, release, progressed=progressed)


def encoded(error: ErrorObject, settings: Settings) -> bytes:
    """The error as it is kept: without its traceback unless the settings say so."""
    kept = error if settings.runs.record_tracebacks else msgspec.structs.replace(error, traceback=None)
    return msgspec.json.encode(kept)


def reason_of(error: ErrorObject) -> str:
    """What the history names as the reason of a failure."""
    # No database holds a NUL in a text; the error itself is kept as it came.
    return error.type[:200].replace("\0", "")


def _locked(session: Session, entry: entries.Entry) -> runs.Row:
    run = runs.lock(session, entry.run_id)
    assert run is not None
    return run


def _retry(
    session: Session, settings: Settings, entry: entries.Entry, request: Progress, error: ErrorObject, delay_ms: int
) -> None:
    """A run that is to be cancelled fails instead: it begins nothing more."""
    if _locked(session, entry).stop == "cancel":
        _fail(session, settings, entry, request, error)
    else:
        again.retry(session, entry, request, reason_of(error), encoded(error, settings), delay_ms, ACTOR)


def _restart(session: Session, entry: entries.Entry, request: Progress, payload: bytes) -> None:
    """A run that is to be cancelled is, at the end of this generation."""
    run = _locked(session, entry)
    if run.stop == "cancel":
        _end(session, entry, request, "cancelled", reason=run.cancel_reason, details={"restartAsked": True})
    else:
        again.begin_anew(session, run, request, payload, ACTOR)


def _cancelled(session: Session, entry: entries.Entry, request: Progress) -> None:
    run = _locked(session, entry)
    if run.stop != "cancel":
        raise errors.Unprocessable("cancel_not_requested", "nobody has asked for this run to be cancelled")
    _end(session, entry, request, "cancelled", reason=run.cancel_reason)


def _fail(session: Session, settings: Settings, entry: entries.Entry, request: Progress, error: ErrorObject) -> None:
    _end(session, entry, request, "failed", reason=reason_of(error), error=encoded(error, settings))


def _end(session: Session, entry: entries.Entry, request: Progress, status: Status, **what: Any) -> None:
    ends.end(
        session,
        entry.run_id,
        entry.revision,
        "running",
        status,
        actor=ACTOR,
        request_id=request.request_id,
        note=request.note,
        **what,
    )


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
        actor=ACTOR,
        request_id=request.request_id,
        delay_ms=default_ms if ending.delay_ms is None else ending.delay_ms,
        endings=0 if progressed else entry.endings + counted,
        kills=0 if progressed else entry.kills,
        note=request.note,
    )
