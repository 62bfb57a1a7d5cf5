"""What the SQS subscriber says when it cannot receive, what it refuses to be made with, and what it leaves alone."""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from endpoint_sdk import monotonic
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.refresher import Hold, Refresher
from endpoint_sdk.subscribers import sqs_client
from endpoint_sdk.subscribers.base import Message, SubscriberFailed
from endpoint_sdk.subscribers.sqs_queue import SqsSubscriber
from endpoint_sdk.transport import Answer
from endpoint_sdk.transport.errors import AnswerTimeout
from endpoint_sdk.wire.messages import HeldClaim
from tests.contract.sqs_subscribing import DEADLINE, SETUP, beats, opened, send, subscriber, until
from tests.sqs_fake import SqsFake


@pytest.fixture
def url(sqs_fake: SqsFake) -> str:
    return sqs_fake.sqs.queue()


# --- errors ----------------------------------------------------------------------------------------------------------
async def test_a_missing_queue_is_named(sqs_fake: SqsFake) -> None:
    """Opening says which queue there is not."""
    missing = f"{sqs_fake.endpoint_url}/123456789012/nowhere"

    with pytest.raises(SubscriberFailed, match=r"there is no SQS queue .*/nowhere"):
        await subscriber(missing).open(SETUP)


async def test_a_queue_deleted_later_is_named(sqs_fake: SqsFake, url: str) -> None:
    """Receiving says so too."""
    async with opened(url) as one:
        sqs_fake.sqs.client.delete_queue(QueueUrl=url)
        with pytest.raises(SubscriberFailed, match="there is no SQS queue"):
            await one.receive(1)


class Lenient:
    """The client of an SQS that takes in any body; it hands out one message."""

    def __init__(self, body: str) -> None:
        self._body = body

    def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        return {}

    def receive_message(self, **_: Any) -> dict[str, Any]:
        return {"Messages": [{"ReceiptHandle": "h", "Body": self._body}]}

    def change_message_visibility_batch(self, **_: Any) -> dict[str, Any]:
        return {"Successful": [{"Id": "0"}]}


async def test_a_body_that_is_no_text_is_received_all_the_same(url: str) -> None:
    """Its signature is what gets refused; failing the receive would keep what came along with it from everybody."""
    async with opened(url, client=Lenient("\ud800")) as one:
        [item] = await one.receive(1)

    assert isinstance(item, Message)
    assert (item.body, item.headers) == (b"\xed\xa0\x80", {})


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("InvalidClientTokenId", "refuses this process's credentials"),
        ("ExpiredToken", "refuses this process's credentials"),
        ("RequestThrottled", "SQS answers RequestThrottled"),
    ],
)
async def test_a_refusal_is_a_sentence(sqs_fake: SqsFake, url: str, code: str, said: str) -> None:
    """What SQS refuses is told with its code, without the message AWS gave and without a secret."""
    async with opened(url) as one:
        sqs_fake.faults.fail("ReceiveMessage", code, 403)
        with pytest.raises(SubscriberFailed) as failed:
            await one.receive(1)

    assert said in str(failed.value)
    assert "testing" not in str(failed.value)


async def test_a_worker_need_not_be_allowed_to_look(sqs_fake: SqsFake, url: str) -> None:
    """Receive, delete and change of visibility are all the permissions it needs."""
    sqs_fake.faults.fail("GetQueueAttributes", "AccessDeniedException", 403)
    send(sqs_fake, url)
    async with opened(url) as one:
        [item] = await one.receive(1)
        await one.done(item)


async def test_no_credentials_are_said_to_be_missing(
    sqs_fake: SqsFake, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without credentials is told so, not that SQS is away."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    with pytest.raises(SubscriberFailed, match="no AWS credentials can be had"):
        await subscriber(url).open(SETUP)


async def test_an_unreachable_queue_is_said_to_be_so(sqs_fake: SqsFake, url: str) -> None:
    """Nobody listens: that is what is said."""
    sqs_fake.down()

    with pytest.raises(SubscriberFailed, match="SQS cannot be reached"):
        await subscriber(url).open(SETUP)


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says what to install."""
    monkeypatch.setitem(sys.modules, "boto3", None)

    with pytest.raises(ConfigurationError, match=r"pointsman\[sqs\]"):
        subscriber("https://sqs.eu-west-1.amazonaws.com/1/orders")
    with pytest.raises(SubscriberFailed, match=r"pointsman\[sqs\]"):
        sqs_client.for_polls("https://sqs.eu-west-1.amazonaws.com/1/orders", None, 20)


async def test_a_given_client_is_used_and_stays_open(
    sqs_fake: SqsFake, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of the user's serves for everything, needs no boto3 of ours, and is not closed."""
    client = sqs_fake.sqs.client
    monkeypatch.setitem(sys.modules, "boto3", None)
    send(sqs_fake, url)
    async with opened(url, client=client) as one:
        [item] = await one.receive(1)
        await one.done(item)

    assert client.list_queues()["QueueUrls"] == [url]


def test_a_client_that_gives_up_sooner_waits_less(sqs_fake: SqsFake) -> None:
    """A long poll never outlasts the patience of the client it goes through."""
    from tests.brokers import sqs_client as made

    client = made(sqs_fake.endpoint_url, read_timeout=5)

    assert sqs_client.patience(client, 20) == 4
    assert sqs_client.patience(sqs_fake.sqs.client, 20) == 20
    client.close()


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/1/orders", "eu-west-1"),
        ("https://sqs-fips.us-gov-west-1.amazonaws.com/1/orders", "us-gov-west-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/orders", "cn-north-1"),
        ("https://eu-central-1.queue.amazonaws.com/1/orders", "eu-central-1"),
        ("https://vpce-1-2.sqs.eu-west-1.vpce.amazonaws.com/1/orders", "eu-west-1"),
        ("https://sqs.eu-west-1.api.aws/1/orders", "eu-west-1"),
        ("http://127.0.0.1:9324/1/orders", None),
        ("https://sqs.example.com/1/orders", None),
    ],
)
def test_the_region_is_the_queues(url: str, region: str | None) -> None:
    """A queue's URL names its region, whatever region the process is set up for."""
    assert sqs_client.region_of(url) == region


