"""Both transports against peers that behave, misbehave and die: what is sent, what is kept, what a failure says."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from endpoint_sdk import monotonic, transport
from endpoint_sdk.transport import AsyncTransport, BlockingTransport, pooling
from tests.unit.sdk.peer import OK, Peer, answering, closing_after, cut_off, deaf, serving, silent
from tests.unit.sdk.transports import Send, closed, sending


@pytest.fixture(params=["asyncio", "blocking"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[AsyncTransport | BlockingTransport]:
    """A transport of each kind."""
    client = AsyncTransport() if request.param == "asyncio" else BlockingTransport()
    yield client
    await closed(client)


@pytest.fixture
def send(either: AsyncTransport | BlockingTransport) -> Send:
    """`request` of either transport, as a coroutine function."""
    return either.request if isinstance(either, AsyncTransport) else sending(either)


async def test_one_connection_carries_many_requests(send: Send) -> None:
    """Requests to one origin share a kept-alive connection, and arrive as they were meant."""
    async with serving(answering(OK)) as peer:
        for body in (b"a", b"", b"c" * 1_000):
            answer = await send("POST", peer.url, {"x-y": "z"}, body)
            assert (answer.status, answer.body) == (200, b"ok")
    assert peer.connections == 1
    assert [body for _, body in peer.requests] == [b"a", b"", b"c" * 1_000]
    head = peer.requests[0][0]
    assert head == f"POST /p HTTP/1.1\r\nhost: 127.0.0.1:{peer.port}\r\nx-y: z\r\ncontent-length: 1\r\n\r\n".encode()


async def test_requests_in_parallel_use_connections_of_their_own(send: Send) -> None:
    """One connection carries one exchange at a time."""
    async with serving(silent, silent, answering(OK)) as peer:
        held = [asyncio.ensure_future(send("GET", peer.url, {}, timeout=20)) for _ in range(2)]
        await peer.heard(2)
        assert (await send("GET", peer.url, {})).status == 200
        assert peer.connections == 3
        peer.release.set()
        for outcome in await asyncio.gather(*held, return_exceptions=True):
            assert isinstance(outcome, transport.ResetAfterSend)


async def test_chunked_answers_are_read(send: Send) -> None:
    """A chunked answer comes out whole and its connection is kept."""
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    async with serving(answering(chunked)) as peer:
        assert (await send("GET", peer.url, {})).body == b"ok"
        assert (await send("GET", peer.url, {})).body == b"ok"
    assert peer.connections == 1


async def test_an_answer_ended_by_the_connection_is_read(send: Send) -> None:
    """Without a length the body goes on to the end of the connection, and the next request connects anew."""
    async with serving(cut_off(b"HTTP/1.1 200 OK\r\n\r\nto the end")) as peer:
        assert (await send("GET", peer.url, {})).body == b"to the end"
        assert (await send("GET", peer.url, {})).body == b"to the end"
    assert peer.connections == 2


async def test_redirects_are_not_followed(send: Send) -> None:
    """A redirect is an answer like any other."""
    moved = b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    async with serving(answering(moved)) as peer:
        assert (await send("POST", peer.url, {}, b"x")).status == 307
    assert len(peer.requests) == 1


async def test_a_closed_idle_connection_costs_one_silent_resend(send: Send) -> None:
    """C42: the peer closes a kept-alive connection under the request: it is sent once more, and answered."""
    async with serving(closing_after(OK), answering(OK)) as peer:
        await send("POST", peer.url, {}, b"1")
        assert (await send("POST", peer.url, {}, b"2")).status == 200
    assert [body for _, body in peer.requests] == [b"1", b"2", b"2"]


async def test_there_is_never_a_second_resend(send: Send) -> None:
    """C42: a fresh connection that ends without an answer is an error, not a reason to send a third time."""
    async with serving(closing_after(OK), cut_off(b"")) as peer:
        await send("POST", peer.url, {}, b"1")
        with pytest.raises(transport.ResetAfterSend) as caught:
            await send("POST", peer.url, {}, b"2")
    assert [body for _, body in peer.requests] == [b"1", b"2", b"2"]
    assert (caught.value.sent, caught.value.received) == (True, 0)


async def test_the_resend_can_be_refused(send: Send) -> None:
    """C42: without resend_idle the caller is told, and the next request does not meet another old connection."""
    async with serving(closing_after(OK), answering(OK)) as peer:
        await send("POST", peer.url, {}, b"1")
        with pytest.raises(transport.ResetIdle) as caught:
            await send("POST", peer.url, {}, b"2", resend_idle=False)
        assert caught.value.received == 0
        await send("POST", peer.url, {}, b"3", resend_idle=False)
    assert [body for _, body in peer.requests] == [b"1", b"2", b"3"]


async def test_part_of_an_answer_on_a_reused_connection_is_not_resent(send: Send) -> None:
    """One byte of answer proves that the peer had the request."""

    async def script(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.read(reader)
        writer.write(OK)
        await peer.read(reader)
        writer.write(b"H")
        await writer.drain()
        writer.close()

    async with serving(script) as peer:
        await send("POST", peer.url, {}, b"1")
        with pytest.raises(transport.ResetAfterSend) as caught:
            await send("POST", peer.url, {}, b"2")
    assert (caught.value.sent, caught.value.received, len(peer.requests)) == (True, 1, 2)


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab"])
async def test_a_cut_answer_says_how_much_came(send: Send, part: bytes) -> None:
    """A connection that ends inside the answer is ResetAfterSend with the bytes received."""
    async with serving(cut_off(part)) as peer:
        with pytest.raises(transport.ResetAfterSend) as caught:
            await send("POST", peer.url, {}, b"x")
    assert (caught.value.sent, caught.value.received) == (True, len(part))


async def test_a_silent_peer_is_a_timeout(send: Send) -> None:
    """C41: no answer within the time is AnswerTimeout, and the request was sent."""
    async with serving(silent) as peer:
        with pytest.raises(transport.AnswerTimeout) as caught:
            await send("POST", peer.url, {}, b"x", timeout=0.05)
    assert (caught.value.sent, caught.value.received) == (True, 0)


async def test_a_dripping_peer_is_a_timeout(send: Send) -> None:
    """The time is for the whole answer, not for each byte of it."""

    async def script(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while not peer.release.is_set():
            writer.write(b"x")
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(peer.release.wait(), 0.01)

    async with serving(script) as peer:
        with pytest.raises(transport.AnswerTimeout) as caught:
            await send("GET", peer.url, {}, timeout=0.2, max_body=200_000)
    assert caught.value.received > 0


async def test_an_unread_request_was_not_sent(send: Send) -> None:
    """A peer that takes nothing and resets never had the whole request: SendFailed."""
    async with serving(deaf) as peer:
        under_way = asyncio.ensure_future(send("POST", peer.url, {}, bytes(32 * 1024 * 1024), timeout=20))
        await peer.heard(connections=1)
        peer.release.set()
        with pytest.raises(transport.SendFailed) as caught:
            await under_way
    assert not caught.value.sent


async def test_a_request_that_waits_to_be_sent_times_out_unsent(send: Send) -> None:
    """When time is up with part of the request still here, the error says that it was not sent."""
    async with serving(deaf) as peer:
        with pytest.raises(transport.AnswerTimeout) as caught:
            await send("POST", peer.url, {}, bytes(32 * 1024 * 1024), timeout=0.3)
    assert not caught.value.sent


async def test_an_answer_before_the_whole_request_is_taken(send: Send) -> None:
    """A peer may refuse early; its connection is not used again."""

    async def script(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        await reader.read(-1)

    async with serving(script) as peer:
        try:
            answer = await send("POST", peer.url, {}, bytes(32 * 1024 * 1024), timeout=20)
        except transport.SendFailed:
            pytest.fail("the answer was there")
    assert answer.status == 413


@pytest.mark.parametrize("junk", [b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\na: " + b"x" * 20_000, b"\x00" * 10])
async def test_what_is_not_http_is_a_bad_answer(send: Send, junk: bytes) -> None:
    """Junk and endless heads are BadAnswer, on a connection that is not used again."""
    async with serving(answering(junk), answering(OK)) as peer:
        with pytest.raises(transport.BadAnswer) as caught:
            await send("POST", peer.url, {}, b"x")
        assert (await send("POST", peer.url, {}, b"x")).status == 200
    assert caught.value.received > 0
    assert caught.value.sent
    assert peer.connections == 2


async def test_a_body_over_the_cap_is_a_bad_answer(send: Send) -> None:
    """A body larger than allowed is refused before it is read."""
    async with serving(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 65537\r\n\r\n")) as peer:
        with pytest.raises(transport.BadAnswer, match="65536 bytes"):
            await send("GET", peer.url, {}, timeout=20)


async def test_a_large_answer_is_read_whole(send: Send) -> None:
    """An answer of several megabytes comes out byte for byte."""
    body = bytes(range(256)) * 16_384
    async with serving(answering(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)) as peer:
        answer = await send("GET", peer.url, {}, max_body=8 * 1024 * 1024)
    assert answer.body == body


async def test_a_refused_connection_reached_nobody(send: Send) -> None:
    """A port nobody listens on is ConnectFailed: refused."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(transport.ConnectFailed) as caught:
            await send("GET", f"http://127.0.0.1:{port}/", {})
    assert (caught.value.cause, caught.value.sent, caught.value.received) == ("refused", False, 0)


