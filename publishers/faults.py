"""Why a broker did not take a delivery, in the words that outcomes and checks share.

broker_unreachable    nobody answers at the broker's address, or nobody who can take anything now
queue_missing         the broker is there, the queue is not
queue_wrong_kind      what is there is no queue of the configured kind
credentials_refused   there are no credentials, or they do not allow it
throttled             the broker takes no more now
broker_refused        the broker refused for another reason
too_large             the delivery is larger than the queue takes
closed                the publisher was closed
unknown               the broker may have it: it was sent, and no answer came
"""

import socket
import ssl
from typing import Final, Literal

from msgspec import Struct

from publishers.base import Health, Outcome

PUBLISH_SECONDS: Final = 20.0
"""How long a broker has to take all it is handed in one call: less than the relay waits for the outcomes."""

CHECK_SECONDS: Final = 5.0
"""How long a check takes at most."""

Code = Literal[
    "broker_unreachable",
    "queue_missing",
    "queue_wrong_kind",
    "credentials_refused",
    "throttled",
    "broker_refused",
    "too_large",
    "closed",
    "unknown",
]


class Fault(Struct, frozen=True):
    """Why a delivery was not, or perhaps not, handed over; *message* is a sentence without payloads and secrets."""

    code: Code
    message: str

    def outcome(self) -> Outcome:
        """What became of a delivery this happened to: never an ending, since no executor was reached."""
        if self.code == "unknown":
            return Outcome("published", self.code, detail=self.message)
        return Outcome("declined" if self.code == "too_large" else "failed", self.code, detail=self.message)

    def health(self) -> Health:
        """What a check that met this has found."""
        if self.code in ("broker_unreachable", "throttled", "closed"):
            return Health("unreachable", self.code, self.message)
        if self.code == "unknown":
            return Health("unreachable", "broker_unreachable", self.message)
        return Health("misconfigured", self.code, self.message)


ACCEPTED: Final = Outcome("published", "accepted")
ACTIVE: Final = Health("active")
CLOSED: Final = Fault("closed", "The publisher is closed.")
SILENT: Final = Fault("unknown", f"The broker did not answer within {PUBLISH_SECONDS:.0f} s.")
NO_ANSWER: Final = Fault("broker_unreachable", f"The broker did not answer within {CHECK_SECONDS:.0f} s.")
UNSIGNED: Final = Fault("broker_refused", "The publisher has no signing secret, and nothing is sent unsigned.")

_CAUSES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (socket.gaierror, "its host name does not resolve"),
    (ConnectionRefusedError, "nothing listens there"),
    (ssl.SSLError, "the TLS handshake failed"),
)


def unreachable(broker: str, error: BaseException | None = None) -> Fault:
    """Nobody answers, with the cause if *error*, or what it was raised from, names one."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        for kind, cause in _CAUSES:
            if isinstance(error, kind):
                return Fault("broker_unreachable", f"No connection to {broker} could be made: {cause}.")
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return Fault("broker_unreachable", f"No connection to {broker} could be made.")
