"""Everything msgspec knows: builtins, dataclasses, attrs classes, Structs, NamedTuples, TypedDicts, enums, times.

A pydantic model inside one of these goes through its own validation.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from endpoint_sdk.codec import by_pydantic
from endpoint_sdk.codec.plain_json import check_size, to_json
from endpoint_sdk.errors import ConfigurationError, PayloadError

_inspect = msgspec.inspect
# A JSON object's keys are texts: what msgspec writes as one and reads back.
_KEYS: Final = (
    _inspect.AnyType,
    _inspect.BytesType,
    _inspect.DateTimeType,
    _inspect.DateType,
    _inspect.DecimalType,
    _inspect.EnumType,
    _inspect.FloatType,
    _inspect.IntType,
    _inspect.LiteralType,
    _inspect.StrType,
    _inspect.TimeDeltaType,
    _inspect.TimeType,
    _inspect.UUIDType,
)
_UNION_HINT: Final = "; use msgspec Structs with tag=True, or pydantic models with a discriminator"


class MsgspecCodec:
    """The codec of an annotation that `check` let pass."""

    def __init__(self, annotation: Any) -> None:
        self._decoder = msgspec.json.Decoder(annotation, dec_hook=by_pydantic.from_builtins)

    def encode(self, value: Any, what: str) -> bytes:
        """JSON of *value*; see Codec."""
        return check_size(to_json(value, what), what)

    def decode(self, data: bytes | msgspec.Raw, what: str) -> Any:
        """The value *data* stands for; see Codec."""
        try:
            return self._decoder.decode(data)
        except Exception as error:
            raise PayloadError(f"{what} is not what its annotation says: {error}", code="invalid_payload") from error


def codec_of(annotation: Any, where: str) -> MsgspecCodec:
    """The codec of *annotation*; raises ConfigurationError when JSON cannot carry it."""
    try:
        problem = next(_problems(_inspect.type_info(annotation)), None)
        codec = MsgspecCodec(annotation)
    except (TypeError, NameError) as error:
        hint = _UNION_HINT if "union" in str(error) else ""
        raise ConfigurationError(f"{where}: {annotation!r} cannot be recorded as JSON: {error}{hint}") from error
    if problem is not None:
        raise ConfigurationError(f"{where}: {problem}")
    return codec


def _problems(info: Any, seen: set[int] | None = None) -> Iterator[str]:
    """What JSON would lose or refuse in the tree of *info*."""
    seen = set() if seen is None else seen
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, _inspect.CustomType | _inspect.ExtType):
        yield from _foreign(info)
    elif isinstance(info, _inspect.DictType) and not isinstance(info.key_type, _KEYS):
        yield f"keys of {_name(info.key_type)} cannot be recorded as JSON; use texts, numbers, times, enums or UUIDs"
    elif isinstance(info, _inspect.DataclassType):
        yield from _unseen_fields(info.cls)
    if isinstance(info, msgspec.Struct):
        for name in info.__struct_fields__:
            yield from _problems(getattr(info, name), seen)
    elif isinstance(info, tuple):
        for part in info:
            yield from _problems(part, seen)


def _foreign(info: Any) -> Iterator[str]:
    kind = getattr(info, "cls", info)
    if kind is object:
        yield "object cannot be recorded as JSON; say Any, which comes back as builtins"
    elif by_pydantic.is_model(kind):
        if by_pydantic.masks_secrets(by_pydantic.adapter_of(kind)):
            yield f"{by_pydantic.MASKED} {kind.__qualname__}"
    else:
        name = getattr(kind, "__qualname__", repr(kind))
        yield (
            f"{name} cannot be recorded as JSON; use builtins, dataclasses, attrs classes, msgspec Structs or pydantic "
            "models, or pass an id and open the object inside the task"
        )


def _unseen_fields(cls: Any) -> Iterator[str]:
    """Of an attrs class msgspec reads no field with a leading underscore, which would be lost unheard."""
    for attribute in getattr(cls, "__attrs_attrs__", ()):
        if attribute.name.startswith("_"):
            yield f"field {attribute.name} of {cls.__qualname__} would not be recorded: name it without underscore"


def _name(info: Any) -> str:
    return type(info).__name__.removesuffix("Type").lower() if not hasattr(info, "cls") else info.cls.__qualname__
