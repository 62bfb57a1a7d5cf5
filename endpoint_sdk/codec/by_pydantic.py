"""Annotations that name pydantic models, where the user has pydantic: validated by TypeAdapter in both directions."""

import functools
import sys
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from endpoint_sdk.codec.plain_json import check_size, to_json
from endpoint_sdk.errors import ConfigurationError, PayloadError

MASKED: Final = "pydantic writes a secret as asterisks, give it a field_serializer or pass an id instead:"


class _PydanticCodec:
    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._guesses = _has_plain_union(adapter.core_schema)

    def encode(self, value: Any, what: str) -> bytes:
        try:
            plain = self._adapter.dump_python(value, mode="json", by_alias=True, warnings=False)
        except Exception as error:
            raise PayloadError(f"{what} cannot be recorded as JSON: {_told(error)}") from error
        data = check_size(to_json(plain, what), what)
        if self._guesses and (mixed := next(_mixed_up(value, self.decode(data, what), "$"), None)):
            raise PayloadError(f"{what} {mixed}: give the union a discriminator")
        return data

    def decode(self, data: bytes | msgspec.Raw, what: str) -> Any:
        try:
            return self._adapter.validate_json(bytes(data))
        except Exception as error:
            told = f"{what} is not what its annotation says: {_told(error)}"
            raise PayloadError(told, code="invalid_payload") from error


def codec_of(annotation: Any, where: str) -> _PydanticCodec | None:
    """The codec of an *annotation* that names a pydantic class, None for any other; raises ConfigurationError."""
    # Such a class can only exist in a process that has imported pydantic already.
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not any(_is_of_pydantic(part) for part in _parts(annotation)):
        return None
    try:
        adapter = pydantic.TypeAdapter(annotation)
        codec = _PydanticCodec(adapter)
    except Exception as error:
        raise ConfigurationError(f"{where}: pydantic cannot carry {annotation!r}: {error}") from error
    if masks_secrets(adapter):
        raise ConfigurationError(f"{where}: {MASKED} {annotation!r}")
    return codec


def is_model(cls: Any) -> bool:
    """Whether *cls* is a pydantic model."""
    return "pydantic" in sys.modules and hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_dump")


def masks_secrets(adapter: Any) -> bool:
    """Whether *adapter* writes a SecretStr or the like as asterisks, which nobody can read again."""
    return _is_masked(adapter.core_schema)


def _is_masked(schema: Any) -> bool:
    if isinstance(schema, list | tuple):
        return any(map(_is_masked, schema))
    if not isinstance(schema, Mapping):
        return False
    own = schema.get("serialization")
    if isinstance(own, Mapping) and own.get("type") == "function-plain":
        # It writes all that is below, whatever that says of itself.
        writes = own.get("function")
        return getattr(writes, "__module__", "") == "pydantic.types" and "secret" in getattr(writes, "__name__", "")
    return any(map(_is_masked, schema.values()))


def from_builtins(cls: Any, value: Any) -> Any:
    """The *cls* that msgspec met inside another class, where *value* stands for it in JSON."""
    return adapter_of(cls).validate_json(msgspec.json.encode(value))


@functools.cache
def adapter_of(cls: Any) -> Any:
    """The TypeAdapter of the model *cls*."""
    return sys.modules["pydantic"].TypeAdapter(cls)


def _parts(annotation: Any) -> Iterator[Any]:
    # list[int] passes for a class here; its origin is the class.
    yield typing.get_origin(annotation) or annotation
    for part in typing.get_args(annotation):
        yield from _parts(part)


def _is_of_pydantic(part: Any) -> bool:
    """Whether *part* is a class pydantic validates, or what `Annotated` tells pydantic alone, such as `Field(gt=0)`."""
    named = hasattr(part, "__pydantic_validator__") or hasattr(part, "__get_pydantic_core_schema__")
    return named or type(part).__module__.partition(".")[0] == "pydantic"


def _told(error: Exception) -> str:
    """*error* without the input it is about: a payload has no place in a message."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    found = errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(['$', *map(str, each['loc'])])}: {each['msg']}" for each in found)


def _has_plain_union(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        return schema.get("type") == "union" or any(_has_plain_union(part) for part in schema.values())
    return isinstance(schema, list | tuple) and any(_has_plain_union(part) for part in schema)


def _mixed_up(before: Any, after: Any, path: str) -> Iterator[str]:
    """Where pydantic, choosing a member of a union by its looks, made another class of a value."""
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for index, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from _mixed_up(old, new, f"{path}[{index}]")
    elif isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() & after.keys():
            yield from _mixed_up(before[key], after[key], f"{path}.{key}")
    elif _is_object(before) and _is_object(after):
        # A model that is returned for one of its bases is cut down to it, as the annotation says.
        if not isinstance(before, type(after)):
            yield f"holds {type(before).__qualname__} at {path}, which comes back as {type(after).__qualname__}"
        else:
            yield from _mixed_up(getattr(before, "__dict__", {}), getattr(after, "__dict__", {}), path)


def _is_object(value: Any) -> bool:
    return hasattr(type(value), "__pydantic_validator__") or hasattr(type(value), "__dataclass_fields__")
