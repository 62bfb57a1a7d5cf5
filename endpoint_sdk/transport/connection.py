"""One HTTP/1.1 connection on asyncio: one exchange at a time, and what is known when it ends early."""

import asyncio
import socket
from typing import Final, cast

from endpoint_sdk.transport import pooling
from endpoint_sdk.transport.answers import ResponseParser
from endpoint_sdk.transport.errors import AnswerTimeout, BadAnswer, TransportError, lost
from endpoint_sdk.transport.http1 import Answer

_BUFFER: Final = 32_768


class Connection(asyncio.BufferedProtocol):
    """Carries one request after another until `reusable` is false; `gone` is done once the socket is closed."""

    def __init__(self, peer: str, loop: asyncio.AbstractEventLoop) -> None:
        self.peer = peer
        self.idle_since = 0.0
        self.reusable = True
        self.gone: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._parser = ResponseParser()
        self._used = False
        self._unsent = False
        self._received = 0
        # Read into: asyncio otherwise takes 256 KiB from the allocator for every answer, a third of its price.
        self._buffer = bytearray(_BUFFER)

    async def exchange(self, message: bytes, max_body: int, timeout: float) -> Answer:
        """The answer to *message*, whole within *timeout* seconds; raises TransportError, and closes, otherwise."""
        self._parser = ResponseParser(max_body)
        self._received = 0
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        self._waiter = waiter
        timer = self._loop.call_later(timeout, self._expire)
        try:
            self._write(message)
            return await waiter
        except BaseException:
            # Also when cancelled: an answer still to come must not meet the next request.
            self.close()
            raise
        finally:
            timer.cancel()
            self._waiter = None
            self._used = True

    def close(self) -> None:
        """Closes the socket at once; an exchange under way ends with an error."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _write(self, message: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            self._unsent = True
            self._end(None)
        else:
            self._transport.write(message)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # So low that we are told whenever bytes wait here, and when the last of them is gone: to the kernel, or on TLS
        # (where the limit is inclusive) to the layer below. `sent` may be true too early there, never too late.
        self._transport.set_write_buffer_limits(high=1 if transport.get_extra_info("sslcontext") else 0, low=0)
        pooling.watch_peer(cast("socket.socket", transport.get_extra_info("socket")))

    def pause_writing(self) -> None:
        self._unsent = True

    def resume_writing(self) -> None:
        self._unsent = False

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - the signature is asyncio's
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(memoryview(self._buffer)[:nbytes])
        waiter = self._waiter
        if waiter is None or waiter.done():
            self.close()
            return
        self._received += nbytes
        try:
            answer = self._parser.feed(data)
        except BadAnswer as error:
            self._fail(BadAnswer(str(error), sent=not self._unsent, received=self._received))
            return
        if answer is not None:
            # Answered before it had the whole request: the rest of it is in the way of the next one.
            self.reusable = self._parser.keep_alive and not self._unsent
            waiter.set_result(answer)

    def eof_received(self) -> bool:
        self._end(self._parser.finish())
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        self._end(None)
        if not self.gone.done():
            self.gone.set_result(None)

    def _end(self, answer: Answer | None) -> None:
        self.reusable = False
        if answer is None:
            self._fail(lost(self.peer, sent=not self._unsent, received=self._received, reused=self._used))
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(answer)

    def _expire(self) -> None:
        sent = not self._unsent
        self._fail(AnswerTimeout(f"{self.peer} gave no answer in time", sent=sent, received=self._received))

    def _fail(self, error: TransportError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
