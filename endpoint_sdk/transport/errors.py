"""Why an HTTP exchange has no answer.

    TransportError
    ├── ConnectFailed     no connection: nothing reached the peer (DNS, refused, TLS, time)
    ├── SendFailed        the connection ended before the request was handed over whole
    ├── ResetIdle         a reused connection ended without one byte of answer
    ├── ResetAfterSend    the connection ended after the request was sent, before the answer was whole
    ├── AnswerTimeout     the time for the whole exchange is over
    └── BadAnswer         what came is not HTTP/1.1, or larger than allowed

Only ConnectFailed and SendFailed prove that the peer never had the whole request.
"""

from typing import Literal

ConnectCause = Literal["dns", "refused", "timeout", "tls", "unreachable"]


class TransportError(Exception):
    """No answer. `sent` says whether the kernel took the whole request, `received` how many bytes came back."""

    def __init__(self, message: str, *, sent: bool = False, received: int = 0) -> None:
        super().__init__(message)
        self.sent = sent
        self.received = received


class ConnectFailed(TransportError):
    """No connection was made; `cause` names what failed."""

    def __init__(self, message: str, cause: ConnectCause) -> None:
        super().__init__(message)
        self.cause: ConnectCause = cause


class SendFailed(TransportError):
    """The connection ended while part of the request was still here."""


class ResetIdle(TransportError):
    """A kept-alive connection had been closed by the peer; whether it saw the request is not known."""


class ResetAfterSend(TransportError):
    """The connection ended after the request was sent; whether it was carried out is not known."""


class AnswerTimeout(TransportError):
    """The answer was not whole in time; whether the request was carried out is not known."""


class BadAnswer(TransportError):
    """The peer answered with something that is not an HTTP/1.1 answer within our limits."""


def lost(what: str, *, sent: bool, received: int, reused: bool) -> TransportError:
    """The error for a connection that ended early."""
    if reused and not received:
        return ResetIdle(f"{what} closed a kept-alive connection", sent=sent)
    if not sent:
        return SendFailed(f"{what} ended the connection while the request was being sent", received=received)
    return ResetAfterSend(f"{what} ended the connection before its answer was whole", sent=True, received=received)
