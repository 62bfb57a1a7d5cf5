"""Where a call's record lives: kind, task name and a hash of the arguments; call n at an address takes record n."""

import hashlib
import inspect
from typing import Any, Final, NamedTuple

from endpoint_sdk import codec
from endpoint_sdk.errors import ConfigurationError, PayloadError
from endpoint_sdk.wire import limits, messages

_HASH_LENGTH: Final = 32
_ELLIPSIS: Final = "…"


class Address(NamedTuple):
    """All calls at one address are interchangeable but for their order."""

    kind: messages.RecordKind
    name: str
    args_hash: str


class Key(NamedTuple):
    """One call: the *ordinal*-th at its address, counted from 0; *phase* tells the start of a child from its end."""

    address: Address
    ordinal: int
    phase: messages.Phase = "ended"

    @property
    def start(self) -> "Key":
        """The start of the child whose end this is."""
        return self._replace(phase="started")

    @property
    def end(self) -> "Key":
        """The end of the child whose start this is."""
        return self._replace(phase="ended")


def canonical(arguments: dict[str, Any], where: str) -> bytes:
    """JSON with sorted keys, no spaces and ASCII escapes: equal arguments give equal bytes in every process.

    Raises ConfigurationError (`argument_not_recordable`) naming the argument JSON cannot carry, and its type.
    """
    try:
        data = codec.to_json(arguments, "arguments", order="sorted")
    except PayloadError as error:
        raise _refusal(arguments, where, error) from error
    return _plain(data)


def canonical_json(data: bytes) -> bytes:
    """*data*, which is JSON, as `canonical` would have written it."""
    return _plain(codec.to_json(codec.from_json(data), "input", order="sorted"))


def args_hash(data: bytes) -> str:
    """The first 32 hexadecimal digits of SHA-256 over canonical *data*."""
    return hashlib.sha256(data).hexdigest()[:_HASH_LENGTH]


def preview(data: bytes) -> str:
    """*data* for people: at most 200 bytes of UTF-8, cut with an ellipsis."""
    if len(data) <= limits.MAX_PREVIEW:
        return data.decode()
    return data[: limits.MAX_PREVIEW - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS


def bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, without defaults: positional and keyword calls agree, and a new default changes nothing.

    Raises TypeError, as the call itself would.
    """
    return signature.bind(*args, **kwargs).arguments


def scope(run_id: str, generation: int) -> str:
    """Names what a run does between two restarts: its id, until it is restarted."""
    return run_id if generation == 0 else f"{run_id}.{generation}"


def idempotency_key(scope: str, key: Key) -> str:
    """The same for all attempts of one call, in every claim of one *scope*; safe in a header."""
    text = "\x1f".join((scope, *key.address, str(key.ordinal)))
    return f"{scope}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]}"


def _plain(data: bytes) -> bytes:
    return data if data.isascii() and b"\x7f" not in data else _ascii(data.decode())


def _ascii(text: str) -> bytes:
    return "".join(character if " " <= character <= "~" else _escape(character) for character in text).encode()


def _escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2))


def _refusal(arguments: dict[str, Any], where: str, error: PayloadError) -> ConfigurationError:
    for name, value in arguments.items():
        try:
            codec.to_json(value, f"argument {name!r}", order="sorted")
        except PayloadError as fault:
            return ConfigurationError(
                f"{where}: {fault} (a {type(value).__qualname__}); pass an id and open the object inside the task",
                code="argument_not_recordable",
            )
    return ConfigurationError(f"{where}: {error}", code="argument_not_recordable")
