"""endpoint_sdk.aws_lambda and batches of ours: what is settled is deleted, and the rest comes again in its time."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from endpoint_sdk.wire import messages, signature
from tests.unit.sdk import pushes
from tests.unit.sdk.batches import THEIRS, Context, Site, batch, failing, sites


@pytest.fixture
def make() -> Iterator[Callable[..., Site]]:
    """Sites with options of an endpoint."""
    with sites() as made:
        yield made


@pytest.fixture
def site(make: Callable[..., Site]) -> Site:
    return make()


def test_what_is_settled_is_no_failure(site: Site) -> None:
    """A run that ended, and a copy whose claim is refused; the list is there when it is empty."""
    first: object = site.handler(batch(site.ours()), Context())
    copy: object = site.handler(batch(site.ours(revision=4)), Context())

    assert first == copy == failing()
    assert isinstance(site.dispatcher.ending, messages.Complete)
    assert len(site.dispatcher.sent("claim")) == 2
    assert site.put_off == []


@pytest.mark.parametrize(("age", "sent", "failed"), [(1_200, 1_200, False), (1_200, 0, True), (0, 1_200, True)])
def test_c06_age_is_judged_when_sqs_took_the_message_in(site: Site, age: int, sent: int, failed: bool) -> None:
    """C06: twenty minutes in a slow queue are no fault of the message; the tolerance holds at that moment."""
    answer: object = site.handler(batch(site.ours(age=age, sent=sent)), Context())

    assert answer == failing(*(["m1"] if failed else []))


@pytest.mark.parametrize(
    ("changes", "delays"),
    [
        ({"workflow": "unheard-of"}, [30, 30]),
        ({"version": "9"}, [30, 30]),
        ({"token": "two words"}, [60, 120]),
        ({"url": "file:///"}, [60, 120]),
    ],
)
def test_c54_what_fails_is_put_off_by_its_own_measure(site: Site, changes: Any, delays: list[int]) -> None:
    """C54: nothing of it is claimed, and each receive makes the wait longer where that helps."""
    for receives in (1, 2):
        site.handler(batch(site.ours(receives=receives, **changes)), Context())

    assert site.put_off == [("m1", delay) for delay in delays]
    assert site.dispatcher.requests == []


def test_another_audience_is_refused(make: Callable[..., Site]) -> None:
    """A message signed for another endpoint is not executed here; the dead-letter queue will show it."""
    site = make(name="billing")

    assert site.handler(batch(site.ours()), Context()) == failing("m1")
    assert site.put_off == [("m1", 60)]


def test_c04_a_message_queued_before_a_rotation(make: Callable[..., Site], caplog: pytest.LogCaptureFixture) -> None:
    """C04: with both secrets it verifies; once the old one is gone it stays in the queue, and the log says why."""
    fresh = signature.new_secret()
    during, after = make(secret=[fresh, pushes.SECRET]), make(secret=fresh)

    assert during.handler(batch(during.ours(age=7_200, sent=7_200)), Context()) == failing()
    assert isinstance(during.dispatcher.ending, messages.Complete)
    assert after.handler(batch(after.ours(age=90_000, sent=90_000)), Context()) == failing("m1")
    assert after.put_off == [("m1", 60)]
    assert "signature refused: no_matching_signature" in caplog.text


def test_a_secret_that_cannot_be_had_is_tried_again(make: Callable[..., Site]) -> None:
    """The messages are kept for later, like every failure that is not theirs."""

    def fetch() -> str:
        raise RuntimeError("away")

    site = make(secret=fetch)

    assert site.handler(batch(site.ours("m1", receives=3)), Context()) == failing("m1")
    assert site.put_off == [("m1", 20)]


def test_no_time_left_starts_nothing(site: Site) -> None:
    """C21: zero is zero; the message is visible again at once."""
    context = Context()
    context.get_remaining_time_in_millis = lambda: 0  # type: ignore[method-assign]

    assert site.handler(batch(site.ours()), context) == failing("m1")
    assert site.put_off == [("m1", 0)]
    assert site.dispatcher.requests == []


@pytest.mark.parametrize("raised", [SystemExit(3), GeneratorExit(), ValueError("x")])
def test_c53_nothing_is_raised_for_ours(site: Site, raised: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """C53: whatever tears the handling down, what is not known to be settled is reported, and the next batch runs."""

    async def handle(*_: Any, **__: Any) -> Any:
        raise raised

    monkeypatch.setattr(site.endpoint, "handle", handle)
    assert site.handler(batch(site.ours("m1"), site.ours("m2")), Context()) == failing("m1", "m2")
    monkeypatch.undo()

    assert site.handler(batch(site.ours()), Context()) == failing()


def test_copies_and_revisions_of_a_run_in_one_batch_execute_it_once(site: Site) -> None:
    """Two copies of a delivery, and one that is long stale: the claim decides, and all three are settled."""
    records = [site.ours("m1", revision=4), site.ours("m2", revision=4), site.ours("m3", revision=2)]
    pushes.bodies.clear()

    assert site.handler(batch(*records), Context()) == failing()
    assert pushes.bodies == ["in"]
    assert len(site.dispatcher.sent("claim")) == 3


@pytest.mark.parametrize("forged_first", [True, False])
def test_a_message_received_twice_is_settled_when_both_are(site: Site, forged_first: bool) -> None:
    """SQS may hand over one message two times: what is not settled stays in the queue, and is named once."""
    forged = site.ours("m1", age=1_200)
    records = [forged, site.ours("m1")] if forged_first else [site.ours("m1"), forged]

    assert site.handler(batch(*records), Context()) == failing("m1")
    assert isinstance(site.dispatcher.ending, messages.Complete)


def test_a_message_of_which_both_copies_fail_is_named_once(site: Site) -> None:
    """Lambda is told of messages, not of receives; each receive is put off."""
    records = [site.ours("m1", workflow="unheard-of"), site.ours("m1", workflow="unheard-of", receives=2)]

    assert site.handler(batch(*records), Context()) == failing("m1")
    assert site.put_off == [("m1", 30), ("m1", 30)]


class Secret:
    """A signing secret that does not come before it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.given_up = False

    def __call__(self) -> str:
        self.given_up = not self.let_go.wait(20)
        raise RuntimeError("away")


