"""Events: values sent to a run from outside, typed at both ends."""

import types
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import msgspec

from endpoint_sdk import codec
from endpoint_sdk.tasks import checked_name
from endpoint_sdk.wire import limits

T = TypeVar("T")


class Event(Generic[T]):
    """An event by *name*: `Event[Decision]("decision")` carries a Decision, `Event("decision")` anything JSON can.

    Raises ConfigurationError for a name the dispatcher does not take, or a type JSON cannot carry.
    """

    def __init__(self, name: str) -> None:
        self.name: Final[str] = checked_name(name, "event")
        self._codec: codec.Codec = codec.for_annotation(Any, f"event {name!r}")

    def encode(self, value: T) -> bytes:
        """JSON of *value*, at most 256 KiB; raises PayloadError."""
        what = f"event {self.name!r}"
        return codec.check_size(self._codec.encode(value, what), what, limits.MAX_EVENT)

    def decode(self, data: bytes | msgspec.Raw) -> T:
        """The value *data* stands for; raises PayloadError when it is none of this event."""
        return cast("T", self._codec.decode(data, f"event {self.name!r}"))

    def __repr__(self) -> str:
        return f"Event({self.name!r})"

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item: Any) -> "_Typed":
            return _Typed(cls, item)


class _Typed(types.GenericAlias):
    """`Event[Decision]`: its codec is built when an event is made of it, so that a wrong type fails at import."""

    def __call__(self, name: str) -> "Event[Any]":
        event = cast("type[Event[Any]]", self.__origin__)(name)
        event._codec = codec.for_annotation(self.__args__[0], f"event {name!r}")
        return event
