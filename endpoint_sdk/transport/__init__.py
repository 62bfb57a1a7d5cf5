"""HTTP/1.1 of our own: small, fast, and exact about whether bytes were sent or received before a failure.

`aio.AsyncTransport` serves pushes and the SDK's calls, `blocking.BlockingTransport` threads. Errors: see `errors`.
"""

from endpoint_sdk.transport.aio import AsyncTransport
from endpoint_sdk.transport.blocking import BlockingTransport
from endpoint_sdk.transport.errors import (
    AnswerTimeout,
    BadAnswer,
    ConnectFailed,
    ResetAfterSend,
    ResetIdle,
    SendFailed,
    TransportError,
)
from endpoint_sdk.transport.http1 import Answer, Request

__all__ = [
    "Answer",
    "AnswerTimeout",
    "AsyncTransport",
    "BadAnswer",
    "BlockingTransport",
    "ConnectFailed",
    "Request",
    "ResetAfterSend",
    "ResetIdle",
    "SendFailed",
    "TransportError",
]
