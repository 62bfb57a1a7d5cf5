"""SQS's calls on the fake's queues, under one lock and a clock that tests move."""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.sqs_fake import checks
from tests.sqs_fake.faults import Faults
from tests.sqs_fake.queues import LONGEST_HOLD, Message, Queue, Refused

ACCOUNT: Final = "123456789012"
REGION: Final = "eu-west-1"
MOST_IN_FLIGHT: Final = 120_000

Answer = dict[str, Any]


class Service:
    """The queues, and every call on them by its name."""

    def __init__(self, faults: Faults, url: Callable[[], str]) -> None:
        self.queues: dict[str, Queue] = {}
        self.most_in_flight = MOST_IN_FLIGHT
        self._faults = faults
        self._url = url
        self._ahead = 0.0
        self._closed = False
        self._changed = threading.Condition()
        self._actions: dict[str, Callable[[Mapping[str, Any]], Answer]] = {
            "CreateQueue": self._create,
            "GetQueueUrl": lambda request: {"QueueUrl": self._url_of(self._named(request["QueueName"]))},
            "ListQueues": lambda _: {"QueueUrls": [self._url_of(queue) for queue in self.queues.values()]},
            "DeleteQueue": self._delete_queue,
            "PurgeQueue": self._purge,
            "GetQueueAttributes": self._attributes,
            "SetQueueAttributes": self._set_attributes,
            "SendMessage": lambda request: self._send(self._queue(request), request),
            "SendMessageBatch": self._send_batch,
            "ReceiveMessage": self._receive,
            "DeleteMessage": lambda request: self._delete(self._queue(request), request),
            "DeleteMessageBatch": lambda request: self._each("DeleteMessageBatch", request, self._delete),
            "ChangeMessageVisibility": lambda request: self._hold(self._queue(request), request),
            "ChangeMessageVisibilityBatch": lambda request: self._each(
                "ChangeMessageVisibilityBatch", request, self._hold
            ),
        }

    def call(self, action: str, request: Mapping[str, Any]) -> Answer:
        """The answer to *action*. Raises Refused."""
        perform = self._actions.get(action)
        if perform is None:
            raise Refused("InvalidAction", f"The action {action} is not valid for this endpoint.")
        with self._changed:
            answer = perform(request)
            self._changed.notify_all()
            return answer

    def now(self) -> float:
        """Seconds since the epoch by the fake's clock."""
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        """That much time has passed."""
        with self._changed:
            self._ahead += seconds
            self._changed.notify_all()

    def close(self) -> None:
        """Long polls under way end at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def reopen(self) -> None:
        """Long polls wait again."""
        self._closed = False

    def stored(self, url: str) -> list[Message]:
        """The messages of the queue at *url* as they are now, oldest first."""
        with self._changed:
            return list(self._queue({"QueueUrl": url}).messages)

    def _create(self, request: Mapping[str, Any]) -> Answer:
        name, given = request["QueueName"], dict(request.get("Attributes") or {})
        if name.endswith(".fifo") != (given.get("FifoQueue") == "true"):
            raise Refused("InvalidParameterValue", "The name of a FIFO queue ends in .fifo, and no other's does.")
        if name not in self.queues:
            arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
            self.queues[name] = Queue(name, arn, given, self.now())
        return {"QueueUrl": self._url_of(self.queues[name])}

    def _delete_queue(self, request: Mapping[str, Any]) -> Answer:
        del self.queues[self._queue(request).name]
        return {}

    def _purge(self, request: Mapping[str, Any]) -> Answer:
        self._queue(request).messages.clear()
        return {}

    def _attributes(self, request: Mapping[str, Any]) -> Answer:
        queue = self._queue(request)
        known = {
            "QueueArn": queue.arn,
            "CreatedTimestamp": str(int(queue.created_at)),
            "VisibilityTimeout": "30",
            "MaximumMessageSize": str(checks.MAX_BATCH_BYTES),
            "DelaySeconds": "0",
            "ReceiveMessageWaitTimeSeconds": "0",
            **queue.counted(self.now()),
            **queue.attributes,
        }
        names = request.get("AttributeNames") or []
        wanted = {name: known[name] for name in (known if "All" in names else names) if name in known}
        return {"Attributes": wanted} if wanted else {}

    def _set_attributes(self, request: Mapping[str, Any]) -> Answer:
        self._queue(request).attributes.update(request["Attributes"])
        return {}

    def _send(self, queue: Queue, entry: Mapping[str, Any]) -> Answer:
        body, now = checks.body(queue, entry), self.now()
        message = Message(
            body,
            checks.attributes(entry),
            now,
            now + checks.delay(queue, entry),
            checks.group(queue, entry),
            checks.deduplication(queue, entry),
            ((entry.get("MessageSystemAttributes") or {}).get("AWSTraceHeader") or {}).get("StringValue"),
        )
        stored = queue.add(message, self._faults.copies(queue.fifo))
        sent = {"MessageId": stored.message_id, "MD5OfMessageBody": _md5(body)}
        return {**sent, "SequenceNumber": str(stored.sequence)} if queue.fifo else sent

    def _send_batch(self, request: Mapping[str, Any]) -> Answer:
        checks.batch_size(checks.entries(request))
        return self._each("SendMessageBatch", request, self._send)

    def _each(
        self, action: str, request: Mapping[str, Any], perform: Callable[[Queue, Mapping[str, Any]], Answer]
    ) -> Answer:
        queue = self._queue(request)
        successful: list[Answer] = []
        failed: list[Answer] = []
        for entry in checks.entries(request):
            if fault := self._faults.next(action, "entry"):
                told = {"Code": fault.code, "Message": "A test asked for this.", "SenderFault": False}
                failed.append({"Id": entry["Id"], **told})
                continue
            try:
                successful.append({"Id": entry["Id"], **perform(queue, entry)})
            except Refused as error:
                told = {"Code": error.query, "Message": error.message, "SenderFault": error.status < 500}
                failed.append({"Id": entry["Id"], **told})
        return {"Successful": successful, "Failed": failed}

    def _receive(self, request: Mapping[str, Any]) -> Answer:
        queue = self._queue(request)
        limit = checks.number(request, "MaxNumberOfMessages", 1, 1, 10)
        hold = checks.number(request, "VisibilityTimeout", queue.number("VisibilityTimeout", 30), 0, LONGEST_HOLD)
        wait = checks.number(request, "WaitTimeSeconds", queue.number("ReceiveMessageWaitTimeSeconds", 0), 0, 20)
        deadline = self.now() + wait
        while not (found := self._take(queue, limit, hold, wait)) and self.now() < deadline and not self._closed:
            # Awake now and then, as time also passes by itself: a hold's end announces itself to nobody.
            self._changed.wait(min(0.05, max(deadline - self.now(), 0)))
        return {"Messages": [_shown(message, request) for message in found]} if found else {}

    def _take(self, queue: Queue, limit: int, hold: int, wait: int) -> list[Message]:
        now = self.now()
        room = self.most_in_flight - sum(message.held(now) for message in queue.messages)
        if room <= 0 and not wait:
            raise Refused("OverLimit", "Too many messages in flight.", query="OverLimit")
        self._move_dead(queue, now)
        taken = queue.receivable(now, self._faults.reorder)[: min(limit, max(room, 0))]
        for message in taken:
            queue.hand_out(message, now, hold)
        return taken

    def _move_dead(self, queue: Queue, now: float) -> None:
        redrive = queue.redrive()
        if redrive is None:
            return
        arn, most = redrive
        [target] = [each for each in self.queues.values() if each.arn == arn]
        for message in queue.receivable(now, reorder=False):
            if message.receives >= most:
                queue.remove(message)
                message.handle, message.source_arn, message.visible_at = None, queue.arn, now
                target.messages.append(message)

    def _delete(self, queue: Queue, entry: Mapping[str, Any]) -> Answer:
        queue.delete(str(entry.get("ReceiptHandle")), self.now())
        return {}

    def _hold(self, queue: Queue, entry: Mapping[str, Any]) -> Answer:
        seconds = entry.get("VisibilityTimeout")
        if not isinstance(seconds, int):
            raise Refused("MissingParameter", "The request must contain the parameter VisibilityTimeout.")
        queue.change_visibility(str(entry.get("ReceiptHandle")), seconds, self.now())
        return {}

    def _queue(self, request: Mapping[str, Any]) -> Queue:
        return self._named(str(request.get("QueueUrl", "")).rpartition("/")[2])

    def _named(self, name: str) -> Queue:
        try:
            return self.queues[name]
        except KeyError:
            raise Refused(
                "QueueDoesNotExist",
                "The specified queue does not exist.",
                query="AWS.SimpleQueueService.NonExistentQueue",
            ) from None

    def _url_of(self, queue: Queue) -> str:
        return f"{self._url()}/{ACCOUNT}/{queue.name}"


def _shown(message: Message, request: Mapping[str, Any]) -> Answer:
    answer: Answer = {
        "MessageId": message.message_id,
        "ReceiptHandle": message.handle,
        "MD5OfBody": _md5(message.body),
        "Body": message.body,
    }
    wanted = {*(request.get("AttributeNames") or []), *(request.get("MessageSystemAttributeNames") or [])}
    system = {name: value for name, value in _system(message).items() if wanted & {"All", name}}
    names = request.get("MessageAttributeNames") or []
    own = {name: value for name, value in message.attributes.items() if any(_asks_for(each, name) for each in names)}
    if system:
        answer["Attributes"] = system
    if own:
        answer["MessageAttributes"] = own
    return answer


def _system(message: Message) -> dict[str, str]:
    known = {
        "SenderId": "AIDAEXAMPLE",
        "SentTimestamp": str(int(message.sent_at * 1000)),
        "ApproximateReceiveCount": str(message.receives),
        "ApproximateFirstReceiveTimestamp": str(int((message.first_received_at or 0) * 1000)),
        "MessageGroupId": message.group,
        "MessageDeduplicationId": message.deduplication,
        "SequenceNumber": str(message.sequence) if message.deduplication is not None else None,
        "AWSTraceHeader": message.trace,
        "DeadLetterQueueSourceArn": message.source_arn,
    }
    return {name: value for name, value in known.items() if value is not None}


def _asks_for(wanted: str, name: str) -> bool:
    return wanted in ("All", ".*", name) or (wanted.endswith(".*") and name.startswith(wanted[:-2]))


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
