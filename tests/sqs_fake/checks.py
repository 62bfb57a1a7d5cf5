"""What SQS refuses to take: one function per kind of thing it checks."""

import re
from collections.abc import Mapping
from typing import Any, Final

from tests.sqs_fake.queues import Queue, Refused

MAX_BATCH_BYTES: Final = 1_048_576
MAX_ATTRIBUTES: Final = 10

# XML's characters, as the documentation of SendMessage lists them.
_FORBIDDEN: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_GROUP: Final = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
_ATTRIBUTE: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")


def body(queue: Queue, entry: Mapping[str, Any]) -> str:
    """The body of a message to be sent, of allowed characters and size. Raises Refused."""
    text = entry.get("MessageBody")
    if not text:
        raise Refused("MissingParameter", "The request must contain the parameter MessageBody.")
    if not isinstance(text, str) or _FORBIDDEN.search(text):
        raise Refused("InvalidMessageContents", "Invalid characters found.")
    most = queue.number("MaximumMessageSize", MAX_BATCH_BYTES)
    if size(entry) > most:
        reason = f"Message must be shorter than {most} bytes."
        raise Refused("InvalidParameterValue", f"One or more parameters are invalid. Reason: {reason}")
    return text


def size(entry: Mapping[str, Any]) -> int:
    """The bytes of a message that count: its body and its attributes' names, types and values."""
    total = len(str(entry.get("MessageBody", "")).encode())
    for name, value in (entry.get("MessageAttributes") or {}).items():
        texts = (name, value.get("DataType", ""), value.get("StringValue", ""), value.get("BinaryValue", ""))
        total += sum(len(text.encode()) for text in texts)
    return total


def attributes(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a message to be sent. Raises Refused."""
    given: dict[str, Any] = entry.get("MessageAttributes") or {}
    if len(given) > MAX_ATTRIBUTES:
        raise _invalid(f"Number of message attributes [{len(given)}] exceeds the allowed maximum [{MAX_ATTRIBUTES}].")
    for name, value in given.items():
        if not _ATTRIBUTE.fullmatch(name) or name.lower().startswith(("aws.", "amazon.")) or ".." in f".{name}.":
            raise _invalid(f"Message attribute name '{name}' is invalid.")
        if str(value.get("DataType", "")).partition(".")[0] not in ("String", "Number", "Binary"):
            raise _invalid(f"The type of message (user) attribute '{name}' is invalid.")
        text = value.get("StringValue") or value.get("BinaryValue")
        if not text or _FORBIDDEN.search(text):
            raise _invalid(f"Message (user) attribute '{name}' must contain a non-empty value of allowed characters.")
    return given


def group(queue: Queue, entry: Mapping[str, Any]) -> str | None:
    """The message group of a message to be sent. Raises Refused."""
    given: str | None = entry.get("MessageGroupId")
    if given is None:
        if queue.fifo:
            raise Refused("MissingParameter", "The request must contain the parameter MessageGroupId.")
        return None
    if not _GROUP.fullmatch(given):
        raise _invalid("MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length.")
    return given


def deduplication(queue: Queue, entry: Mapping[str, Any]) -> str | None:
    """The deduplication id of a message to be sent. Raises Refused."""
    given: str | None = entry.get("MessageDeduplicationId")
    if not queue.fifo:
        if given is not None:
            raise _invalid("The request includes a parameter that is not valid for this queue type.")
        return None
    if given is None and queue.attributes.get("ContentBasedDeduplication") == "true":
        return str(entry["MessageBody"])
    if given is None:
        raise _invalid("The queue should either have ContentBasedDeduplication enabled or a MessageDeduplicationId.")
    if not _GROUP.fullmatch(given):
        raise _invalid("MessageDeduplicationId can only include alphanumeric and punctuation characters.")
    return given


def delay(queue: Queue, entry: Mapping[str, Any]) -> int:
    """How many seconds a message to be sent stays hidden. Raises Refused."""
    given = entry.get("DelaySeconds")
    if given is None:
        return queue.number("DelaySeconds", 0)
    if queue.fifo:
        raise _invalid(f"Value {given} for parameter DelaySeconds is invalid: the request is for a FIFO queue.")
    return number(entry, "DelaySeconds", 0, 0, 900)


def entries(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of a batch: 1 to 10, with ids of their own. Raises Refused."""
    given: list[dict[str, Any]] = request.get("Entries") or []
    ids = [str(entry.get("Id", "")) for entry in given]
    if not given:
        raise _batch("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(given) > 10:
        raise _batch(
            "TooManyEntriesInBatchRequest", f"Maximum number of entries per request are 10. You sent {len(given)}."
        )
    if not all(_ENTRY_ID.fullmatch(each) for each in ids):
        raise _batch("InvalidBatchEntryId", "A batch entry id can only contain alphanumeric characters, - and _.")
    if len(set(ids)) < len(ids):
        raise _batch("BatchEntryIdsNotDistinct", "Two or more batch entries have the same Id.")
    return given


def batch_size(given: list[dict[str, Any]]) -> None:
    """Returns if the messages of a batch are not more than 1 MiB together. Raises Refused."""
    total = sum(size(entry) for entry in given)
    if total > MAX_BATCH_BYTES:
        told = f"Batch requests cannot be longer than {MAX_BATCH_BYTES} bytes. You have sent {total} bytes."
        raise _batch("BatchRequestTooLong", told)


def number(request: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    """The number *name* of a request. Raises Refused outside its range."""
    given = request.get(name)
    if given is None:
        return default
    if not isinstance(given, int) or not least <= given <= most:
        reason = f"Must be between {least} and {most}, if provided."
        raise Refused("InvalidParameterValue", f"Value {given} for parameter {name} is invalid. Reason: {reason}")
    return given


def _invalid(message: str) -> Refused:
    return Refused("InvalidParameterValue", message)


def _batch(code: str, message: str) -> Refused:
    return Refused(code, message, query=f"AWS.SimpleQueueService.{code}")
