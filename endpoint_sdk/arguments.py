"""What a program hands to an executor, checked before anything is served."""

from collections.abc import Iterable
from typing import Any

from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.workflow import Workflow


def workflows(value: object, who: str) -> list[Workflow[Any, Any]]:
    """*value* if it is at least one workflow; raises ConfigurationError, which calls the executor *who*."""
    served = list(value) if isinstance(value, Iterable) else []
    if not served or not all(isinstance(each, Workflow) for each in served):
        raise ConfigurationError(f"{who} serves a list of at least one @workflow")
    return served


def names(value: object, name: str) -> tuple[str, ...]:
    """The names in *value*, separated by spaces; raises ConfigurationError, calling it *name*, if there is none."""
    if not isinstance(value, str) or not value.split():
        raise ConfigurationError(f"{name} is not a name")
    return tuple(value.split())


def positive(value: object, name: str) -> int:
    """*value* if it is a positive whole number; raises ConfigurationError, calling it *name*, otherwise."""
    if type(value) is not int or value < 1:
        raise ConfigurationError(f"{name} is not a positive whole number")
    return value


def is_credential(value: str) -> bool:
    """Whether *value* can be sent as a bearer credential."""
    return bool(value) and value.isascii() and value.isprintable() and " " not in value
