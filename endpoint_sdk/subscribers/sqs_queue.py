"""Takes deliveries from an SQS queue; each message stays invisible to others while its run executes.

    receive ── a thread for each long poll ──> messages, held by the heartbeat's thread from the moment they are here
    done, back ── the thread of acknowledgements

A message that nobody says anything about any more, because this process died, comes again when its visibility timeout
is over. Saying that a message is done can fail, and a hold can be lost: both cost a duplicate, which the claim of its
run refuses.
"""

import asyncio
import importlib.util
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from endpoint_sdk import config, monotonic
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.subscribers import sqs_client
from endpoint_sdk.subscribers.base import Claim, Message, Setup, SubscriberFailed
from endpoint_sdk.subscribers.errand import Errand
from endpoint_sdk.subscribers.pools import checked
from endpoint_sdk.subscribers.sqs_acks import Acks
from endpoint_sdk.subscribers.sqs_visibility import LONGEST_HOLD, Heartbeat, Receipt, allowed
from endpoint_sdk.wire import signature

_BATCH: Final = 10
_FIFO: Final = ".fifo"
# What is said about a message holds up its worker no longer than this; the thread goes on trying.
_PATIENCE: Final = 5.0
_BEAT_UNDER_WAY: Final = 10.0

_HEADERS: Final = [signature.HEADER_ID, signature.HEADER_TIMESTAMP, signature.HEADER_SIGNATURE]

_Raw = Mapping[str, Any]


class SqsSubscriber:
    """Takes messages of the queue at *queue_url*; runs of *pools* are polled for while the queue fails.

    A message is hidden for *visibility_timeout* (1 second to 12 hours) at a time and this is extended while its run
    executes, for up to 11.5 hours; *wait* (1 to 20 seconds) is the long poll. *client* is a boto3 SQS client to use
    instead of clients of its own, which find region and credentials as boto3 does and use *endpoint_url* if given.
    FIFO queues are received from one message at a time, so that no two of a group are under way here.

    Raises ConfigurationError for what could not work, and without boto3 when no client is given.
    """

    def __init__(
        self,
        queue_url: str,
        *,
        pools: Sequence[str] = ("default",),
        visibility_timeout: timedelta = timedelta(seconds=60),
        wait: timedelta = timedelta(seconds=20),
        endpoint_url: str | None = None,
        client: Any = None,
    ) -> None:
        self._pools = checked(pools)
        self._url = config.url(queue_url, "sqs(queue_url)") or ""
        self._endpoint_url = config.url(endpoint_url, "sqs(endpoint_url=)")
        self._window = _seconds(visibility_timeout, "sqs(visibility_timeout=)", LONGEST_HOLD)
        self._wait = _seconds(wait, "sqs(wait=)", 20)
        self._given = client
        self._most = 1 if self._url.endswith(_FIFO) else _BATCH
        self._opened: _Opened | None = None
        self._polls: set[Errand[list[Message]]] = set()
        if client is None and importlib.util.find_spec("boto3") is None:
            raise ConfigurationError(sqs_client.MISSING)

    @property
    def pools(self) -> Sequence[str]:
        """The pools whose runs the queue carries."""
        return self._pools

    async def open(self, setup: Setup) -> None:  # noqa: ARG002 - the contract's
        """The queue was asked for its name, and is there. Raises SubscriberFailed."""
        opened = self._opened
        if opened is None:
            opened = await Errand("pointsman-sqs-open", self._connect, _Opened.disconnect).result()
            self._opened = opened
        await Errand("pointsman-sqs-open", opened.look).result()

    async def receive(self, limit: int) -> Sequence[Message | Claim]:
        """Up to *limit* messages, at most ten, one from a FIFO queue; none when the long poll ends first.

        Raises SubscriberFailed. Cancelled, it leaves the long poll to its thread, which gives back what that brings.
        """
        opened = self._opened
        if opened is None:
            raise SubscriberFailed("the subscriber is closed")
        most = min(limit, self._most)
        poll = Errand("pointsman-sqs-poll", lambda: opened.poll(most), opened.give_back)
        self._polls = {each for each in self._polls if not each.ended.is_set()} | {poll}
        return await poll.result()

    async def done(self, item: Message | Claim) -> None:
        """The message is deleted; if SQS does not say so in time, a thread goes on trying."""
        await self._say(item, None)

    async def back(self, item: Message | Claim, delay: float = 0) -> None:
        """The message is visible again after *delay* seconds, rounded up."""
        await self._say(item, delay)

    def held_for(self, item: Message | Claim) -> float | None:
        """Seconds since SQS last said that *item* stays hidden."""
        receipt = item.receipt if isinstance(item, Message) else None
        return max(monotonic.now() - receipt.confirmed_at, 0.0) if isinstance(receipt, Receipt) else None

    async def close(self, timeout: float) -> None:
        """Nothing is hidden any more; waits at most *timeout* seconds for long polls under way, which give back."""
        opened, self._opened = self._opened, None
        for poll in self._polls:
            poll.abandon()
        ending: list[asyncio.Task[Any]] = [
            asyncio.create_task(poll.ended.wait()) for poll in self._polls if not poll.ended.is_set()
        ]
        if opened is not None:
            ending.append(asyncio.create_task(Errand("pointsman-sqs-close", opened.close).result()))
        if ending:
            _, pending = await asyncio.wait(ending, timeout=max(timeout, 0))
            for waiting in pending:
                waiting.cancel()

    async def _say(self, item: Message | Claim, delay: float | None) -> None:
        if self._opened is not None and isinstance(item, Message) and isinstance(item.receipt, Receipt):
            await self._opened.say(item.receipt, delay)

    def _connect(self) -> "_Opened":
        if self._given is not None:
            return _Opened(self._given, self._given, self._url, self._window, self._wait)
        polls = sqs_client.for_polls(self._url, self._endpoint_url, self._wait)
        acks = sqs_client.for_acks(self._url, self._endpoint_url, self._window)
        return _Opened(polls, acks, self._url, self._window, self._wait, own=True)

    def __repr__(self) -> str:
        return f"SqsSubscriber({self._url!r})"


