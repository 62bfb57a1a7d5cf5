"""Which codec an annotation gets."""

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from endpoint_sdk.codec import by_msgspec, by_pydantic, by_tag
from endpoint_sdk.errors import ConfigurationError


class Codec(Protocol):
    """Both directions for one annotation; *what* names the value in refusals."""

    def encode(self, value: Any, what: str) -> bytes:
        """JSON of *value*, at most 1 MiB. Raises PayloadError."""

    def decode(self, data: bytes | msgspec.Raw, what: str) -> Any:
        """The value *data* stands for. Raises PayloadError when it is not what the annotation says."""


def for_annotation(annotation: Any, where: str) -> Codec:
    """The codec of *annotation*; raises ConfigurationError naming *where* when JSON cannot carry it."""
    while type(annotation).__name__ == "TypeAliasType":  # `type Decision = Approved | Rejected`, from Python 3.12 on
        annotation = annotation.__value__
    for strategy in _STRATEGIES:
        codec = strategy(annotation, where)
        if codec is not None:
            return codec
    raise ConfigurationError(f"{where}: no codec for {annotation!r}")


_STRATEGIES: Final[tuple[Callable[[Any, str], Codec | None], ...]] = (
    by_pydantic.codec_of,
    by_tag.codec_of,
    by_msgspec.codec_of,
)
