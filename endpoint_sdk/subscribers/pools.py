"""The pools a subscriber takes runs from."""

from collections.abc import Sequence

from endpoint_sdk.errors import ConfigurationError


def checked(pools: object) -> tuple[str, ...]:
    """*pools* if it is a sequence of 1 to 100 names; raises ConfigurationError otherwise."""
    named = tuple(pools) if isinstance(pools, Sequence) and not isinstance(pools, str) else ()
    if not 1 <= len(named) <= 100 or not all(isinstance(each, str) and each for each in named):
        raise ConfigurationError("a subscriber's pools= is a list of 1 to 100 names")
    return named
