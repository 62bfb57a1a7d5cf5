"""Making a connection: the TLS context, and what a failure to connect means. `ssl` is imported when first needed."""

import errno
import socket
from typing import TYPE_CHECKING

from endpoint_sdk.transport.errors import ConnectCause, ConnectFailed

if TYPE_CHECKING:
    import ssl


def tls_context() -> "ssl.SSLContext":
    """A client context: system trust store, host names checked, TLS 1.2 or newer, HTTP/1.1 only."""
    import ssl  # loading it costs milliseconds that plain http need not pay

    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def connect_failed(peer: str, error: OSError | UnicodeError) -> ConnectFailed:
    """*error*, raised while connecting, as the transport's own."""
    cause = _cause(error)
    return ConnectFailed(f"{peer} cannot be reached ({cause}): {_sentence(error)}", cause)


def _cause(error: OSError | UnicodeError) -> ConnectCause:
    # A name that cannot even be asked for (a label too long) is a UnicodeError.
    if isinstance(error, socket.gaierror | UnicodeError):
        return "dns"
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return "timeout"
    if type(error).__module__ == "ssl":
        return "tls"
    # asyncio joins the failures of several addresses in one OSError without errno.
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return "refused"
    return "unreachable"


def _sentence(error: Exception) -> str:
    return (str(error) or "no connection in time")[:200]
