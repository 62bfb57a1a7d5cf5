"""JSON for what a run records: built per annotation when a task or workflow is decorated, never at a call.

A codec is chosen by the first of `_STRATEGIES` that knows the annotation: pydantic's TypeAdapter where the annotation
names a pydantic model, msgspec for everything else. Values always make the round trip, so a first run sees what a
replay will see: an unannotated result comes back as builtins at once.
"""

import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import msgspec

from endpoint_sdk.errors import ConfigurationError, PayloadError
from endpoint_sdk.wire import limits


class Codec(Protocol):
    """Both directions for one annotation; *what* names the value in refusals."""

    def encode(self, value: Any, what: str) -> bytes:
        """JSON of *value*, at most 1 MiB. Raises PayloadError."""

    def decode(self, data: bytes | msgspec.Raw, what: str) -> Any:
        """The value *data* stands for. Raises PayloadError when it is not what the annotation says."""


def for_annotation(annotation: Any, where: str) -> Codec:
    """The codec of *annotation*; raises ConfigurationError naming *where* when JSON cannot carry it."""
    for strategy in _STRATEGIES:
        codec = strategy(annotation, where)
        if codec is not None:
            return codec
    raise ConfigurationError(f"{where}: no codec for {annotation!r}")


def annotation_of(fn: Callable[..., Any], name: str, where: str) -> Any:
    """The resolved annotation of parameter *name* of *fn*, or of "return"; Any where there is none.

    Only this one is resolved, so an import needed by other parameters alone may stay under TYPE_CHECKING.
    Raises ConfigurationError naming *where* and the symbol that does not exist at run time.
    """
    plain = inspect.unwrap(fn)
    annotation = getattr(plain, "__annotations__", {}).get(name, Any)
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    scope = getattr(plain, "__globals__", {})
    parameters = {parameter.__name__: parameter for parameter in getattr(plain, "__type_params__", ())}
    try:
        return typing.get_type_hints(holder, scope, parameters, include_extras=True)[name]
    except NameError as error:
        side = "return annotation" if name == "return" else f"annotation of {name!r}"
        raise ConfigurationError(
            f"{where}: its {side} names {error.name!r}, which does not exist at run time; import it outside "
            "`if TYPE_CHECKING` (for ruff, list endpoint_sdk.task and endpoint_sdk.workflow under "
            "lint.flake8-type-checking.runtime-evaluated-decorators)"
        ) from error
    except (TypeError, SyntaxError, AttributeError) as error:
        raise ConfigurationError(f"{where}: its annotation {annotation!r} cannot be resolved: {error}") from error


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


def _encoded(value: Any, order: typing.Literal["sorted"] | None) -> bytes:
    encoder = _ENCODERS[order]
    try:
        return encoder.encode(value)
    except TypeError:
        if order is None:
            raise
        # Sorting, msgspec takes text keys only; any order it can encode, it can sort once the keys are texts.
        return encoder.encode(msgspec.to_builtins(value, str_keys=True, order=order, enc_hook=_builtins_of))


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


# --- msgspec ---------------------------------------------------------------------------------------------------------
class _MsgspecCodec:
    def __init__(self, annotation: Any) -> None:
        self._decoder = msgspec.json.Decoder(annotation)

    def encode(self, value: Any, what: str) -> bytes:
        return check_size(to_json(value, what), what)

    def decode(self, data: bytes | msgspec.Raw, what: str) -> Any:
        try:
            return self._decoder.decode(data)
        except Exception as error:
            raise PayloadError(f"{what} is not what its annotation says: {error}", code="invalid_payload") from error


def _msgspec_codec(annotation: Any, where: str) -> Codec | None:
    try:
        foreign = next(_foreign_types(msgspec.inspect.type_info(annotation)), None)
        codec = _MsgspecCodec(annotation)
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"{where}: {annotation!r} cannot be recorded as JSON: {error}") from error
    if foreign is not None:
        raise ConfigurationError(
            f"{where}: {foreign.__qualname__} cannot be recorded as JSON; use builtins, dataclasses, msgspec Structs "
            "or pydantic models, or pass an id and open the object inside the task"
        )
    return codec


def _foreign_types(info: Any, seen: set[int] | None = None) -> Iterator[type]:
    """Classes in the tree of *info* that msgspec knows nothing about."""
    seen = set() if seen is None else seen
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    elif isinstance(info, msgspec.Struct):
        for name in info.__struct_fields__:
            yield from _foreign_types(getattr(info, name), seen)
    elif isinstance(info, tuple):
        for part in info:
            yield from _foreign_types(part, seen)


def _builtins_of(value: Any) -> Any:
    """What msgspec encodes in place of a *value* it does not know: a pydantic model's JSON form."""
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__qualname__} is not a type JSON can carry")
    return dump(value, mode="json")


_BUILTINS: Final = msgspec.json.Decoder()
_ENCODERS: Final = {
    None: msgspec.json.Encoder(enc_hook=_builtins_of),
    "sorted": msgspec.json.Encoder(enc_hook=_builtins_of, order="sorted"),
}


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


# --- pydantic, when the user has it ----------------------------------------------------------------------------------
class _PydanticCodec:
    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def encode(self, value: Any, what: str) -> bytes:
        try:
            plain = self._adapter.dump_python(value, mode="json", warnings=False)
        except Exception as error:
            raise PayloadError(f"{what} cannot be recorded as JSON: {error}") from error
        return check_size(to_json(plain, what), what)

    def decode(self, data: bytes | msgspec.Raw, what: str) -> Any:
        try:
            return self._adapter.validate_json(bytes(data))
        except Exception as error:
            raise PayloadError(f"{what} is not what its annotation says: {error}", code="invalid_payload") from error


def _pydantic_codec(annotation: Any, where: str) -> Codec | None:
    # A model class can only exist in a process that has imported pydantic already.
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not any(issubclass(part, pydantic.BaseModel) for part in _classes(annotation)):
        return None
    try:
        return _PydanticCodec(pydantic.TypeAdapter(annotation))
    except Exception as error:
        raise ConfigurationError(f"{where}: pydantic cannot carry {annotation!r}: {error}") from error


def _classes(annotation: Any) -> Iterator[type]:
    # list[int] passes for a class here and not for issubclass; its origin is the class.
    origin = typing.get_origin(annotation) or annotation
    if isinstance(origin, type):
        yield origin
    for part in typing.get_args(annotation):
        yield from _classes(part)


_STRATEGIES: Final[tuple[Callable[[Any, str], Codec | None], ...]] = (_pydantic_codec, _msgspec_codec)
