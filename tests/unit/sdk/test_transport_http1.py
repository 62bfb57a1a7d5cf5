"""The bytes of requests and answers, with h11 as the independent judge."""

import contextlib
import itertools
from typing import Any

import h11
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from endpoint_sdk.transport import http1
from endpoint_sdk.transport.answers import ResponseParser
from endpoint_sdk.transport.errors import BadAnswer
from endpoint_sdk.transport.http1 import Answer

MAX_BODY = 1_000


def parse(data: bytes, cuts: list[int] | None = None, *, eof: bool = False, max_body: int = MAX_BODY) -> Answer | None:
    """What our parser makes of *data*, fed in the pieces between *cuts*."""
    parser = ResponseParser(max_body)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts or []), len(data)]
    for start, end in itertools.pairwise(edges):
        if start == end:
            continue
        answer = parser.feed(data[start:end])
        if answer is not None:
            return answer
    return parser.finish() if eof else None


def judge(data: bytes, *, eof: bool = False) -> tuple[int, list[tuple[bytes, bytes]], bytes] | None:
    """What h11 makes of *data*: status, headers, body; None while incomplete. Raises RemoteProtocolError."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    status, headers, body, ended = 0, [], b"", False
    while True:
        event: Any = connection.next_event()
        if isinstance(event, h11.Response):
            status, headers = event.status_code, list(event.headers)
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return status, headers, body
        elif event is h11.NEED_DATA:
            if not eof or ended:
                return None
            ended = True
            connection.receive_data(b"")
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            return None


def agrees(data: bytes, answer: Answer, *, eof: bool) -> bool:
    """Whether h11 reads the same answer in *data*."""
    verdict = judge(data, eof=eof)
    if verdict is None:
        return False
    status, headers, body = verdict
    names = {name.decode() for name, _ in headers}
    joined = {name: ", ".join(v.decode("latin-1") for n, v in headers if n.decode() == name) for name in names}
    # h11 joins equal lengths into one; we keep what came.
    joined.pop("content-length", None)
    ours = {name: value for name, value in answer.headers.items() if name != "content-length"}
    return (status, joined, body) == (answer.status, ours, answer.body)


tokens = st.text("abcXYZ09-_", min_size=1, max_size=8)
values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=12).map(
    lambda text: "".join(c for c in text if not 0x80 <= ord(c) <= 0xA0)
)
plain_headers = st.lists(st.tuples(tokens.map(lambda name: f"x-{name}"), values), max_size=4)


@st.composite
def wire_answers(draw: st.DrawFn) -> tuple[bytes, int, bytes]:
    """A proper answer, its status and its body."""
    status = draw(st.sampled_from([200, 201, 202, 204, 301, 304, 400, 404, 409, 429, 500, 503, 599]))
    body = b"" if status in (204, 304) else draw(st.binary(max_size=60))
    head = f"HTTP/1.1 {status} {draw(st.sampled_from(['', 'OK', 'Some Reason', 'café']))}\r\n".encode("latin-1")
    early = draw(
        st.sampled_from([b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n"])
    )
    for name, value in draw(plain_headers):
        space = draw(st.sampled_from(["", " ", "  \t"]))
        head += f"{name}:{space}{value}\r\n".encode("latin-1")
    if status in (204, 304):
        return early + head + b"\r\n", status, body
    if draw(st.booleans()):
        return early + head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body, status, body
    chunks, rest = b"", body
    while rest:
        size = draw(st.integers(1, len(rest)))
        extension = draw(st.sampled_from([b"", b";a=b", b'; q="z" ']))
        chunks += f"{size:x}".encode() + extension + b"\r\n" + rest[:size] + b"\r\n"
        rest = rest[size:]
    trailer = draw(st.sampled_from([b"", b"x-sum: 1\r\n"]))
    return early + head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n", status, body


@given(wire_answers(), st.lists(st.integers(0, 10_000), max_size=6))
def test_proper_answers_are_read_however_they_arrive(wire: tuple[bytes, int, bytes], cuts: list[int]) -> None:
    """Every proper answer is read whole, in whatever pieces it comes, and h11 reads the same."""
    data, status, body = wire
    answer = parse(data, cuts)
    assert answer is not None
    assert (answer.status, answer.body) == (status, body)
    assert agrees(data, answer, eof=False)


@given(wire_answers(), st.data())
def test_a_cut_answer_is_never_taken_for_whole(wire: tuple[bytes, int, bytes], data: st.DataObject) -> None:
    """The end of the connection inside an answer with a known length gives no answer."""
    whole = wire[0]
    assert parse(whole[: data.draw(st.integers(0, len(whole) - 1))], eof=True) is None


mutations = st.lists(
    st.tuples(
        st.integers(0, 10_000),
        st.sampled_from([b"", b"\r", b"\n", b"\r\n", b"\x00", b" ", b":", b"0", b"f", b";", b",", b"\x80", b"5\r\n"]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=4,
)


def mutate(data: bytes, changes: list[tuple[int, bytes, int]]) -> bytes:
    """*data* with pieces cut out and put in."""
    for at, piece, cut in changes:
        place = at % (len(data) + 1)
        data = data[:place] + piece + data[place + cut :]
    return data


@settings(max_examples=400)
@given(wire_answers(), mutations, st.lists(st.integers(0, 10_000), max_size=3), st.booleans())
def test_whatever_we_accept_h11_reads_alike(
    wire: tuple[bytes, int, bytes], changes: list[tuple[int, bytes, int]], cuts: list[int], eof: bool
) -> None:
    """Damaged answers are BadAnswer, incomplete, or exactly what h11 reads; nothing else is raised."""
    data = mutate(wire[0], changes)
    try:
        answer = parse(data, cuts, eof=eof)
    except BadAnswer:
        return
    assume(answer is not None)
    assert answer is not None
    assert agrees(data, answer, eof=eof)


@settings(max_examples=300)
@given(wire_answers(), mutations, st.lists(st.integers(0, 10_000), max_size=4))
def test_the_pieces_do_not_matter(
    wire: tuple[bytes, int, bytes], changes: list[tuple[int, bytes, int]], cuts: list[int]
) -> None:
    """The same bytes mean the same whether they come at once or in pieces."""
    data = mutate(wire[0], changes)

    def outcome(pieces: list[int]) -> Answer | str | None:
        try:
            return parse(data, pieces)
        except BadAnswer:
            return "bad"

    whole, pieced = outcome([]), outcome(cuts)
    # A fault behind the end of an answer, or one that only completes a doomed head, may be seen sooner or later.
    assert whole == pieced or None in (whole, pieced)


@given(st.binary(max_size=300), st.booleans())
def test_noise_raises_nothing_else(data: bytes, eof: bool) -> None:
    """Arbitrary bytes are incomplete or BadAnswer."""
    with contextlib.suppress(BadAnswer):
        parse(data, eof=eof)


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    """Neither length nor chunks: the body goes on to the end of the connection, which cannot be reused."""
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\n\r\nab") is None
    assert parser.feed(b"c") is None
    assert parser.finish() == Answer(200, {}, b"abc")
    assert not parser.keep_alive


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: x, close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", False),
    ],
)
def test_when_the_connection_is_kept(head: bytes, kept: bool) -> None:
    """A connection is kept after a whole HTTP/1.1 answer that does not say close."""
    parser = ResponseParser()
    assert parser.feed(head + b"content-length: 1\r\n\r\na") is not None
    assert parser.keep_alive is kept


def test_bytes_behind_an_answer_end_the_connection() -> None:
    """An answer with more behind it is read; its connection carries nothing else."""
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab") == Answer(200, {"content-length": "1"}, b"a")
    assert not parser.keep_alive


def test_repeated_headers_are_joined() -> None:
    """Values of a repeated header are joined in order."""
    answer = parse(b"HTTP/1.1 200 OK\r\nA: 1\r\na: 2\r\ncontent-length: 0\r\n\r\n")
    assert answer is not None
    assert answer.headers["a"] == "1, 2"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x16\x03\x01",
        b"HTTP/1.1 200 OK\n\n",
        b"HTTP/1.1 200 OK\r\na: b\nc: d\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\rc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\x00\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: b\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: \xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: \r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"0" * 2_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1;" + b"x" * 2_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: \x01\r\n\r\n",
    ],
)
def test_what_is_no_answer(data: bytes) -> None:
    """Each of these is refused as soon as it is seen."""
    with pytest.raises(BadAnswer):
        parse(data)


def test_one_length_said_twice_is_one_length() -> None:
    """Equal Content-Length headers are one."""
    answer = parse(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\na")
    assert answer is not None
    assert answer.body == b"a"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 17_000,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 3_000 + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 3_000,
    ],
)
def test_heads_are_capped(data: bytes) -> None:
    """More than 16 KiB of head, interim answers and trailers included, is refused."""
    with pytest.raises(BadAnswer, match="16 KiB"):
        parse(data)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_001,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1f4\r\n" + b"x" * 500 + b"\r\n1f5\r\n",
    ],
)
def test_bodies_are_capped(data: bytes) -> None:
    """A body beyond the cap is refused, from its length where that is known."""
    with pytest.raises(BadAnswer, match="1000 bytes"):
        parse(data, max_body=1_000)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://a", ("http", "a", 80, "a", "/")),
        ("https://a", ("https", "a", 443, "a", "/")),
        ("https://a:443/x", ("https", "a", 443, "a", "/x")),
        ("http://a:8400/x?y=z", ("http", "a", 8400, "a:8400", "/x?y=z")),
        ("http://a?y", ("http", "a", 80, "a", "/?y")),
        ("http://[::1]:8400/", ("http", "::1", 8400, "[::1]:8400", "/")),
    ],
)
def test_urls(url: str, parts: tuple[str, str, int, str, str]) -> None:
    """The parts of a URL: what to dial, what to call it, what to ask for."""
    assert http1.target(url) == parts


@pytest.mark.parametrize(
    "url",
    ["", "a", "ftp://a", "http://", "http://u@a/", "http://u:p@a", "http://a:0", "http://a:65536", "http://a:x",
     "http://a/ b", "http://a/\n", "http://a/é", "http://é/", "http://a/#f", "http://a#f", "http:///x", "//a"],
)  # fmt: skip
def test_urls_refused(url: str) -> None:
    """No other scheme, user information, fragment, odd port, or character that could end a line."""
    with pytest.raises(ValueError, match="not an absolute"):
        http1.target(url)


@given(plain_headers, st.binary(max_size=50), st.sampled_from(["GET", "POST", "DELETE"]))
def test_h11_reads_our_requests(headers: list[tuple[str, str]], body: bytes, method: str) -> None:
    """A server reads in our bytes the request we meant."""
    unique = {name.lower(): value for name, value in headers}
    data = http1.encode(method, http1.target("http://a:81/p?q"), unique, body)
    server = h11.Connection(h11.SERVER)
    server.receive_data(data)
    request: Any = server.next_event()
    assert (request.method, request.target) == (method.encode(), b"/p?q")
    read = {name.decode(): value.decode("latin-1") for name, value in request.headers}
    assert read == unique | {"host": "a:81", "content-length": str(len(body))}
    received = b""
    while not isinstance(event := server.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Data)
        received += bytes(event.data)
    assert received == body


@pytest.mark.parametrize(
    "headers", [{"a": "b\r\nc: d"}, {"a": "b\n"}, {"a": "b\r"}, {"a\r\nb": "c"}, {"a": "\x00"}, {"a": "☃"}]
)
def test_headers_cannot_be_smuggled(headers: dict[str, str]) -> None:
    """Header text that could end its line, or cannot be sent, is refused."""
    with pytest.raises(ValueError, match=r"control character|codec can't encode"):
        http1.encode("GET", http1.target("http://a"), headers, b"")


@pytest.mark.parametrize("method", ["HEAD", "CONNECT", "get", "", "GET /x"])
def test_methods_refused(method: str) -> None:
    """Only methods whose answers we read are sent."""
    with pytest.raises(ValueError, match="a request is"):
        http1.encode(method, http1.target("http://a"), {}, b"")
