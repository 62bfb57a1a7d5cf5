"""The answer in the bytes of a connection, without I/O (RFC 9112).

Strict where leniency has been a hole: bare CR or LF, control characters, folded lines, a Content-Length beside a
Transfer-Encoding and every coding but `chunked` are refused. We never ask for an upgrade and never send HEAD.
"""

import re
from functools import lru_cache
from typing import Final, Literal

from endpoint_sdk.transport.errors import BadAnswer
from endpoint_sdk.transport.http1 import Answer, is_clean
from endpoint_sdk.wire import limits

_STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[^\x00-\x08\x0a-\x1f\x7f]*|[ \t]*)")
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_MAX_CHUNK_LINE: Final = 1024


@lru_cache(maxsize=512)
def _field_name(raw: str) -> str:
    if _TOKEN.fullmatch(raw) is None:
        raise BadAnswer("a header of the answer has no proper name")
    return raw.lower()


def _fields(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        raw, colon, value = line.partition(":")
        if not colon:
            raise BadAnswer("a line of the answer's head is no header")
        name = _field_name(raw)
        value = value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


class ResponseParser:
    """One answer from the bytes of a connection.

    `feed` gives the answer once it is whole; `keep_alive` is then true if the connection can carry another exchange.
    Raises BadAnswer, after which the connection is of no use.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_headers",
        "_left",
        "_mode",
        "_size",
        "_spent",
        "_status",
        "keep_alive",
        "max_body",
    )

    def __init__(self, max_body: int = limits.MAX_ANSWER) -> None:
        self.max_body = max_body
        self.keep_alive = False
        self._buffer = b""
        self._mode: Literal["head", "length", "close", "size", "data", "end", "trailer", "done"] = "head"
        self._spent = 0
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._left = 0

    def feed(self, data: bytes) -> Answer | None:
        """The answer if *data* completes it."""
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        while self._mode == "head":
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._keep_head(data)
                return None
            self._spend(end + 4)
            self._read_head(data[:end].decode("latin-1"))
            data = data[end + 4 :]
        if self._mode == "length":
            return self._read_length(data)
        if self._mode == "close":
            self._add(data)
            return None
        return self._read_chunks(data)

    def finish(self) -> Answer | None:
        """The answer if the end of the connection completes it, None if it was cut short."""
        if self._mode != "close":
            return None
        return self._complete(b"")

    def _keep_head(self, data: bytes) -> None:
        if self._spent + len(data) > limits.MAX_HEADERS:
            raise BadAnswer("the answer's head is larger than 16 KiB")
        if not b"HTTP/1."[: len(data)] == data[:7] or b"\n\n" in data:
            raise BadAnswer("the answer is not HTTP/1.1")
        self._buffer = data

    def _spend(self, size: int) -> None:
        self._spent += size
        if self._spent > limits.MAX_HEADERS:
            raise BadAnswer("the answer's head is larger than 16 KiB")

    def _read_head(self, text: str) -> None:
        if not is_clean(text.replace("\r\n", "")):
            raise BadAnswer("the answer's head holds a control character")
        lines = text.split("\r\n")
        match = _STATUS_LINE.fullmatch(lines[0])
        if match is None:
            raise BadAnswer("the answer is not HTTP/1.1")
        status = int(match[2])
        headers = _fields(lines[1:])
        if status == 101:
            raise BadAnswer("the answer switches to a protocol nobody asked for")
        if status < 200:
            return
        self._status, self._headers = status, headers
        self.keep_alive = match[1] == "1" and "close" not in headers.get("connection", "").lower()
        self._choose_framing(headers, chunks_known=match[1] == "1")

    def _choose_framing(self, headers: dict[str, str], *, chunks_known: bool) -> None:
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if self._status in (204, 304):
            self._mode, self._left = "length", 0
        elif coding is not None:
            if coding.lower() != "chunked" or length is not None or not chunks_known:
                raise BadAnswer("the answer's body is framed in a way we do not read")
            self._mode = "size"
        elif length is not None:
            self._mode, self._left = "length", self._read_content_length(length)
        else:
            self._mode, self.keep_alive = "close", False

    def _read_content_length(self, text: str) -> int:
        values = {value.strip(" \t") for value in text.split(",")}
        value = values.pop()
        if values or _DIGITS.fullmatch(value) is None:
            raise BadAnswer("the answer's Content-Length is not a number")
        if int(value) > self.max_body:
            raise self._too_large()
        return int(value)

    def _read_length(self, data: bytes) -> Answer | None:
        if len(data) < self._left:
            self._left -= len(data)
            self._body.append(data)
            return None
        self._body.append(data[: self._left])
        return self._complete(data[self._left :])

    def _read_chunks(self, data: bytes) -> Answer | None:
        at = 0
        while True:
            if self._mode == "data":
                piece = data[at : at + self._left]
                self._add(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    return None
                self._mode = "end"
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                self._keep_line(data[at:])
                return None
            line, at = data[at:line_end], line_end + 2
            if self._read_line(line):
                return self._complete(data[at:])

    def _keep_line(self, data: bytes) -> None:
        if len(data) > _MAX_CHUNK_LINE or (self._mode == "end" and not b"\r".startswith(data)):
            raise BadAnswer("the answer's chunks are malformed")
        self._buffer = data

    def _read_line(self, line: bytes) -> bool:
        """Whether *line*, between the data of two chunks or in the trailer, ended the body."""
        if self._mode == "trailer":
            self._spend(len(line) + 2)
            if line:
                self._read_trailer(line.decode("latin-1"))
            return not line
        if self._mode == "end":
            if line:
                raise BadAnswer("the answer's chunks are malformed")
            self._mode = "size"
            return False
        match = _CHUNK.fullmatch(line) if len(line) <= _MAX_CHUNK_LINE else None
        if match is None:
            raise BadAnswer("the answer's chunks are malformed")
        self._left = int(match[1], 16)
        if self._size + self._left > self.max_body:
            raise self._too_large()
        self._mode = "data" if self._left else "trailer"
        return False

    def _read_trailer(self, line: str) -> None:
        if not is_clean(line):
            raise BadAnswer("the answer's trailer holds a control character")
        _fields([line])

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self.max_body:
            raise self._too_large()
        self._body.append(piece)

    def _too_large(self) -> BadAnswer:
        return BadAnswer(f"the answer's body is larger than {self.max_body} bytes")

    def _complete(self, rest: bytes) -> Answer:
        # Bytes behind the answer belong to no request of ours: the connection is not to be trusted with another.
        self.keep_alive = self.keep_alive and not rest
        self._mode = "done"
        return Answer(self._status, self._headers, b"".join(self._body))
