"""Sending events by a handle, from both clients."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from endpoint_sdk import AsyncClient, Client, ConfigurationError, Conflict, Event, PayloadError
from tests.unit.sdk.peer import Peer, answering, cut_off, serving
from tests.unit.sdk.scripted import RUN_ID, do, refuses, requests, says

PATH = f"POST /v1/runs/{RUN_ID}/events"
STORED = says(200, {"eventId": "evt_1", "stored": True})


class Decision(msgspec.Struct):
    approved: bool


DECISION = Event[Decision]("decision")


@pytest.fixture(params=[Client, AsyncClient])
async def made(request: pytest.FixtureRequest) -> AsyncIterator[list[Any]]:
    """The kind of client, and clients to close."""
    clients: list[Any] = [request.param]
    yield clients
    for client in clients[1:]:
        await do(client.close)


async def handle(made: list[Any], peer: Peer) -> Any:
    """A handle of the run."""
    made.append(made[0](peer.url.removesuffix("/p"), api_key="pmk_x", timeout=timedelta(seconds=10)))
    return await do(made[-1].get, RUN_ID)


async def test_an_event_is_sent_with_its_value_and_an_id(made: list[Any]) -> None:
    """The caller's event id, or one of the SDK's own, makes a repeat harmless."""
    async with serving(answering(STORED)) as peer:
        run = await handle(made, peer)
        await do(run.send, DECISION, Decision(True), event_id="e1")
        await do(run.send, "note", [1, 2])
    [(line, first), (_, second)] = requests(peer)
    assert line == PATH
    assert first == {"name": "decision", "value": {"approved": True}, "eventId": "e1"}
    assert second.pop("eventId").startswith("evt_")
    assert second == {"name": "note", "value": [1, 2]}


async def test_a_lost_reply_sends_the_same_event_again(made: list[Any]) -> None:
    """I6: every time it is sent, the event has the id of the first time."""
    async with serving(cut_off(b""), answering(STORED)) as peer:
        await do((await handle(made, peer)).send, DECISION, Decision(False))
    bodies = [body for _, body in requests(peer)]
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]


async def test_events_that_cannot_be_are_not_sent(made: list[Any]) -> None:
    """Over 256 KiB, not JSON, a name no event has: refused before anything is sent."""
    async with serving(answering(STORED)) as peer:
        run = await handle(made, peer)
        with pytest.raises(PayloadError, match="262144"):
            await do(run.send, "big", "x" * 262_143)
        with pytest.raises(PayloadError):
            await do(run.send, "odd", float("nan"))
        with pytest.raises(ConfigurationError):
            await do(run.send, "", 1)
    assert peer.requests == []


async def test_an_event_to_a_finished_run_is_a_conflict(made: list[Any]) -> None:
    """Nobody will ever wait for it."""
    async with serving(answering(refuses(409, "run_finished"))) as peer:
        with pytest.raises(Conflict) as caught:
            await do((await handle(made, peer)).send, DECISION, Decision(True))
    assert caught.value.code == "run_finished"


def test_an_event_whose_type_cannot_travel_fails_where_it_is_made() -> None:
    """A class JSON cannot carry is refused at import, naming the event; unions and builtins are not."""

    class Opaque:
        """Nothing msgspec knows."""

    with pytest.raises(ConfigurationError, match="event 'e'"):
        Event[Opaque]("e")
    assert Event[int | None]("e").decode(b"null") is None
    assert Event[list[Decision]]("e").decode(b'[{"approved":true}]') == [Decision(True)]
    assert Event("e").decode(b'{"a":1}') == {"a": 1}
    assert repr(DECISION) == "Event('decision')"
