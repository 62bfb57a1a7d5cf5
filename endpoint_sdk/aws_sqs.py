"""Batches of an SQS event source: which records a dispatcher sent, and what becomes of each.

Lambda deletes every message of a batch that the answer does not name as a failure, so the answer always says it
explicitly and names whatever is not settled. Signatures are judged at the time SQS took the message in: a slow queue
makes no valid message too old (the claim refuses a stale revision all the same).
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from msgspec import Struct

from endpoint_sdk import redelivery
from endpoint_sdk.aws_events import HttpEvent
from endpoint_sdk.wire import signature

if TYPE_CHECKING:
    from endpoint_sdk.host_time import Remaining

_log: Final = logging.getLogger(__name__)

# "busy" is also what there was no time to start.
Outcome = Literal["settled"] | redelivery.Unsettled

_SOURCE: Final = "aws:sqs"
_HEADERS: Final = (signature.HEADER_ID, signature.HEADER_TIMESTAMP, signature.HEADER_SIGNATURE)
_WHOLE: Final = re.compile(r"[0-9]{1,16}")

_UNSETTLED: Final[tuple[redelivery.Unsettled, ...]] = get_args(redelivery.Unsettled)


class Record(Struct, frozen=True):
    """A message that a dispatcher sent; *sent_at* is when SQS took it in, in seconds since the epoch."""

    message_id: str
    arn: str
    receipt_handle: str
    headers: dict[str, str]
    body: bytes
    sent_at: float
    receives: int
    group: str


class Failure(Struct, frozen=True):
    """A record that is not settled, and in how many seconds it should come again."""

    record: Record
    delay: int


class Batch(Struct, frozen=True):
    """The records of one event: ours, at least one, and those of others."""

    ours: list[Record]
    theirs: list[Any]

    @property
    def arn(self) -> str:
        """The queue all of them come from."""
        return self.ours[0].arn

    @property
    def fifo(self) -> bool:
        """Whether the order of a group's messages counts."""
        return self.arn.endswith(".fifo")


def batch(event: object) -> Batch | None:
    """The batch in *event* if at least one of its messages was sent by a dispatcher; never raises."""
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, list):
        return None
    ours: list[Record] = []
    theirs: list[Any] = []
    for each in records:
        record = _record(each)
        if record is None:
            theirs.append(each)
        else:
            ours.append(record)
    return Batch(ours, theirs) if ours else None


async def work_off(
    batch: Batch,
    deliver: Callable[[Record], Awaitable[Outcome]],
    outcomes: MutableMapping[str, Outcome],
    *,
    at_once: int,
    remaining: "Remaining | None",
) -> None:
    """*outcomes* holds what became of every record of ours, by message id.

    At most *at_once* records are under way at a time; none is started once only twice the margin of the time is left,
    or half of it. On a FIFO queue the records of a group go one after the other, and those after the first failure are
    not started.
    """
    in_time = _in_time(remaining)
    places = asyncio.Semaphore(at_once)

    async def lane(records: Iterable[Record]) -> None:
        async with places:
            ahead: Outcome = "settled"
            for record in records:
                if ahead == "settled":
                    ahead = await _one(record, deliver) if in_time() else "busy"
                # Behind a failure a record shares its outcome. A message received twice is settled when both are.
                if ahead != "settled" or record.message_id not in outcomes:
                    outcomes[record.message_id] = ahead

    # One that is cancelled, by user code that cancels whatever it finds, leaves the others alone and its outcome open.
    await asyncio.gather(*(lane(records) for records in _lanes(batch)), return_exceptions=True)


def outcome(result: str) -> Outcome:
    """What the endpoint's *result* for a message means for it."""
    if result in ("settled", "discovered"):
        return "settled"
    return next((each for each in _UNSETTLED if each == result), "retry")


def failures(batch: Batch, outcomes: Mapping[str, Outcome]) -> list[Failure]:
    """The records of ours that are not settled; one whose outcome nobody knows is tried again.

    On a FIFO queue none of a group comes again before the one ahead of it.
    """
    found = []
    ahead: dict[str, int] = {}
    for record in batch.ours:
        became = outcomes.get(record.message_id, "retry")
        if became != "settled":
            wait = redelivery.delay(became, record.receives)
            if batch.fifo:
                wait = ahead[record.group] = max(wait, ahead.get(record.group, 0))
            found.append(Failure(record, wait))
    return found


