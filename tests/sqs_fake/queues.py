"""One queue of the fake: which messages it holds, who has them, and for how long."""

import itertools
import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

LONGEST_HOLD: Final = 43_200
DEDUPLICATION_SECONDS: Final = 300

_sequences: Final = itertools.count(10**19)


class Refused(Exception):
    """The call is answered with this error; *query* is the code clients of the older protocol know it by."""

    def __init__(self, code: str, message: str, status: int = 400, query: str | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.query = query or code


@dataclass(eq=False)
class Message:
    """A stored message. *handle* is that of its last receive; *visible_at* when it can be received (again)."""

    body: str
    attributes: dict[str, Any]
    sent_at: float
    visible_at: float
    group: str | None = None
    deduplication: str | None = None
    trace: str | None = None
    message_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    sequence: int = field(default_factory=lambda: next(_sequences))
    receives: int = 0
    first_received_at: float | None = None
    received_at: float = 0.0
    handle: str | None = None
    source_arn: str | None = None

    def held(self, now: float) -> bool:
        """Whether a receiver has it."""
        return self.handle is not None and now < self.visible_at


class Queue:
    """A queue's messages, oldest first. Not thread-safe: the server holds its lock around every call."""

    def __init__(self, name: str, arn: str, attributes: dict[str, str], created_at: float) -> None:
        self.name = name
        self.arn = arn
        self.attributes = attributes
        self.created_at = created_at
        self.messages: list[Message] = []
        self._handles: dict[str, Message] = {}
        self._deduplicated: dict[str, Message] = {}

    @property
    def fifo(self) -> bool:
        """Whether it keeps order within groups."""
        return self.name.endswith(".fifo")

    def number(self, name: str, default: int) -> int:
        """The attribute *name* as a number."""
        return int(self.attributes.get(name, default))

    def redrive(self) -> tuple[str, int] | None:
        """The ARN of the dead-letter queue and how many receives lead there."""
        policy = self.attributes.get("RedrivePolicy")
        if not policy:
            return None
        given = json.loads(policy)
        return given["deadLetterTargetArn"], int(given["maxReceiveCount"])

    def add(self, message: Message, copies: int) -> Message:
        """*message* is stored that many times; the one whose id and sequence number the sender is told."""
        if message.deduplication is not None:
            first = self._deduplicated.get(message.deduplication)
            if first is not None and message.sent_at - first.sent_at < DEDUPLICATION_SECONDS:
                return first
            self._deduplicated[message.deduplication] = message
        for number in range(copies):
            self.messages.append(message if number == 0 else _copy(message))
        return message

    def receivable(self, now: float, reorder: bool) -> list[Message]:
        """What a receiver may get now, in the order it would."""
        if not self.fifo:
            visible = [message for message in self.messages if message.visible_at <= now]
            return visible[::-1] if reorder else visible
        # A group goes on only behind its head: a message that is held or hidden blocks what was sent after it.
        blocked = {message.group for message in self.messages if message.held(now)}
        found: list[Message] = []
        for message in self.messages:
            if message.visible_at > now:
                blocked.add(message.group)
            elif message.group not in blocked:
                found.append(message)
        return found

    def hand_out(self, message: Message, now: float, seconds: int) -> None:
        """*message* is held for *seconds*, under a new handle."""
        message.receives += 1
        message.first_received_at = message.first_received_at or now
        message.received_at = now
        message.visible_at = now + seconds
        message.handle = f"{uuid.uuid4()}#{message.message_id}"
        self._handles[message.handle] = message

    def remove(self, message: Message) -> None:
        """*message* is not in the queue any more."""
        if message in self.messages:
            self.messages.remove(message)

    def delete(self, handle: str, now: float) -> None:
        """The message of *handle* is gone, if that is its last receive's handle. Raises Refused."""
        message = self._of(handle)
        if self.fifo and (message.handle != handle or not message.held(now)) and message in self.messages:
            raise _bad_handle(handle, "The receipt handle has expired.")
        if message.handle == handle:
            self.remove(message)

    def change_visibility(self, handle: str, seconds: int, now: float) -> None:
        """The message of *handle* is held for *seconds* from now. Raises Refused."""
        if not 0 <= seconds <= LONGEST_HOLD:
            raise _bad_value(seconds, "VisibilityTimeout", "Must be between 0 and 43200, if provided.")
        message = self._of(handle)
        if message not in self.messages or message.handle != handle:
            raise _bad_handle(handle, "Message does not exist or is not available for visibility timeout change.")
        if not message.held(now):
            if self.fifo:
                raise _bad_handle(handle, "The receipt handle has expired.")
            return
        if now - message.received_at + seconds > LONGEST_HOLD:
            reason = f"Total VisibilityTimeout for the message is beyond the limit [{LONGEST_HOLD} seconds]."
            raise _bad_value(seconds, "VisibilityTimeout", reason)
        message.visible_at = now + seconds

    def counted(self, now: float) -> dict[str, str]:
        """The attributes that count messages."""
        held = sum(message.held(now) for message in self.messages)
        delayed = sum(message.handle is None and message.visible_at > now for message in self.messages)
        return {
            "ApproximateNumberOfMessages": str(len(self.messages) - held - delayed),
            "ApproximateNumberOfMessagesNotVisible": str(held),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
        }

    def _of(self, handle: str) -> Message:
        message = self._handles.get(handle)
        if message is None:
            raise Refused("ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not valid.')
        return message


def _copy(message: Message) -> Message:
    return Message(
        message.body,
        message.attributes,
        message.sent_at,
        message.visible_at,
        message.group,
        message_id=message.message_id,
    )


def _bad_handle(handle: str, reason: str) -> Refused:
    return _bad_value(handle, "ReceiptHandle", reason)


def _bad_value(value: object, name: str, reason: str) -> Refused:
    return Refused("InvalidParameterValue", f"Value {value} for parameter {name} is invalid. Reason: {reason}")
