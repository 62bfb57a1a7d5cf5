"""SQS: a delivery is a message, its body the delivery, its signature three message attributes.

On a standard queue the message group is the namespace, which SQS serves fairly; on a FIFO queue it is the run, so that
the copies of one run come one after the other and no run waits for another.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from endpoint_sdk.wire.messages import Delivery
from publishers import faults
from publishers.base import Due, Health, Outcome, Target
from publishers.faults import Fault
from publishers.message import message_id, signed

BATCH: Final = 10
MAX_BYTES: Final = 1_048_576
"""What a batch may weigh, and a message where the queue does not say less."""

THREADS: Final = 8

T = TypeVar("T")

_GROUP: Final = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
_CODE: Final = re.compile(r"[A-Za-z0-9._]{1,100}")

_NO_CREDENTIALS: Final = Fault("credentials_refused", "There are no AWS credentials to sign requests with.")
_LOST: Final = Fault("unknown", "The connection to SQS was lost after the batch was sent.")
_BUSY: Final = Fault("broker_unreachable", "SQS leaves every call to it without an answer.")
_NO_SQS: Final = Fault("queue_wrong_kind", "What answers there is not SQS.")
_TOO_LARGE: Final = Fault("too_large", "The delivery is larger than the queue takes (MaximumMessageSize).")
_WRONG_NAME: Final = Fault("queue_wrong_kind", "The queue's type is not what its name says (.fifo).")

_MISSING: Final = frozenset({"QueueDoesNotExist", "NonExistentQueue", "QueueDeletedRecently"})
_WRONG_KIND: Final = frozenset({"UnsupportedOperation", "InvalidAddress", "InvalidAction", "UnknownOperationException"})
_REFUSED: Final = re.compile(
    r"AccessDenied|AuthFailure|ExpiredToken|IncompleteSignature|InvalidAccessKeyId|InvalidClientTokenId"
    r"|InvalidSecurity|InvalidSignature|^K(ms|MS)|MissingAuthenticationToken|NotAuthorized|OptInRequired|RequestExpired"
    r"|SignatureDoesNotMatch|UnrecognizedClient"
)
_THROTTLED: Final = re.compile(r"Throttl|OverLimit|TooManyRequests|SlowDown|LimitExceeded|BandwidthLimit")


class Client(Protocol):
    """What the publisher needs of boto3's SQS client."""

    def send_message_batch(self, **request: Any) -> Mapping[str, Any]: ...
    def get_queue_attributes(self, **request: Any) -> Mapping[str, Any]: ...


class SqsPublisher:
    """Publishes to the queue at the target's URL over *client*, which it shares and never closes.

    The client's Config sends each request once (`retries={"total_max_attempts": 1}`), takes at most 2 s to connect and
    4 s to answer (`connect_timeout`, `read_timeout`), and has a connection for each of eight threads
    (`max_pool_connections`). It may `sqs:SendMessage` and `sqs:GetQueueAttributes`.
    """

    def __init__(self, target: Target, client: Client, *, now: Callable[[], float] = time.time) -> None:
        self._target = target
        self._client = client
        self._now = now
        self._fifo = target.url.endswith(".fifo")
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="pointsman-sqs")
        self._largest: int | None = None
        self._closed = False

    async def publish(self, due: Sequence[Due]) -> list[Outcome]:
        """What became of each delivery: batches of ten side by side, 20 s at most."""
        deadline = time.monotonic() + faults.PUBLISH_SECONDS
        if not due:
            return []
        fault = await self._obstacle(deadline)
        if fault is not None:
            return [fault.outcome()] * len(due)
        timestamp = int(self._now())
        messages = [_message(each.delivery, self._target.secrets, timestamp, fifo=self._fifo) for each in due]
        batches = packed([weigh(message) for message in messages], self._largest or MAX_BYTES)
        calls = [self._in_thread(partial(self._send, [messages[n] for n in batch]), deadline) for batch in batches]
        outcomes = [_TOO_LARGE.outcome()] * len(due)
        for batch, sent in zip(batches, await asyncio.gather(*calls), strict=True):
            found = [sent.outcome()] * len(batch) if isinstance(sent, Fault) else sent
            for number, outcome in zip(batch, found, strict=True):
                outcomes[number] = outcome
        return outcomes

    async def check(self) -> Health:
        """Whether the queue is there and of the kind its name says, within 5 s; learns how large a message may be."""
        fault = await self._learn(time.monotonic() + faults.CHECK_SECONDS)
        return (faults.NO_ANSWER if fault is faults.SILENT else fault).health() if fault else faults.ACTIVE

    async def close(self) -> None:
        """Nothing is published any more; batches being sent end by themselves. Can be repeated.

        The client belongs to whoever made it.
        """
        self._closed = True
        self._threads.shutdown(wait=False)

    async def _obstacle(self, deadline: float) -> Fault | None:
        if self._closed or not self._target.secrets:
            return faults.CLOSED if self._closed else faults.UNSIGNED
        fault = await self._learn(deadline) if self._largest is None else None
        if fault is None or fault.code in ("throttled", "broker_refused"):
            return None
        if fault.code == "credentials_refused":
            # Who may send to a queue and not look at it uses it as it is, until a check finds out more.
            self._largest = MAX_BYTES
            return None
        return faults.NO_ANSWER if fault.code == "unknown" else fault

    async def _learn(self, deadline: float) -> Fault | None:
        found = await self._in_thread(self._look, deadline)
        if isinstance(found, Fault):
            return found
        self._largest = found
        return None

    async def _in_thread(self, call: Callable[[], T | Fault], deadline: float) -> T | Fault:
        if self._closed:
            return faults.CLOSED
        job = self._threads.submit(call)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await asyncio.wrap_future(job)
        except TimeoutError:
            # A call that found no thread, because others wait for the broker, sent nothing.
            return _BUSY if job.cancelled() else faults.SILENT
        except Exception as error:
            return _reason(error)

    def _look(self) -> int | Fault:
        answer = self._client.get_queue_attributes(QueueUrl=self._target.url, AttributeNames=["All"])
        attributes = answer.get("Attributes") or {}
        if "QueueArn" not in attributes:
            return _NO_SQS
        if (attributes.get("FifoQueue") == "true") != self._fifo:
            return _WRONG_NAME
        return min(int(attributes.get("MaximumMessageSize", MAX_BYTES)), MAX_BYTES)

    def _send(self, messages: Sequence[Mapping[str, Any]]) -> list[Outcome] | Fault:
        entries = [{"Id": str(number), **message} for number, message in enumerate(messages)]
        answer = self._client.send_message_batch(QueueUrl=self._target.url, Entries=entries)
        if "Successful" not in answer and "Failed" not in answer:
            return _NO_SQS
        found = {entry["Id"]: faults.ACCEPTED for entry in answer.get("Successful", ())}
        for entry in answer.get("Failed", ()):
            found[entry["Id"]] = _by_code(str(entry.get("Code"))).outcome()
        return [found.get(entry["Id"], _LOST.outcome()) for entry in entries]

    def __repr__(self) -> str:
        return f"SqsPublisher({self._target!r})"


