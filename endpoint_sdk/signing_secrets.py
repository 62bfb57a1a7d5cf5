"""The secrets an endpoint accepts: given, read from the environment, or fetched by the user's own function."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from endpoint_sdk import monotonic
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.wire import signature

Secret: TypeAlias = str | Sequence[str] | Callable[[], str | Sequence[str]]

_KEEP: Final = 300.0


class SigningSecrets:
    """Up to ten signing secrets as keys.

    A *secret* that is text or a sequence of texts is checked here and now; a function is called when the first
    delivery needs it, and again when its answer is five minutes old. While the function fails, its last answer stands.
    """

    def __init__(self, secret: Secret, *, now: monotonic.Clock = monotonic.now) -> None:
        self._fetch = secret if callable(secret) else None
        self._now = now
        self._keys: tuple[bytes, ...] = () if callable(secret) else keys(secret)
        self._fetched_at: float | None = None
        self._failure: Exception | None = None
        self._failed_at = -math.inf
        self._lock = threading.Lock()

    def ready(self) -> tuple[bytes, ...] | None:
        """The keys if they can be had without calling the user's function."""
        if self._fetch is None:
            return self._keys
        fresh = self._fetched_at is not None and self._now() - self._fetched_at < _KEEP
        return self._keys if fresh else None

    def fetch(self) -> tuple[bytes, ...]:
        """The keys, calling the user's function if its answer is too old; raises what it raised, if there is none.

        Whoever waited while another caller's call failed shares that failure.
        """
        asked_at = self._now()
        with self._lock:
            known = self.ready()
            if known is not None or self._fetch is None:
                return known or self._keys
            if self._failure is not None and self._failed_at > asked_at:
                raise self._failure
            try:
                self._keys = keys(self._fetch())
            except Exception as error:
                if not self._keys:
                    self._failure, self._failed_at = error, self._now()
                    raise
            self._failure, self._fetched_at = None, self._now()
            return self._keys

    @property
    def hint(self) -> str | None:
        """The last four characters of the first secret, if it is known."""
        return signature.hint(self._keys[0]) if self._keys else None


def keys(secret: str | Sequence[str]) -> tuple[bytes, ...]:
    """The keys of *secret*: one text, several separated by spaces, or a sequence of either.

    Raises ConfigurationError if there is none, more than ten, or one that is no signing secret.
    """
    texts = secret.split() if isinstance(secret, str) else _flattened(secret)
    if not texts:
        raise ConfigurationError(
            "an endpoint needs its signing secret: set POINTSMAN_SIGNING_SECRET or pass Endpoint(secret=)"
        )
    if len(texts) > signature.MAX_KEYS:
        raise ConfigurationError(f"{len(texts)} signing secrets are given, at most {signature.MAX_KEYS} are tried")
    try:
        return tuple(signature.parse_secret(text) for text in texts)
    except signature.SecretInvalid as error:
        raise ConfigurationError(str(error)) from None


def _flattened(secrets: Sequence[str]) -> list[str]:
    if not isinstance(secrets, Sequence) or not all(isinstance(each, str) for each in secrets):
        raise ConfigurationError("a signing secret is text, a sequence of texts, or a function that returns one")
    return [text for each in secrets for text in each.split()]
