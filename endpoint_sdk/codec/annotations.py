"""What a function's annotations say, as far as they are asked for."""

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from endpoint_sdk.errors import ConfigurationError


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
