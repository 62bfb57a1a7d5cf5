"""Whether a message a worker received may be claimed: judged over its bytes, before anything else is done with it.

A signature's age is judged at the time the transport took the message in, so a slow queue makes no valid message too
old, and not at all where the transport does not tell: the claim refuses a stale revision in any case.
"""

import logging
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Struct

from endpoint_sdk import arguments, config, redelivery
from endpoint_sdk.signing_secrets import SigningSecrets
from endpoint_sdk.subscribers.base import Message
from endpoint_sdk.subscribers.errand import Errand
from endpoint_sdk.wire import messages, signature
from endpoint_sdk.workflow import Registry

_log: Final = logging.getLogger(__name__)

_delivery: Final = msgspec.json.Decoder(messages.Delivery)


_WHY: Final = {
    "no_matching_signature": "it is not signed with a secret of this worker; POINTSMAN_SIGNING_SECRET or "
    "Worker(secret=) is to hold that of the publisher, for a day after a rotation the one before as well",
    "wrong_audience": "it is signed for another publisher's workers, see POINTSMAN_ENDPOINT or Worker(name=)",
    "unknown_workflow": "its workflow or version is not served here",
    "signing_secret_unavailable": "the signing secret cannot be had",
    "too_old": "its signature was too old when the queue took it in; are the dispatcher's clock and this one right?",
    "too_new": "its signature is from the future; are the dispatcher's clock and this one right?",
}
_NO_DELIVERY: Final = "it is no signed delivery; something else than a dispatcher sends to this queue"


class TurnedAway(Struct, frozen=True):
    """The message was not claimed; `code` says why, `delay` in how many seconds it may come again."""

    code: str
    delay: float

    @property
    def why(self) -> str:
        """The reason in a sentence that says what can be done about it."""
        return f"{_WHY.get(self.code, _NO_DELIVERY)} ({self.code})"


class Admission:
    """Judges messages for one worker: its secrets, its names (none: every audience), what it serves and calls."""

    def __init__(
        self,
        registry: Registry,
        secrets: SigningSecrets,
        *,
        names: Collection[str] = (),
        url: str | None = None,
        tolerance: int = signature.DEFAULT_TOLERANCE,
    ) -> None:
        self._registry = registry
        self._secrets = secrets
        self._names = frozenset(names)
        self._url = url
        self._tolerance = tolerance

    async def judge(self, message: Message) -> messages.Delivery | TurnedAway:
        """The delivery in *message* if it may be claimed; never raises for what a message contains."""
        try:
            keys = await self._keys()
        except (Exception, SystemExit):
            _log.exception("the signing secret cannot be had")
            return TurnedAway("signing_secret_unavailable", retry_delay(message))
        try:
            self._verify(keys, message)
        except signature.SignatureError as error:
            return _forged(error.reason, message)
        return self._read(message)

    async def _keys(self) -> tuple[bytes, ...]:
        keys = self._secrets.ready()
        # In a thread of its own: bodies may occupy all of the loop's.
        return await Errand("pointsman-secret", self._secrets.fetch).result() if keys is None else keys

    def _verify(self, keys: tuple[bytes, ...], message: Message) -> None:
        at = message.sent_at
        if at is None:
            at = _stamped(message)
        signature.verify(keys, message.headers, message.body, at, self._tolerance)

    def _read(self, message: Message) -> messages.Delivery | TurnedAway:
        try:
            delivery = _delivery.decode(message.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _forged("malformed", message)
        if self._names and delivery.audience not in self._names:
            return _forged("wrong_audience", message)
        if not config.is_base_url(self._url or delivery.url) or not arguments.is_credential(delivery.token):
            return _forged("malformed", message)
        if self._registry.find(delivery.workflow, delivery.version) is None:
            return TurnedAway("unknown_workflow", redelivery.delay("unknown-workflow", message.receives))
        return delivery


def retry_delay(message: Message) -> float:
    """Seconds until a message whose outcome is not known may come again."""
    return redelivery.delay("retry", message.receives)


def _forged(code: str, message: Message) -> TurnedAway:
    return TurnedAway(code, redelivery.delay("unauthorized", message.receives))


def _stamped(message: Message) -> float:
    """The message's own timestamp, so that its age is none; whatever cannot be read is refused by `verify`."""
    for name, value in message.headers.items():
        if name.lower() == signature.HEADER_TIMESTAMP and value.isascii() and value.isdecimal():
            return float(value[:12])
    return 0.0
