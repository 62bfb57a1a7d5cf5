"""Exceptions as the wire carries them, and back: one shape on the first run and on replay."""

from typing import Any, Final

from endpoint_sdk import addresses, codec
from endpoint_sdk.addresses import Key
from endpoint_sdk.errors import (
    ChildFailed,
    ConfigurationError,
    OutcomeUnknown,
    PayloadError,
    RecordRefused,
    TaskFailed,
)
from endpoint_sdk.wire import messages

_LONGEST_MESSAGE: Final = 8_000
_LARGEST_DETAILS: Final = 64 * 1024
UNKNOWN: Final = OutcomeUnknown.default_code


def describe(error: BaseException, *, retryable: bool = False) -> messages.ErrorObject:
    """*error* for the wire; refusals of our own go by their code, everything else by its class."""
    kind = error.code if isinstance(error, PayloadError | ConfigurationError) else type(error).__qualname__
    return messages.ErrorObject(kind, _text(error), _details(error), retryable)


def refused(refusal: RecordRefused) -> messages.ErrorObject:
    """What the dispatcher said against a record, as the failure of its task."""
    return messages.ErrorObject(refusal.code, refusal.message, retryable=False)


def unknown(key: Key) -> messages.ErrorObject:
    """The failure of an at-most-once task whose outcome nobody recorded."""
    return messages.ErrorObject(UNKNOWN, f"{key.address.name} was started and its outcome never recorded", None, False)


def raised(key: Key, attempt: int, error: messages.ErrorObject, run_id: str) -> Exception:
    """The exception the workflow sees for a recorded failure."""
    if error.type == UNKNOWN:
        return OutcomeUnknown(key.address.name, addresses.idempotency_key(run_id, key))
    return TaskFailed(key.address.name, attempt, error.type, error.message, error.details)


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # a broken __str__ must not hide the failure
        text = f"<{type(error).__qualname__} without a readable message>"
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()[:_LONGEST_MESSAGE]


def _details(error: BaseException) -> Any:
    """The error's own `details` as builtins, or the failure of the task or child behind a run's; None when JSON cannot
    carry them.
    """
    try:
        details = getattr(error, "details", None)
    except BaseException:  # a broken property must not hide the failure
        return None
    if isinstance(error, TaskFailed):
        details = {"task": error.task, "attempt": error.attempt, "type": error.error_type, "details": error.details}
    if isinstance(error, ChildFailed):
        details = {"runId": error.run_id, "type": error.error_type, "details": error.details}
    if details is None:
        return None
    try:
        data = codec.to_json(details, "details")
    except PayloadError:
        return None
    return codec.from_json(data) if len(data) <= _LARGEST_DETAILS else None