def report(message_ids: Iterable[str]) -> dict[str, Any]:
    """The answer under which Lambda keeps just these messages of the batch."""
    return {"batchItemFailures": [{"itemIdentifier": each} for each in dict.fromkeys(message_ids)]}


def merged(ours: Sequence[str], theirs: Sequence[str], answer: Any) -> dict[str, Any]:
    """The failed *ours* together with what the user's *answer*, read as Lambda reads it, says of *theirs*, its records.

    Nothing, and no failures, is success; a failure that names none of its records, or an answer that cannot be read,
    fails all of its records, and none of ours.
    """
    failed = _reported(answer, theirs)
    if failed is None:
        _log.error(
            "the handler's answer to its SQS messages cannot be read: all of them are reported as failures",
            extra={"answer": type(answer).__name__},
        )
        failed = theirs
    others = answer if isinstance(answer, dict) else {}
    return {**others, **report([*ours, *failed])}


def message_ids(records: Iterable[Any]) -> list[str]:
    """The ids of *records* that have one."""
    found = (each.get("messageId") for each in records if isinstance(each, Mapping))
    return [each for each in found if isinstance(each, str)]


def _reported(answer: Any, ids: Sequence[str]) -> Sequence[str] | None:
    """The ids *answer* reports, None if it cannot be read."""
    if not answer:
        return []
    if not isinstance(answer, Mapping):
        return None
    entries = answer.get("batchItemFailures") or []
    if not isinstance(entries, list | tuple):
        return None
    found = [each.get("itemIdentifier") if isinstance(each, Mapping) else None for each in entries]
    known = frozenset(ids)
    named = [each for each in found if isinstance(each, str) and each in known]
    return named if len(named) == len(found) else None


async def _one(record: Record, deliver: Callable[[Record], Awaitable[Outcome]]) -> Outcome:
    try:
        return await deliver(record)
    except Exception:
        _log.exception("handling a message failed", extra={"message_id": record.message_id})
        return "retry"


def _lanes(batch: Batch) -> Iterable[list[Record]]:
    if not batch.fifo:
        return [[record] for record in batch.ours]
    groups: dict[str, list[Record]] = {}
    for record in batch.ours:
        groups.setdefault(record.group, []).append(record)
    return groups.values()


def _in_time(remaining: "Remaining | None") -> Callable[[], bool]:
    from endpoint_sdk.host_time import margin

    limit = None if remaining is None else remaining()
    if remaining is None or limit is None:
        return lambda: True
    # With less than a margin for itself a run would be claimed only to be handed off, and that counts against it (I10).
    least = min(timedelta(seconds=2 * margin(limit)), limit / 2)

    def enough() -> bool:
        left = remaining()
        return left is None or left > least

    return enough


def _record(record: object) -> Record | None:
    """*record* if a dispatcher sent it: it is signed as a webhook, and its id or its body's type is one of ours."""
    if not isinstance(record, Mapping) or record.get("eventSource") != _SOURCE:
        return None
    named: list[Any] = [record.get(name) for name in ("messageId", "eventSourceARN", "receiptHandle", "body")]
    if not all(isinstance(each, str) for each in named):
        return None
    message_id, arn, receipt_handle, text = named
    headers = _headers(record.get("messageAttributes"))
    body = text.encode("utf-8", "surrogatepass")
    if len(headers) < len(_HEADERS) or not HttpEvent("POST", list(headers.items()), body).ours:
        return None
    given = record.get("attributes")
    attributes: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    sent_at = _whole(attributes.get("SentTimestamp"))
    return Record(
        message_id,
        arn,
        receipt_handle,
        headers,
        body,
        time.time() if sent_at is None else sent_at / 1000,
        _whole(attributes.get("ApproximateReceiveCount")) or 1,
        str(attributes.get("MessageGroupId", "")),
    )


def _headers(attributes: object) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _HEADERS:
        attribute = attributes.get(name) if isinstance(attributes, Mapping) else None
        value = attribute.get("stringValue") if isinstance(attribute, Mapping) else None
        if isinstance(value, str):
            found[name] = value
    return found


def _whole(value: object) -> int | None:
    text = str(value)
    return int(text) if _WHOLE.fullmatch(text) else None