@pytest.mark.parametrize(
    "options",
    [
        {"queue_url": "orders"},
        {"queue_url": "https://user:secret-word@sqs.eu-west-1.amazonaws.com/1/orders"},
        {"visibility_timeout": timedelta(0)},
        {"visibility_timeout": timedelta(hours=12, seconds=1)},
        {"visibility_timeout": timedelta(milliseconds=1500)},
        {"visibility_timeout": 60},
        {"wait": timedelta(seconds=21)},
        {"pools": "default"},
        {"pools": []},
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(options: dict[str, Any]) -> None:
    """A wrong setting is found before anything is opened, and told without a secret."""
    given = {"queue_url": "https://sqs.eu-west-1.amazonaws.com/1/orders", **options}

    with pytest.raises(ConfigurationError) as refused:
        SqsSubscriber(**given)
    assert "secret-word" not in str(refused.value)


async def test_a_failing_heartbeat_is_said_once(sqs_fake: SqsFake, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that is away for a while does not fill the log."""
    send(sqs_fake, url)
    async with opened(url, hold=1) as one:
        [item] = await one.receive(1)
        with caplog.at_level(logging.WARNING, "endpoint_sdk"):
            sqs_fake.faults.fail("ChangeMessageVisibilityBatch", "InternalError", 500, times=10_000)
            await until(lambda: (one.held_for(item) or 0) > 2)
            sqs_fake.faults.clear()
        await one.done(item)

    assert len([record for record in caplog.records if "cannot be kept hidden" in record.message]) == 1


# --- beside the claim ------------------------------------------------------------------------------------------------
class Dispatcher:
    """Answers claim refreshes, or lets them hang; the refresher's transport."""

    def __init__(self) -> None:
        self.refreshed = 0
        self.answering = threading.Event()
        self.answering.set()

    def request(self, *_call: object, timeout: float, **_options: object) -> Answer:
        if not self.answering.wait(timeout):
            raise AnswerTimeout("nothing came")
        self.refreshed += 1
        held = {"runId": "run_1", "expectedRevision": 1, "stop": None}
        return Answer(200, {}, msgspec.json.encode({"held": [held], "lost": []}))

    def close(self) -> None:
        """Has no connection."""


@contextmanager
def refreshing(dispatcher: Dispatcher) -> Iterator[list[str]]:
    """A claim is refreshed within the context; the codes of its losses."""
    lost: list[str] = []
    refresher = Refresher(lambda: dispatcher)
    claim = HeldClaim("run_1", 1, "clm_1", "pmw_1")
    refresher.hold(Hold("http://dispatcher", claim, 0.05, monotonic.now(), lost.append, lambda _: None))
    yield lost
    refresher.close(DEADLINE)


async def test_a_stopped_heartbeat_does_not_stop_the_claim_refresh(sqs_fake: SqsFake, url: str) -> None:
    """SQS hangs, the hold runs out, somebody else gets the message: the claim is refreshed on and is not lost."""
    dispatcher = Dispatcher()
    send(sqs_fake, url)
    async with opened(url, hold=1) as one:
        [item] = await one.receive(1)
        with refreshing(dispatcher) as lost:
            sqs_fake.faults.hang("ChangeMessageVisibilityBatch", times=100)
            await until(lambda: sqs_fake.sqs.receive(url))
            seen = dispatcher.refreshed
            await until(lambda: dispatcher.refreshed >= seen + 5)
            assert lost == []
        sqs_fake.faults.clear()
        sqs_fake.release()
        await one.done(item)


async def test_a_stopped_claim_refresh_does_not_stop_the_heartbeat(sqs_fake: SqsFake, url: str) -> None:
    """The dispatcher hangs: the message stays hidden all the same."""
    dispatcher = Dispatcher()
    send(sqs_fake, url)
    async with opened(url, hold=2) as one:
        [item] = await one.receive(1)
        with refreshing(dispatcher):
            await until(lambda: dispatcher.refreshed)
            dispatcher.answering.clear()
            await until(lambda: beats(sqs_fake) >= 5)
            assert sqs_fake.sqs.receive(url) == []
            dispatcher.answering.set()
        await one.done(item)