def packed(sizes: Sequence[int], largest: int) -> list[list[int]]:
    """The places of *sizes* in batches of at most ten and 1 MiB, in order; those over *largest* are in none."""
    batches: list[list[int]] = []
    room = 0
    for number, size in enumerate(sizes):
        if size > largest:
            continue
        if not batches or len(batches[-1]) == BATCH or size > room:
            batches.append([])
            room = MAX_BYTES
        batches[-1].append(number)
        room -= size
    return batches


def weigh(message: Mapping[str, Any]) -> int:
    """The bytes SQS counts of *message*, all of it ASCII: its body, and names, types and values of its attributes."""
    attributes: Mapping[str, Mapping[str, str]] = message["MessageAttributes"]
    told = sum(len(name) + len(value["DataType"]) + len(value["StringValue"]) for name, value in attributes.items())
    return len(message["MessageBody"]) + told


def group_of(namespace: str) -> str:
    """The message group of *namespace* on a standard queue: its name, or a digest where SQS takes no such name."""
    if _GROUP.fullmatch(namespace):
        return namespace
    return "ns-" + hashlib.sha256(namespace.encode()).hexdigest()[:32]


def _message(delivery: Delivery, secrets: Sequence[bytes], timestamp: int, *, fifo: bool) -> dict[str, Any]:
    headers, body = signed(delivery, secrets, timestamp)
    message = {
        "MessageBody": body.decode(),
        "MessageAttributes": {name: {"DataType": "String", "StringValue": value} for name, value in headers.items()},
        "MessageGroupId": delivery.run_id if fifo else group_of(delivery.namespace),
    }
    if fifo:
        # A later copy is a message of its own: SQS would drop it for five minutes if it bore the first one's id.
        message["MessageDeduplicationId"] = f"{message_id(delivery)}_{timestamp}"
    return message


def _reason(error: Exception) -> Fault:
    from botocore import exceptions, parsers

    if isinstance(error, exceptions.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        fault = _by_code(str(error.response.get("Error", {}).get("Code")))
        failing = status >= 500 and fault.code == "broker_refused"
        return Fault("unknown", f"SQS answered {status}.") if failing else fault
    by_type: tuple[tuple[tuple[type[Exception], ...], Fault], ...] = (
        (
            (
                exceptions.EndpointConnectionError,
                exceptions.ConnectTimeoutError,
                exceptions.ProxyConnectionError,
                exceptions.SSLError,
            ),
            faults.unreachable("SQS", error),
        ),
        (
            (
                exceptions.NoCredentialsError,
                exceptions.PartialCredentialsError,
                exceptions.CredentialRetrievalError,
                exceptions.TokenRetrievalError,
                exceptions.UnauthorizedSSOTokenError,
            ),
            _NO_CREDENTIALS,
        ),
        ((exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError), _LOST),
        ((parsers.ResponseParserError,), _NO_SQS),
    )
    for kinds, fault in by_type:
        if isinstance(error, kinds):
            return fault
    return Fault("broker_refused", f"Nothing was sent: the client refused the request ({type(error).__name__}).")


def _by_code(code: str) -> Fault:
    name = code.removeprefix("AWS.SimpleQueueService.")
    shown = name if _CODE.fullmatch(name) else "without a proper code"
    if _THROTTLED.search(name):
        return Fault("throttled", f"SQS takes no more now ({shown}).")
    if name in _MISSING:
        return Fault("queue_missing", f"The queue does not exist ({shown}).")
    if name in _WRONG_KIND:
        return Fault("queue_wrong_kind", f"What is at the queue's URL does not take messages ({shown}).")
    if _REFUSED.search(name):
        return Fault("credentials_refused", f"AWS refused the credentials or the permission ({shown}).")
    return Fault("broker_refused", f"SQS refused the delivery ({shown}).")
