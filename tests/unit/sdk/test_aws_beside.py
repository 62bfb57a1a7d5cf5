"""endpoint_sdk.aws_lambda over a handler of the user's: its messages reach it, ours do not, and nothing is lost."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.wire import messages
from tests.acceptance.lambda_runtime import events
from tests.unit.sdk import pushes
from tests.unit.sdk.batches import OTHER, THEIRS, Context, Site, batch, failing, sites


@pytest.fixture
def site() -> Iterator[Site]:
    with sites() as made:
        yield made()


def test_a_batch_without_ours_passes_through_untouched(site: Site) -> None:
    """The very event, the very answer and the very exception."""
    event, answer = batch(THEIRS), object()
    seen: list[object] = []

    @site.handler
    def mine(event: Any, context: Any) -> Any:
        seen.append(event)
        return answer

    assert mine(event, Context()) is answer
    assert seen[0] is event


def test_ours_come_first_and_the_user_gets_only_its_own(site: Site) -> None:
    """The event is a copy with the user's messages, in their order; the one Lambda handed over is not changed."""
    seen: list[Any] = []

    @site.handler
    def mine(event: Any, context: Any) -> Any:
        seen.append((event, type(site.dispatcher.ending)))
        return failing("u2")

    records = [THEIRS, site.ours("m1"), site.ours("m2", workflow="unheard-of"), OTHER]
    event = batch(*records, more=1)
    answer = mine(event, Context())

    assert seen == [({"Records": [THEIRS, OTHER], "more": 1}, messages.Complete)]
    assert answer == failing("m2", "u2")
    assert event["Records"] == records


def test_what_the_user_does_to_its_event_loses_nothing(site: Site) -> None:
    """A handler may take its records off the list, or change them: the failures it reports are still its own."""

    @site.handler
    def mine(event: Any, context: Any) -> Any:
        failed = []
        while event["Records"]:
            record = event["Records"].pop()
            failed.append(record.pop("messageId"))
        return failing(*failed)

    theirs = [dict(THEIRS), dict(OTHER)]

    assert mine(batch(site.ours(), *theirs), Context()) == failing("u2", "u1")


def test_a_batch_of_ours_alone_does_not_reach_the_user(site: Site) -> None:
    """There is nothing in it for that handler."""

    @site.handler
    def mine(event: Any, context: Any) -> Any:
        raise AssertionError("called")

    assert mine(batch(site.ours()), Context()) == failing()


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_the_users_exception_is_raised_with_ours_settled(site: Site, raised: BaseException) -> None:
    """It is never turned into failures of messages that are not ours; Lambda keeps the batch, and the claims refuse
    the copies of ours."""

    @site.handler
    def mine(event: Any, context: Any) -> Any:
        raise raised

    @site.handler
    async def mine_async(event: Any, context: Any) -> Any:
        raise raised

    for handler in (mine, mine_async):
        with pytest.raises(type(raised)) as caught:
            handler(batch(site.ours(revision=4), THEIRS), Context())
        assert caught.value is raised
        assert isinstance(site.dispatcher.ending, messages.Complete)


def test_an_async_handler_is_awaited(site: Site) -> None:
    """Its answer is merged like any other."""

    @site.handler
    async def mine(event: Any, context: Any) -> Any:
        return failing(*(record["messageId"] for record in event["Records"]))

    assert mine(batch(site.ours(), THEIRS, OTHER), Context()) == failing("u1", "u2")


def test_ours_leave_half_of_the_time_to_the_user(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run uses what it gets; a handler written for the whole timeout is not started at its end."""
    left: list[timedelta] = []
    handle = site.endpoint.handle

    async def watched(*words: Any, **named: Any) -> Any:
        remaining: Callable[[], timedelta] = words[3]
        left.append(remaining())
        return await handle(*words, **named)

    monkeypatch.setattr(site.endpoint, "handle", watched)
    mine: Any = site.handler(lambda event, context: None)
    mine(batch(site.ours(revision=4), THEIRS), Context())
    mine(batch(site.ours(revision=4)), Context())

    assert timedelta(seconds=200) < left[0] <= timedelta(seconds=300)
    assert timedelta(seconds=500) < left[1] <= timedelta(seconds=600)


def test_without_a_handler_what_is_not_ours_is_kept(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Reported as failures, and the log says why and what to do."""
    assert site.handler(batch(THEIRS, site.ours(), OTHER), Context()) == failing("u1", "u2")
    assert "@endpoint.lambda_handler" in caplog.text


def test_without_a_handler_a_batch_without_ours_is_an_error(site: Site) -> None:
    """Raising keeps every message whatever the event source mapping is told to read."""
    with pytest.raises(ConfigurationError, match="aws:sqs"):
        site.handler(batch(THEIRS), Context())


def test_a_discovery_in_a_queue_is_settled(site: Site) -> None:
    """Nothing waits for its answer, and nothing is to be done again."""
    body = msgspec.json.encode(messages.Discover("orders", "http://dispatcher.test"))
    record = events.sqs_record("m1", pushes.signed(body, message_id="req_01JQ0000000000000000000000"), body)

    assert site.handler(batch(record), Context()) == failing()
