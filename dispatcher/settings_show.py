"""The settings in force, for people: every value with its origin, secrets cut to their last four characters."""

from collections.abc import Iterator
from typing import Any, Final

from pydantic import SecretStr

from dispatcher.broker_url import without_password
from dispatcher.settings_load import Loaded
from endpoint_sdk.wire import signature

_URLS: Final = ("database.url",)


def entries(loaded: Loaded) -> list[tuple[str, Any, str]]:
    """(path, value, origin) of every setting, in the order of the documentation."""
    found: list[tuple[str, Any, str]] = []
    for path, value in _flat(loaded.settings.model_dump(by_alias=True), ""):
        found.append((path, _shown(path, value), loaded.origins.get(path, "default")))
    settings = loaded.settings
    found.append(("logLevel", settings.log_level, loaded.origins.get("logLevel", "default")))
    for path, secret in (("secretKey", settings.secret_key), ("adminKey", settings.admin_key)):
        if secret is not None:
            found.append((path, _shown(path, secret), "environment"))
    return found


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        for index, item in enumerate(value):
            yield from _flat(item, f"{path}[{index}]")
    else:
        yield path, value


def _shown(path: str, value: Any) -> Any:
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        return f"…{signature.hint(secret)}" if len(secret) >= 16 else "…"
    if isinstance(value, str) and (path in _URLS or path.endswith((".url", "Url"))):
        return without_password(value)
    return list(value) if isinstance(value, tuple) else value