class _Opened:
    """The clients of an open subscriber and the threads behind it; polls use connections of their own."""

    def __init__(self, polls: Any, acks: Any, url: str, window: int, wait: int, *, own: bool = False) -> None:
        self._polls = polls
        self._ack_client = acks
        self._url = url
        self._window = window
        self._wait = sqs_client.patience(polls, wait)
        self._own = own
        self._acks = Acks(acks, url)
        self._heartbeat = Heartbeat(self._acks.change, window)
        self._closed = False

    def look(self) -> None:
        """The queue is there. Raises SubscriberFailed."""
        try:
            self._ack_client.get_queue_attributes(QueueUrl=self._url, AttributeNames=["QueueArn"])
        except Exception as error:
            # A worker need not be allowed to look: whether it may receive shows when it does.
            if not sqs_client.code(error).startswith("AccessDenied"):
                raise sqs_client.failure(error, self._url) from None

    def poll(self, most: int) -> list[Message]:
        """One long poll; what it brings is held from now on. Blocks. Raises SubscriberFailed."""
        asked_at = monotonic.now()
        try:
            answer = self._polls.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=most,
                WaitTimeSeconds=self._wait,
                VisibilityTimeout=self._window,
                AttributeNames=["SentTimestamp", "ApproximateReceiveCount"],
                MessageAttributeNames=_HEADERS,
            )
        except Exception as error:
            self._leave()
            raise sqs_client.failure(error, self._url) from None
        now = monotonic.now()
        found = [_message(raw, Receipt(raw["ReceiptHandle"], asked_at, now)) for raw in answer.get("Messages", ())]
        self._heartbeat.hold(message.receipt for message in found)
        return found

    def give_back(self, found: Sequence[Message]) -> None:
        """Messages nobody waits for any more are visible again. Blocks; never raises."""
        for message in found:
            self._heartbeat.drop(message.receipt)
        self._give_back([message.receipt for message in found])
        self._leave()

    async def say(self, receipt: Receipt, delay: float | None) -> None:
        """The message is deleted, or with *delay* hidden for that long and no longer held here. Never raises."""
        self._heartbeat.drop(receipt)
        seconds = None if delay is None else allowed(receipt, max(delay, 0), monotonic.now())
        await self._acks.send(
            receipt.handle, seconds, lambda: self._heartbeat.settle(receipt, _BEAT_UNDER_WAY), _PATIENCE
        )

    def close(self) -> None:
        """Gives back what is still held and ends the threads. Blocks until they have ended."""
        held = self._heartbeat.held()
        self._heartbeat.close()
        if thread := self._acks.close():
            thread.join()
        self._give_back(held)
        self._closed = True
        self.disconnect()

    def disconnect(self) -> None:
        """Connections are closed, unless somebody else's client has them."""
        if self._own:
            self._polls.close()
            self._ack_client.close()

    def _leave(self) -> None:
        """A long poll that ends after `close` may have opened connections again."""
        if self._closed:
            self.disconnect()

    def _give_back(self, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            self._heartbeat.settle(receipt, _BEAT_UNDER_WAY)
        for start in range(0, len(receipts), _BATCH):
            self._acks.give_back([receipt.handle for receipt in receipts[start : start + _BATCH]])


def _message(raw: _Raw, receipt: Receipt) -> Message:
    system = raw.get("Attributes", {})
    sent_ms = system.get("SentTimestamp")
    headers = {
        name: value["StringValue"]
        for name, value in raw.get("MessageAttributes", {}).items()
        if isinstance(value.get("StringValue"), str)
    }
    return Message(
        headers,
        # Half a surrogate, which not every SQS refuses, makes no signature valid and no receive fail.
        str(raw.get("Body", "")).encode(errors="surrogatepass"),
        None if sent_ms is None else int(sent_ms) / 1000,
        receipt,
        int(system.get("ApproximateReceiveCount", 1)),
    )


def _seconds(given: object, name: str, longest: int) -> int:
    if not isinstance(given, timedelta) or not timedelta(seconds=1) <= given <= timedelta(seconds=longest):
        raise ConfigurationError(f"{name} is a timedelta from 1 second to {timedelta(seconds=longest)}")
    if given % timedelta(seconds=1):
        raise ConfigurationError(f"{name} is a number of whole seconds: SQS knows no others")
    return int(given.total_seconds())
