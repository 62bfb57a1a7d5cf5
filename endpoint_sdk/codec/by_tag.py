"""Unions of classes that JSON alone cannot tell apart: each value goes with the name of its class.

`Approved | Rejected`, both dataclasses, is recorded as {"type": "Approved", "value": {…}}; so in lists, dicts, tuples
and Optional. Unions of tagged msgspec Structs need none of this, and neither does a class beside None or builtins.
"""

import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from endpoint_sdk.codec.by_msgspec import MsgspecCodec
from endpoint_sdk.codec.by_msgspec import codec_of as plain_codec_of
from endpoint_sdk.errors import ConfigurationError

# How a container is made again of its parts; one of another kind, a NamedTuple say, is a value.
_CONTAINERS: Final[dict[Any, Callable[[Any], Any]]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Sequence: list,
    Collection: list,
}
_MAPPINGS: Final = (dict, Mapping)


class _Wrapped(msgspec.Struct, frozen=True):
    value: Any


class _TaggedCodec:
    def __init__(self, inner: MsgspecCodec, wrappers: dict[Any, type[_Wrapped]]) -> None:
        self._inner = inner
        self._wrappers = wrappers

    def encode(self, value: Any, what: str) -> bytes:
        return self._inner.encode(_mapped(value, self._wrap), what)

    def decode(self, data: bytes | msgspec.Raw, what: str) -> Any:
        return _mapped(self._inner.decode(data, what), _unwrap)

    def _wrap(self, value: Any) -> Any:
        wrapper = next((self._wrappers[cls] for cls in type(value).__mro__ if cls in self._wrappers), None)
        return value if wrapper is None else wrapper(value)


def codec_of(annotation: Any, where: str) -> _TaggedCodec | None:
    """The codec of an *annotation* with such a union, None for any other; raises ConfigurationError."""
    members = list(dict.fromkeys(_members(annotation)))
    if not members:
        return None
    wrappers: dict[Any, type[_Wrapped]] = {}
    tags: dict[str, Any] = {}
    for member in members:
        cls = typing.get_origin(member) or member
        if tags.setdefault(cls.__name__, member) is not member:
            raise ConfigurationError(f"{where}: two classes of a union go by the name {cls.__name__}")
        fields = [("value", member)]
        made = msgspec.defstruct(
            cls.__name__, fields, bases=(_Wrapped,), tag=cls.__name__, tag_field="type", frozen=True
        )
        wrappers[member] = cast("type[_Wrapped]", made)
    inner = plain_codec_of(_replaced(annotation, wrappers), where)
    return _TaggedCodec(inner, {typing.get_origin(member) or member: wrapper for member, wrapper in wrappers.items()})


def _members(annotation: Any) -> Iterator[Any]:
    """The classes of those unions in *annotation* that hold several of which not all are tagged Structs."""
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        classes = [part for part in parts if _is_object(typing.get_origin(part) or part)]
        if len(classes) > 1 and not all(_tagged(part) for part in classes):
            yield from classes
    for part in parts:
        yield from _members(part)


def _is_object(cls: Any) -> bool:
    return isinstance(cls, type) and (
        issubclass(cls, msgspec.Struct) or hasattr(cls, "__dataclass_fields__") or hasattr(cls, "__attrs_attrs__")
    )


def _tagged(part: Any) -> bool:
    config = getattr(typing.get_origin(part) or part, "__struct_config__", None)
    return config is not None and config.tag is not None


def _replaced(annotation: Any, wrappers: dict[Any, type[_Wrapped]]) -> Any:
    wrapper = next((wrapper for member, wrapper in wrappers.items() if member == annotation), None)
    if wrapper is not None:
        return wrapper
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_replaced(part, wrappers) for part in parts)]  # noqa: UP007 - made of values
    if origin in _CONTAINERS or origin in _MAPPINGS:
        return origin[tuple(_replaced(part, wrappers) for part in parts)]
    return annotation


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """*value* with *change* made to everything in its containers; a container of its own kind stays one."""
    make = _CONTAINERS.get(type(value))
    if make is not None:
        return make(_mapped(part, change) for part in value)
    if type(value) is dict:
        return {key: _mapped(part, change) for key, part in value.items()}
    return change(value)


def _unwrap(value: Any) -> Any:
    return value.value if isinstance(value, _Wrapped) else value
