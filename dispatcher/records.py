"""Records between the wire and the store."""

import msgspec
from msgspec import UNSET, Raw

from dispatcher import errors
from dispatcher.store import records
from endpoint_sdk.wire import clock, limits
from endpoint_sdk.wire.messages import ErrorObject, Record, RecordIn


def to_wire(row: records.Row) -> Record:
    """A stored record as an executor or an operator sees it."""
    return Record(
        seq=row.seq,
        kind=row.kind,  # type: ignore[arg-type]  # only wire values are ever stored
        name=row.name,
        args_hash=row.args_hash,
        ordinal=row.ordinal,
        phase=row.phase,  # type: ignore[arg-type]
        state=row.state,  # type: ignore[arg-type]
        attempt=row.attempt,
        value=UNSET if row.value is None else Raw(row.value),
        error=None if row.error is None else msgspec.json.decode(row.error, type=ErrorObject),
        preview=row.preview,
        started_at=_time(row.started_at),
        finished_at=_time(row.finished_at),
        next_attempt_at=_time(row.next_attempt_at),
        claim_id=row.claim_id,
    )


def from_wire(record: RecordIn, run_id: str, seq: int, claim_id: str) -> records.Row:
    """The row an executor's record becomes.

    Raises TooLarge (`payload_too_large`) or BadRequest (`malformed`) for a time that is none.
    """
    value = None if isinstance(record.value, msgspec.UnsetType) else bytes(record.value)
    error = None if record.error is None else msgspec.json.encode(record.error)
    if max(len(value or b""), len(error or b"")) > limits.MAX_PAYLOAD:
        raise errors.TooLarge("payload_too_large", f"the record of {record.name!r} is over {limits.MAX_PAYLOAD} bytes")
    return records.Row(
        run_id=run_id,
        seq=seq,
        kind=record.kind,
        name=record.name,
        args_hash=record.args_hash,
        ordinal=record.ordinal,
        phase=record.phase,
        state=record.state,
        attempt=record.attempt,
        claim_id=claim_id,
        value=value,
        error=error,
        preview=record.preview,
        started_at=_stamp(record.started_at),
        finished_at=_stamp(record.finished_at),
        next_attempt_at=_stamp(record.next_attempt_at),
    )


def _time(stamp: int | None) -> str | None:
    return None if stamp is None else clock.to_wire(stamp)


def _stamp(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return clock.from_wire(text)
    except ValueError as error:
        raise errors.BadRequest("malformed", "a record's time is not an RFC 3339 time with its offset") from error
