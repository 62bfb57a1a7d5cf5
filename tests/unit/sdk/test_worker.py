"""endpoint_sdk.worker: what it is made of, how much it takes, and what it says of itself."""

import logging
from datetime import timedelta
from typing import Any

import pytest

from endpoint_sdk import ConfigurationError, Worker, shift, subscribers
from endpoint_sdk.subscribers.base import SubscriberFailed
from tests.unit.sdk.dispatcher_double import unreachable
from tests.unit.sdk.fleet_double import API_KEY, URL, Fleet, MemorySubscriber, message, serving, until
from tests.unit.sdk.gated_worker import gate, made, order


# --- places ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("served", ["gated", "blocked"])
async def test_no_more_is_received_than_there_are_free_places(fleet: Fleet, served: str) -> None:
    """C50: with three places, ten messages and every body held, three are received and the others wait outside."""
    subscriber = MemorySubscriber()
    async with serving(made(subscriber, max_concurrent_runs=3)):
        subscriber.put(*(message(fleet.queue(served)) for _ in range(10)))
        await until(lambda: gate.inside == 3)
        received = 10 - len(subscriber.items)
        asked = list(subscriber.limits)
        gate.open.set()
        await until(lambda: len(subscriber.settled) == 10)

    assert received == 3
    assert asked == [3]
    assert gate.most == 3
    assert max(subscriber.limits) <= 3


async def test_more_than_was_asked_for_goes_back(fleet: Fleet) -> None:
    """A subscriber that ignores its limit makes no worker hold more than it has places for."""
    subscriber = MemorySubscriber()
    subscriber.excess = 2
    async with serving(made(subscriber, max_concurrent_runs=1)):
        subscriber.put(*(message(fleet.queue("gated")) for _ in range(3)))
        await until(lambda: gate.inside == 1 and len(subscriber.returned) == 2)
        gate.open.set()
        await until(lambda: subscriber.settled)

    assert [delay for _, delay in subscriber.returned] == [0, 0]


# --- what it says of itself ------------------------------------------------------------------------------------------
async def test_it_announces_what_it_serves(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an API key the dispatcher hears at the start, and every minute, what a broker's worker can run."""
    monkeypatch.setattr(shift, "_MINUTE", 0.05)
    async with serving(made(MemorySubscriber(["default", "slow"]), api_key=API_KEY)):
        await until(lambda: len(fleet.polls) >= 2)

    first = fleet.polls[0]
    assert (first["limit"], first["pools"]) == (0, ["default", "slow"])
    assert first["workflows"][0] == {"name": "order", "versions": ["1", "0"]}
    assert {"name": "order", "version": "1", "accepts": ["0"]}.items() <= first["declares"][0].items()
    assert fleet.headers[0]["authorization"] == f"Bearer {API_KEY}"
    assert fleet.polls[0]["requestId"] != fleet.polls[1]["requestId"]


async def test_an_announcement_that_fails_is_made_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Soon, and logged once."""
    monkeypatch.setattr(shift, "_ANNOUNCE_AGAIN", 0.01)
    fleet.faults["claims"].extend([unreachable] * 5)
    async with serving(made(MemorySubscriber(), api_key=API_KEY)):
        await until(lambda: len(fleet.polls) == 6)

    assert caplog.text.count("could not be told") == 1


async def test_holding_shows_both_ages(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """How old the claim's last refresh and the transport's hold are; logged at DEBUG as well."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(shift, "_MINUTE", 0.05)
    subscriber, run = MemorySubscriber(), fleet.queue("gated")
    worker = made(subscriber)
    assert worker.holding == []
    async with serving(worker):
        subscriber.put(message(run))
        await until(lambda: gate.inside == 1)
        held = worker.holding
        await until(lambda: [each for each in caplog.records if each.msg == "holding"])
        gate.open.set()

    (only,) = held
    assert only.run_id == run.run_id
    assert 0 <= only.refreshed < 20
    assert only.transport == 0.5


async def test_a_subscriber_that_cannot_tell_its_holds_does_not_end_the_announcements(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises is logged, and the dispatcher goes on hearing what is served."""
    monkeypatch.setattr(shift, "_MINUTE", 0.02)
    subscriber = Untold()
    async with serving(made(subscriber, api_key=API_KEY)):
        subscriber.put(message(fleet.queue("gated", silently=True)))
        await until(lambda: "ZeroDivisionError" in caplog.text)
        asked = len(fleet.polls)
        await until(lambda: len(fleet.polls) > asked + 2)
        gate.open.set()


class Untold(MemorySubscriber):
    """Fails where it is asked for its hold."""

    def held_for(self, item: object) -> float | None:
        raise ZeroDivisionError(item)


# --- what cannot work ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the dispatcher's URL"),
        ({"url": URL}, "API key of scope execute"),
        ({"url": "ftp://x", "api_key": API_KEY}, "not a URL"),
        ({"url": URL, "api_key": "two words"}, "not an API key"),
        ({"subscriber": MemorySubscriber, "url": URL}, "signing secret"),
        ({"subscriber": MemorySubscriber, "secret": "whsec_x"}, "signing secret"),
        ({"url": URL, "api_key": API_KEY, "max_concurrent_runs": 0}, "max_concurrent_runs"),
        ({"url": URL, "api_key": API_KEY, "drain_timeout": timedelta(0)}, "drain_timeout"),
        ({"url": URL, "api_key": API_KEY, "name": " "}, "not a name"),
    ],
)
async def test_what_cannot_work_is_refused_when_it_is_made(options: dict[str, Any], words: str) -> None:
    """Before anything is served, in a sentence that names the argument or the variable."""
    if "subscriber" in options:
        options = {**options, "subscriber": options["subscriber"]()}
    with pytest.raises(ConfigurationError, match=words):
        Worker([order], **options)


@pytest.mark.parametrize("workflows", [[], [print], None])
def test_a_worker_serves_workflows(workflows: Any) -> None:
    """An empty list is a mistake, not a worker without work."""
    with pytest.raises(ConfigurationError, match="at least one @workflow"):
        Worker(workflows, url=URL, api_key=API_KEY)


@pytest.mark.parametrize(
    "options", [{"wait": timedelta(0)}, {"wait": timedelta(seconds=21)}, {"pools": []}, {"pools": "a"}]
)
def test_a_poll_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    """The bounds are the dispatcher's."""
    with pytest.raises(ConfigurationError):
        subscribers.poll(**options)


def test_no_failure_of_a_subscriber_is_a_pointsman_error() -> None:
    """What a subscriber raises stays inside the worker."""
    assert not issubclass(SubscriberFailed, ConfigurationError)
