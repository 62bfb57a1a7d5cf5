"""The one place where a user's own codec, one that encrypts or compresses, meets what the dispatcher stores.

A payload then travels and is stored as {"$enc": "<base64 of what the codec made of its JSON>"}: inputs, results, values
of records and events, inputs and results of children. Of an error the type stays readable, its message and details go
the same way. Argument previews are left out; argument hashes are over the plain arguments (infra/docs/payloads.md).

What is not in an envelope is taken as it is, so that runs from before the codec go on and an operator can send plain
JSON; an envelope within plain JSON, as the dispatcher makes it for a workflow of `on_failure`, is opened where it lies.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Raw

from endpoint_sdk.errors import ConfigurationError, PayloadError
from endpoint_sdk.wire import child_messages, messages

_KEY: Final = "$enc"
_TRACE: Final = b'"$enc"'
_UNREAD: Final = "encoded by the executor's codec"

R = TypeVar("R", messages.Record, messages.RecordIn)


class PayloadCodec(Protocol):
    """Turns the JSON of payloads into other bytes and back, in every process that sees them.

    `decode(encode(data))` is *data*; the same data may be encoded differently each time. Called on the event loop: it
    does no I/O. What `encode` raises leaves the run to recovery, what `decode` raises stalls it.
    """

    def encode(self, data: bytes, /) -> bytes:
        """What is stored instead of *data*."""

    def decode(self, data: bytes, /) -> bytes:
        """What was encoded; raises whatever it likes for anything else."""


class Envelope:
    """Seals what leaves this process and opens what comes, by *codec*; without one everything stays as it is."""

    def __init__(self, codec: PayloadCodec | None = None) -> None:
        self._codec = codec

    @property
    def encodes(self) -> bool:
        """Whether there is a codec."""
        return self._codec is not None

    # --- payloads ----------------------------------------------------------------------------------------------------
    def seal(self, data: bytes | Raw) -> Raw:
        """JSON *data* as it is stored."""
        if self._codec is None:
            return Raw(data)
        return Raw(msgspec.json.encode({_KEY: b64encode(self._codec.encode(bytes(data))).decode()}))

    def open(self, data: bytes | Raw) -> Raw:
        """The JSON that was stored as *data*; raises PayloadError `undecodable`."""
        if self._codec is None or _TRACE not in bytes(data):
            return Raw(data)
        value = msgspec.json.decode(data)
        if _is_sealed(value):
            return Raw(self._decoded(value[_KEY]))
        try:
            return Raw(msgspec.json.encode(self._opened(value)))
        except RecursionError as error:
            raise PayloadError("what is stored is nested too deeply", code="undecodable") from error

    def seal_error(self, error: messages.ErrorObject) -> messages.ErrorObject:
        """*error* as it is stored."""
        if self._codec is None:
            return error
        inside = msgspec.json.encode({"message": error.message, "details": error.details})
        details = {_KEY: b64encode(self._codec.encode(inside)).decode()}
        return messages.ErrorObject(error.type, _UNREAD, details, error.retryable)

    def open_error(self, error: messages.ErrorObject) -> messages.ErrorObject:
        """The error that was stored as *error*; one the dispatcher wrote has nothing to open."""
        if self._codec is None:
            return error
        plain = self._opened({"message": error.message, "details": error.details})
        return msgspec.structs.replace(error, message=plain["message"], details=plain["details"])

    # --- messages ----------------------------------------------------------------------------------------------------
    def seal_record(self, record: messages.RecordIn) -> messages.RecordIn:
        """*record* as it is sent."""
        if self._codec is None:
            return record
        value = record.value if record.value is msgspec.UNSET else self.seal(record.value)
        error = None if record.error is None else self.seal_error(record.error)
        return msgspec.structs.replace(record, value=value, error=error, preview=None)

    def open_records(self, records: Sequence[messages.Record]) -> list[messages.Record]:
        """The records that were stored as *records*; raises PayloadError `undecodable`."""
        return list(records) if self._codec is None else [self._open_record(record) for record in records]

    def open_grant(self, grant: messages.Grant) -> messages.Grant:
        """*grant* with its input and records as they were written; raises PayloadError `undecodable`."""
        if self._codec is None:
            return grant
        run = msgspec.structs.replace(grant.run, input=self.open(grant.run.input))
        return msgspec.structs.replace(grant, run=run, records=self.open_records(grant.records))

    def seal_ending(self, ending: messages.Ending) -> messages.Ending:
        """*ending* as it is sent."""
        if self._codec is None:
            return ending
        match ending:
            case messages.Complete(result):
                return messages.Complete(self.seal(result))
            case messages.Restart(value):
                return messages.Restart(self.seal(value))
            case messages.Fail() | messages.Retry():
                return msgspec.structs.replace(ending, error=self.seal_error(ending.error))
            case messages.Stall():
                return msgspec.structs.replace(ending, details=_without_payloads(ending.details))
            case _:
                return ending

    def seal_child(self, start: child_messages.ChildStart) -> child_messages.ChildStart:
        """*start* as it is sent."""
        if self._codec is None:
            return start
        return msgspec.structs.replace(start, input=self.seal(start.input), preview=None)

    def open_child(self, outcome: child_messages.ChildOutcome) -> child_messages.ChildOutcome:
        """*outcome* as the child's executor wrote it; raises PayloadError `undecodable`."""
        if self._codec is None:
            return outcome
        result = outcome.result if outcome.result is msgspec.UNSET else self.open(outcome.result)
        error = None if outcome.error is None else self.open_error(outcome.error)
        return msgspec.structs.replace(outcome, result=result, error=error)

    # --- one by one --------------------------------------------------------------------------------------------------
    def _open_record(self, record: messages.Record) -> messages.Record:
        value = record.value if record.value is msgspec.UNSET else self.open(record.value)
        error = None if record.error is None else self.open_error(record.error)
        return msgspec.structs.replace(record, value=value, error=error)

    def _opened(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._opened(part) for part in value]
        if not isinstance(value, dict):
            return value
        if _is_sealed(value):
            return msgspec.json.decode(self._decoded(value[_KEY]))
        if _is_sealed(value.get("details")):
            # An error: what is inside replaces the message that says no more than that it is sealed.
            value = {**value, **msgspec.json.decode(self._decoded(value["details"][_KEY]))}
            return {name: part if name == "details" else self._opened(part) for name, part in value.items()}
        return {name: self._opened(part) for name, part in value.items()}

    def _decoded(self, text: str) -> bytes:
        assert self._codec is not None
        try:
            return self._codec.decode(b64decode(text, validate=True))
        except binascii.Error as error:
            raise PayloadError("what is stored is not base64", code="undecodable") from error
        except Exception as error:
            raise PayloadError(
                f"the codec cannot decode what is stored ({type(error).__qualname__})", code="undecodable"
            ) from error


PLAIN: Final = Envelope()


def of(codec: PayloadCodec | None, where: str) -> Envelope:
    """The envelope of *codec*; raises ConfigurationError naming *where* when it is none."""
    if codec is None:
        return PLAIN
    if isinstance(codec, type) or not all(callable(getattr(codec, name, None)) for name in ("encode", "decode")):
        raise ConfigurationError(f"{where} is an object with encode(bytes) -> bytes and decode(bytes) -> bytes")
    return Envelope(codec)


def _is_sealed(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(_KEY), str)


def _without_payloads(details: dict[str, Any]) -> dict[str, Any]:
    """A divergence's details by the names of its calls alone."""
    if not (details.get("recorded") or details.get("new")):
        return details
    recorded, new = ([{**view, "preview": None} for view in details.get(side, [])] for side in ("recorded", "new"))
    asked = f"the recorded {_call(recorded[0])} does not fit" if recorded else "nothing recorded is left"
    return {"recorded": recorded, "new": new, "message": f"{asked}, {_call(new[0])} is new" if new else asked}


def _call(view: dict[str, Any]) -> str:
    return f"{view['kind']} {view['name']}"
