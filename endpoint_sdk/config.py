"""The environment of the SDK, read here and nowhere else; an argument in code beats a variable.

POINTSMAN_URL                        the dispatcher, instead of the URL a delivery names
POINTSMAN_API_KEY                    `pmk_…`, for clients and for workers that poll
POINTSMAN_SIGNING_SECRET             `whsec_…`, several separated by spaces
POINTSMAN_ENDPOINT                   names this endpoint or worker answers to, separated by spaces; none: unchecked
POINTSMAN_NAMESPACE                  for clients and workers whose key is not bound to one, and for Redis queues
POINTSMAN_MAX_DURATION               seconds the host gives one request, where it does not say so itself
POINTSMAN_SIGNATURE_TOLERANCE        seconds, 0 to 900
POINTSMAN_CLAIM_REFRESH_INTERVAL_MS  upper bound for the time between two claim refreshes
"""

import math
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.wire import signature

DEFAULT_REFRESH_INTERVAL_MS: Final = 30_000

_WHOLE: Final = re.compile(r"[0-9]{1,9}")
_LONGEST: Final = timedelta(days=365)


class Environment(Struct, frozen=True):
    """What the variables say, checked; None or empty where one is not set."""

    url: str | None = None
    api_key: str | None = None
    signing_secret: str | None = None
    endpoint_names: tuple[str, ...] = ()
    namespace: str | None = None
    max_duration: timedelta | None = None
    tolerance: int | None = None
    refresh_interval_ms: int = DEFAULT_REFRESH_INTERVAL_MS


def read(environ: Mapping[str, str] | None = None) -> Environment:
    """The environment as it is now; an empty variable counts as not set.

    Raises ConfigurationError naming the variable whose value cannot be used.
    """
    values = os.environ if environ is None else environ

    def text(name: str) -> str | None:
        return values.get(name, "").strip() or None

    return Environment(
        url=url(text("POINTSMAN_URL"), "POINTSMAN_URL"),
        api_key=text("POINTSMAN_API_KEY"),
        signing_secret=text("POINTSMAN_SIGNING_SECRET"),
        endpoint_names=tuple((text("POINTSMAN_ENDPOINT") or "").split()),
        namespace=text("POINTSMAN_NAMESPACE"),
        max_duration=_seconds(text("POINTSMAN_MAX_DURATION"), "POINTSMAN_MAX_DURATION"),
        tolerance=_tolerance(text("POINTSMAN_SIGNATURE_TOLERANCE")),
        refresh_interval_ms=_milliseconds(text("POINTSMAN_CLAIM_REFRESH_INTERVAL_MS")),
    )


def url(value: object, name: str) -> str | None:
    """*value* without its trailing slash, None if it is None.

    Raises ConfigurationError, calling it *name*, unless it is http or https with a host and no user, query or
    fragment.
    """
    if value is None:
        return None
    if not isinstance(value, str) or not is_base_url(value):
        raise ConfigurationError(f"{name} is not a URL like https://pointsman.example.com")
    return value.rstrip("/")


def is_base_url(value: str) -> bool:
    """Whether requests can be sent to paths below *value*: http or https, a host, and nothing after the path."""
    if not value.isascii() or not value.isprintable() or " " in value:
        return False
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError:
        return False
    plain = not (parts.username or parts.password or parts.query or parts.fragment)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain


def tolerance(value: object, name: str) -> int:
    """*value* if it is a number of whole seconds from 0 to 900; raises ConfigurationError, calling it *name*."""
    try:
        return signature.check_tolerance(value)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None


def duration(value: object, name: str) -> timedelta | None:
    """*value* if it is None or a positive timedelta; raises ConfigurationError, calling it *name*."""
    if value is None:
        return None
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise ConfigurationError(f"{name} is not a positive timedelta")
    return value


def _seconds(value: str | None, name: str) -> timedelta | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _LONGEST.total_seconds():
        raise ConfigurationError(f"{name} is not a positive number of seconds")
    return timedelta(seconds=seconds)


def _tolerance(value: str | None) -> int | None:
    if value is None:
        return None
    whole = int(value) if _WHOLE.fullmatch(value) else value
    return tolerance(whole, "POINTSMAN_SIGNATURE_TOLERANCE")


def _milliseconds(value: str | None) -> int:
    if value is None:
        return DEFAULT_REFRESH_INTERVAL_MS
    if not _WHOLE.fullmatch(value) or int(value) == 0:
        raise ConfigurationError("POINTSMAN_CLAIM_REFRESH_INTERVAL_MS is not a positive whole number of milliseconds")
    return int(value)