def test_a_secret_that_hangs_takes_no_more_than_its_time(make: Callable[..., Site]) -> None:
    """The batch is reported before the function ends, and the user's handler is started all the same."""
    secret = Secret()
    site = make(secret=secret)
    end = time.monotonic() + 3
    context = Context()
    context.get_remaining_time_in_millis = lambda: int((end - time.monotonic()) * 1000)  # type: ignore[method-assign]
    mine: Any = site.handler(lambda event, context: failing("u1"))
    try:
        assert mine(batch(site.ours(), THEIRS), context) == failing("m1", "u1")
        assert not secret.given_up
    finally:
        secret.let_go.set()


@pytest.mark.parametrize(("left", "waits"), [(600_000, 1.0), (1_000, 0.5), (0, 0.0)])
def test_ending_the_refresher_takes_no_more_than_half_of_what_is_left(
    site: Site, left: int, waits: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that cannot be cut off, because it connects, must not keep the answer in."""
    asked: list[float] = []
    stop = site.endpoint.executor.stop_refreshing

    def watched(timeout: float = 1.0) -> bool:
        asked.append(timeout)
        return stop(1.0)

    monkeypatch.setattr(site.endpoint.executor, "stop_refreshing", watched)
    context = Context()
    context.get_remaining_time_in_millis = lambda: left  # type: ignore[method-assign]
    site.handler(batch(site.ours()), context)
    site.handler({"version": "2.0", "requestContext": {"http": {"method": "POST"}}}, context)

    assert asked == pytest.approx([waits, waits], abs=0.2)


async def test_a_handler_called_inside_a_loop_says_so(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A loop runs already, of a test or of an `async def` handler: nothing is executed, and nothing waits for ever."""
    assert site.handler(batch(site.ours()), Context()) == failing("m1")
    assert "event loop" in caplog.text
    assert site.dispatcher.requests == []


def test_a_handler_called_inside_itself_does_not_wait_for_ever(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """An `async def` handler that hands what it got to the endpoint once more."""

    @site.handler
    async def mine(event: Any, context: Any) -> Any:
        return site.handler(batch(site.ours("m2")), context)

    assert mine({}, Context()) == failing("m2")
    assert "event loop" in caplog.text


def test_nothing_runs_after_the_answer(site: Site) -> None:
    """The refresher's thread has ended when the batch has."""
    before = threading.active_count()
    site.handler(batch(site.ours()), Context())

    assert threading.active_count() == before
