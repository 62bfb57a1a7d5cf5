"""When an idle connection may carry another request."""

import socket
from typing import Final

IDLE_SECONDS: Final = 4.0
"""Below the shortest keep-alive of common servers (uvicorn: 5 s)."""

KEEP_ALIVE_AFTER: Final = 10
KEEP_ALIVE_FOR: Final = 5


def watch_peer(sock: socket.socket) -> None:
    """Sets TCP keep-alive so that a peer whose host is gone is noticed after 15 s of silence."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEP_ALIVE_AFTER),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", KEEP_ALIVE_FOR),
        # Keep-alive says nothing while sent bytes are unacknowledged; this does.
        ("TCP_USER_TIMEOUT", (KEEP_ALIVE_AFTER + KEEP_ALIVE_FOR) * 1000),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
