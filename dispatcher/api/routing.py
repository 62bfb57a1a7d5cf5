"""From method and path to a handler; a walk over the path's segments, so that hot calls cost no pattern matching."""

from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import unquote_to_bytes

import msgspec

from dispatcher import errors
from dispatcher.api.call import Answer, Call

Handler = Callable[[Call], Awaitable[Answer]]


class Route(msgspec.Struct, frozen=True):
    """*template* is a path whose `{name}` segments are arguments."""

    method: str
    template: str
    handler: Handler


class _Node:
    __slots__ = ("argument", "child", "children", "handlers")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.argument: str | None = None
        self.child: _Node | None = None
        self.handlers: dict[str, Handler] = {}

    def descend(self, segment: str) -> "_Node":
        if not segment.startswith("{"):
            return self.children.setdefault(segment, _Node())
        self.argument = segment[1:-1]
        self.child = self.child or _Node()
        return self.child


class Routes:
    """Finds the handler of a call."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            for segment in route.template.split("/")[1:]:
                node = node.descend(segment)
            node.handlers[route.method] = route.handler

    def find(self, call: Call) -> Handler:
        """The handler for the call's method and path, its path arguments set.

        Raises NotFound `route_not_found`, MethodNotAllowed `method_not_allowed`, or BadRequest `bad_parameter` for an
        argument that is not percent-encoded UTF-8.
        """
        node = self._root
        for segment in _segments(call):
            known = node.children.get(segment)
            if known is not None:
                node = known
            elif node.child is not None and node.argument is not None and segment:
                call.arguments[node.argument] = _argument(segment)
                node = node.child
            else:
                raise _not_found()
        if not node.handlers:
            raise _not_found()
        method = call.scope["method"]
        handler = node.handlers.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise _not_allowed(method, node.handlers)
        return handler


def _segments(call: Call) -> list[str]:
    raw: bytes | None = call.scope.get("raw_path")
    path = call.scope["path"] if raw is None else raw.partition(b"?")[0].decode("latin-1")
    return str(path).split("/")[1:]


def _argument(segment: str) -> str:
    if "%" not in segment and segment.isascii():
        text = segment
    else:
        try:
            text = unquote_to_bytes(segment.encode("latin-1")).decode()
        except ValueError:
            raise errors.BadRequest("bad_parameter", "The path is not percent-encoded UTF-8.") from None
    if not text.isprintable() or len(text) > 200:
        raise errors.BadRequest("bad_parameter", "The path holds control characters, or a part of it is too long.")
    return text


def _not_found() -> errors.NotFound:
    return errors.NotFound("route_not_found", "There is nothing at this path.", hint="The API's calls begin with /v1/.")


def _not_allowed(method: str, handlers: dict[str, Handler]) -> errors.MethodNotAllowed:
    allowed = sorted([*handlers, *(["HEAD"] if "GET" in handlers else [])])
    return errors.MethodNotAllowed(
        "method_not_allowed", f"{method[:20]} does not apply to this path.", details={"allow": allowed}
    )
