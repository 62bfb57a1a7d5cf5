"""What the push publisher sends, and what it makes of what comes back."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from endpoint_sdk.transport import AsyncTransport, errors
from endpoint_sdk.transport.http1 import Answer
from endpoint_sdk.wire import signature
from endpoint_sdk.wire.messages import Delivery
from publishers.base import Due, Outcome, Publisher, Target
from publishers.message import encode
from publishers.push import PushPublisher

KEYS = (b"k" * 32, b"o" * 32)
NOW = 1_800_000_000.0
TARGET = Target("orders", "https://orders.example/hook", "generic", KEYS)
SETTLED = Answer(200, {"pointsman-result": "settled"}, b"{}")


class Recording:
    """A transport that gives what it was told to and keeps what it was asked."""

    def __init__(self, *results: Answer | Exception) -> None:
        self.results = list(results)
        self.calls: list[tuple[str, str, dict[str, str], bytes, dict[str, Any]]] = []

    async def request(self, method: str, url: str, headers: dict[str, str], body: bytes, **options: Any) -> Answer:
        self.calls.append((method, url, headers, body, options))
        result = self.results[min(len(self.calls), len(self.results)) - 1]
        if isinstance(result, Exception):
            raise result
        return result


def delivery(**changes: Any) -> Delivery:
    """A delivery of revision 4."""
    given: dict[str, Any] = {
        "run_id": "run_01", "namespace": "default", "workflow": "order", "version": "1", "revision": 4, "attempt": 1,
        "audience": "orders", "url": "https://pointsman.example", "token": "pmc_x", "push_number": 2,
    }  # fmt: skip
    return Delivery(**(given | changes))


def due(**changes: Any) -> Due:
    """The delivery as the relay hands it over."""
    return Due(delivery(**changes), rank=0, queued_at=0)


def publisher(transport: Any, target: Target = TARGET, **options: Any) -> Publisher:
    """A push publisher at a fixed time."""
    return PushPublisher(target, transport, now=lambda: NOW, **options)


async def test_a_delivery_is_a_signed_post() -> None:
    """The body is the delivery, the id names run and revision, and every key signs."""
    transport = Recording(SETTLED)
    assert [outcome.row for outcome in await publisher(transport).publish([due()])] == ["settled"]
    [(method, url, headers, body, _)] = transport.calls
    assert (method, url, headers["webhook-id"]) == ("POST", TARGET.url, "run_01_4")
    assert headers["content-type"] == "application/json"
    for key in KEYS:
        signature.verify([key], headers, body, NOW)
    assert json.loads(body) == {
        "type": "run.ready", "runId": "run_01", "namespace": "default", "workflow": "order", "version": "1",
        "revision": 4, "attempt": 1, "audience": "orders", "url": "https://pointsman.example", "token": "pmc_x",
        "pushNumber": 2,
    }  # fmt: skip


@pytest.mark.parametrize("workflow", ["order", "bestellung-ä", "注文", "🚚", 'a"\\b'])
def test_bodies_are_ascii(workflow: str) -> None:
    """Whatever a workflow is called, the signed body is ASCII and means the same."""
    body = encode(delivery(workflow=workflow))
    assert body.isascii()
    assert json.loads(body)["workflow"] == workflow


async def test_the_connection_is_held_for_15_minutes() -> None:
    """5 s to connect, 15 min for the handler, 64 KiB of answer, and no resend the relay knows nothing of."""
    transport = Recording(SETTLED)
    await publisher(transport).publish([due()])
    assert transport.calls[0][4] == {
        "connect_timeout": 5.0,
        "timeout": 900.0,
        "max_body": 65_536,
        "resend_idle": False,
    }


async def test_each_delivery_has_its_outcome() -> None:
    """Outcomes come in the order of the deliveries, whatever the order of the answers."""

    class Slowest(Recording):
        async def request(self, method: str, url: str, headers: dict[str, str], body: bytes, **options: Any) -> Answer:
            number = json.loads(body)["revision"]
            for _ in range(5 - number):
                await asyncio.sleep(0)
            return Answer(500 + number, {}, b"")

    outcomes = await publisher(Slowest()).publish([due(revision=number) for number in range(4)])
    assert [outcome.status for outcome in outcomes] == [500, 501, 502, 503]
    assert await publisher(Recording(SETTLED)).publish([]) == []


async def test_a_failure_is_an_outcome() -> None:
    """What the transport raises is judged, never raised."""
    transport = Recording(errors.ConnectFailed("orders.example:443 cannot be reached", "refused"))
    [outcome] = await publisher(transport).publish([due()])
    assert outcome == Outcome("failed", "connect", detail="orders.example:443 cannot be reached")


async def test_a_reset_idle_connection_goes_back_to_the_relay() -> None:
    """C42: the publisher does not send twice; the relay does, at once, under the next push number."""
    transport = Recording(errors.ResetIdle("closed"))
    [outcome] = await publisher(transport).publish([due()])
    assert (outcome.kind, outcome.delay_ms, outcome.counted, len(transport.calls)) == ("deferred", 0, False, 1)


@pytest.mark.parametrize(
    "target",
    [
        Target("t", "http://orders.example/", "generic", KEYS),
        Target("t", "http://127.0.0.1:1/", "generic", KEYS),
        Target("t", "ftp://orders.example/", "generic", KEYS, allow_http=True),
        Target("t", "orders.example", "generic", KEYS, allow_http=True),
        Target("t", "https://orders.example/", "generic", ()),
    ],
)
async def test_where_we_do_not_post(target: Target) -> None:
    """Plain HTTP only where it is allowed, nothing but HTTP ever, and nothing unsigned."""
    transport = Recording(SETTLED)
    [outcome] = await publisher(transport, target).publish([due()])
    assert (outcome.kind, outcome.row, outcome.counted, transport.calls) == ("failed", "url-refused", False, [])


def test_a_target_does_not_show_its_secrets() -> None:
    """The text of a target, as it may get into a log, holds no key."""
    assert repr(TARGET) == "Target(name='orders', url='https://orders.example/hook', 2 secrets)"


@contextlib.asynccontextmanager
async def endpoint(answer: bytes | None) -> AsyncIterator[tuple[Target, list[bytes]]]:
    """A listening endpoint that gives *answer*, or none, and what it received."""
    received: list[bytes] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                received.append(await reader.readexactly(length))
                if answer is not None:
                    writer.write(answer)
        writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Target("orders", f"http://127.0.0.1:{port}/", "generic", KEYS, allow_http=True), received
    finally:
        server.close()


async def test_over_the_real_transport() -> None:
    """A push to a listening endpoint is answered, and what arrived is what was signed."""
    answer = b"HTTP/1.1 200 OK\r\npointsman-result: settled\r\ncontent-length: 2\r\n\r\n{}"
    transport = AsyncTransport()
    async with endpoint(answer) as (target, received):
        [outcome] = await publisher(transport, target).publish([due()])
        assert outcome.row == "settled"
        assert received == [encode(delivery())]
        await transport.close()


async def test_a_redirect_is_not_followed() -> None:
    """C46: a redirect is a configuration error, wherever it points."""
    answer = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"
    transport = AsyncTransport()
    async with endpoint(answer) as (target, received):
        [outcome] = await publisher(transport, target).publish([due()])
        assert (outcome.kind, outcome.row, outcome.counted, len(received)) == ("failed", "no-header", True, 1)
        await transport.close()


async def test_a_silent_endpoint_leaves_it_to_the_claim() -> None:
    """C41: a connection held to the end without an answer is published: the claim decides."""
    transport = AsyncTransport()
    async with endpoint(None) as (target, received):
        [outcome] = await publisher(transport, target, hold_seconds=0.1).publish([due()])
        assert (outcome.kind, outcome.row, len(received)) == ("published", "timeout", 1)
        await transport.close()