async def test_a_name_that_cannot_exist_is_a_dns_failure(send: Send) -> None:
    """A label of more than 63 characters is ConnectFailed: dns."""
    with pytest.raises(transport.ConnectFailed) as caught:
        await send("GET", f"http://{'a' * 64}.example/", {})
    assert caught.value.cause == "dns"


async def test_a_plain_peer_is_no_tls_peer(send: Send) -> None:
    """https to a peer that speaks plain HTTP is ConnectFailed: tls."""

    async def script(_peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with serving(script) as peer:
        with pytest.raises(transport.ConnectFailed) as caught:
            await send("GET", peer.url.replace("http:", "https:"), {})
    assert caught.value.cause == "tls"


async def test_a_silent_tls_peer_is_a_connect_timeout(send: Send) -> None:
    """The connect timeout covers the TLS handshake."""
    async with serving(deaf) as peer:
        with pytest.raises(transport.ConnectFailed) as caught:
            await send("GET", peer.url.replace("http:", "https:"), {}, connect_timeout=0.1)
    assert caught.value.cause == "timeout"


async def test_the_vetted_address_is_dialled(send: Send) -> None:
    """connect_address is dialled while the Host header keeps the name of the URL."""
    async with serving(answering(OK)) as peer:
        url = f"http://somewhere.invalid:{peer.port}/p"
        assert (await send("GET", url, {}, connect_address="127.0.0.1")).status == 200
    assert f"host: somewhere.invalid:{peer.port}\r\n".encode() in peer.requests[0][0]


async def test_old_idle_connections_are_not_used(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """C56: a connection idle for 4 s, suspended time included, is closed and replaced before the request."""
    async with serving(answering(OK)) as peer:
        await send("GET", peer.url, {})
        later = monotonic.now() + pooling.IDLE_SECONDS
        monkeypatch.setattr(monotonic, "now", lambda: later)
        await send("GET", peer.url, {}, resend_idle=False, timeout=3_600)
    assert peer.connections == 2


async def test_proxy_variables_are_ignored(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment cannot send our requests elsewhere."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with serving(answering(OK)) as peer:
        assert (await send("GET", peer.url, {})).status == 200


async def test_a_bad_url_is_the_callers_mistake(send: Send) -> None:
    """A URL that is none is ValueError, before anything is dialled."""
    with pytest.raises(ValueError, match="not an absolute"):
        await send("GET", "localhost:8400", {})


async def test_cancelling_closes_the_connection() -> None:
    """An answer to a cancelled request never meets the next one."""
    quick = AsyncTransport()
    async with serving(silent, answering(OK)) as peer:
        task = asyncio.create_task(quick.request("POST", peer.url, {}, b"1"))
        await peer.heard(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await quick.request("POST", peer.url, {}, b"2")).body == b"ok"
        await quick.close()
    assert peer.connections == 2


async def test_unasked_bytes_close_an_idle_connection() -> None:
    """A peer that talks on an idle connection is not asked on it again."""

    async def script(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.read(reader)
        writer.write(OK)
        await writer.drain()
        await peer.release.wait()
        writer.write(OK)
        assert await reader.read(1) == b""
        await peer.note(b"closed")

    quick = AsyncTransport()
    async with serving(script, answering(OK)) as peer:
        await quick.request("GET", peer.url, {})
        peer.release.set()
        await peer.heard(2)
        await quick.request("GET", peer.url, {}, resend_idle=False)
        await quick.close()
    assert peer.connections == 2


async def test_idle_connections_are_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another request, an idle connection is closed after its time."""
    monkeypatch.setattr(pooling, "IDLE_SECONDS", 0.02)
    ended = asyncio.Event()

    async def script(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.read(reader)
        writer.write(OK)
        await reader.read(1)
        ended.set()

    quick = AsyncTransport()
    async with serving(script) as peer:
        await quick.request("GET", peer.url, {})
        await asyncio.wait_for(ended.wait(), 5)
        await quick.close()


async def test_close_ends_requests_under_way(either: AsyncTransport | BlockingTransport, send: Send) -> None:
    """Closing a transport ends what waits for an answer."""
    async with serving(silent) as peer:
        waiting = asyncio.ensure_future(send("GET", peer.url, {}, timeout=20))
        await peer.heard(1)
        await closed(either)
        with pytest.raises(transport.ResetAfterSend):
            await waiting


def test_a_transport_survives_its_event_loop() -> None:
    """Connections of an earlier event loop are left alone; the transport connects anew."""
    quick = AsyncTransport()

    async def once() -> None:
        async with serving(answering(OK)) as peer:
            assert (await quick.request("GET", peer.url, {})).status == 200
            await quick.close()

    asyncio.run(once())
    asyncio.run(once())


def test_dead_hosts_are_noticed_in_15_seconds() -> None:
    """C41: TCP keep-alive probes after 10 s and gives up 5 s later; unacknowledged bytes wait no longer."""
    with socket.socket() as sock:
        pooling.watch_peer(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        probing = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert probing * sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 5
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
