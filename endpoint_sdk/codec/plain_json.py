"""Values as JSON whatever their annotation, and JSON as builtins."""

import math
import typing
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from endpoint_sdk.errors import PayloadError
from endpoint_sdk.wire import limits


def to_json(value: Any, what: str, *, order: typing.Literal["sorted"] | None = None) -> bytes:
    """UTF-8 JSON of *value* of any size. Raises PayloadError naming *what* and the place inside it."""
    try:
        data = _encoded(value, order)
        # NaN and infinity leave msgspec as null, so a text without null cannot hide one.
        if b"null" in data:
            _refuse_non_finite(value, what)
    except PayloadError:
        raise
    except Exception as error:  # hooks of the user's types raise what they like
        raise PayloadError(f"{what} cannot be recorded as JSON: {error}") from error
    return data


def from_json(data: bytes) -> Any:
    """The builtins *data* stands for."""
    return _BUILTINS.decode(data)


def check_size(data: bytes, what: str, limit: int = limits.MAX_PAYLOAD) -> bytes:
    """*data*, unless it is over *limit* bytes."""
    if len(data) > limit:
        raise PayloadError(
            f"{what} is {len(data)} bytes of JSON, the limit is {limit}; store it elsewhere and pass its address",
            code="payload_too_large",
        )
    return data


def _encoded(value: Any, order: typing.Literal["sorted"] | None) -> bytes:
    encoder = _ENCODERS[order]
    try:
        return encoder.encode(value)
    except TypeError:
        if order is None:
            raise
        # Sorting, msgspec takes text keys only; any order it can encode, it can sort once the keys are texts.
        return encoder.encode(msgspec.to_builtins(value, str_keys=True, order=order, enc_hook=_builtins_of))


def _builtins_of(value: Any) -> Any:
    """What msgspec encodes in place of a *value* it does not know: a pydantic model's JSON form."""
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__qualname__} is not a type JSON can carry")
    return dump(value, mode="json", by_alias=True)


def _refuse_non_finite(value: Any, what: str) -> None:
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_builtins_of)
    path = next(_non_finite(plain, "$"), None)
    if path is not None:
        raise PayloadError(f"{what} holds NaN or infinity at {path}; JSON has no such number")


def _non_finite(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _non_finite(part, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _non_finite(part, f"{path}[{index}]")


_BUILTINS: Final = msgspec.json.Decoder()
_ENCODERS: Final = {
    None: msgspec.json.Encoder(enc_hook=_builtins_of),
    "sorted": msgspec.json.Encoder(enc_hook=_builtins_of, order="sorted"),
}
