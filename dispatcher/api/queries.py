"""Query parameters: every one known, given once, and of its type, or the request is refused."""

import difflib
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

from dispatcher import errors
from dispatcher.api.call import Call

MAX_LIMIT: Final = 500
DEFAULT_LIMIT: Final = 50


def parse(call: Call, known: Sequence[str], prefix: str | None = None) -> dict[str, str]:
    """The parameters by name; those beginning with *prefix* are known too.

    Raises BadRequest `bad_parameter` for one that is unknown, given twice, or not UTF-8 without control characters.
    """
    found: dict[str, str] = {}
    for part in filter(None, call.scope.get("query_string", b"").split(b"&")):
        key, _, value = part.partition(b"=")
        name, text = _text(key), _text(value)
        if name not in known and not (prefix and name.startswith(prefix) and name != prefix):
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(known) or 'none'}."
            raise errors.BadRequest("bad_parameter", f"There is no parameter {name[:100]!r} here.", hint=hint)
        if name in found:
            raise errors.BadRequest("bad_parameter", f"The parameter {name[:100]} is given twice.")
        found[name] = text
    return found


def number(given: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    """The whole number in a parameter, *default* when it is not given. Raises BadRequest `bad_parameter`."""
    text = given.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or not least <= int(text) <= most:
        raise errors.BadRequest("bad_parameter", f"{name} has to be a whole number from {least} to {most}.")
    return int(text)


def limit(given: dict[str, str]) -> int:
    """How many items a page holds: 1 to 500, 50 by default."""
    return number(given, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)


def _text(raw: bytes) -> str:
    try:
        text = unquote_to_bytes(raw.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise errors.BadRequest("bad_parameter", "The query string is not percent-encoded UTF-8.") from None
    if not text.isprintable() or len(text) > 2_000:
        raise errors.BadRequest("bad_parameter", "A parameter holds control characters, or is too long.")
    return text
