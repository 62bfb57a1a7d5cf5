"""One HTTP request as a handler sees it, and the answer it gives."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec

from dispatcher import access, errors
from dispatcher.access import Caller
from dispatcher.api.services import Services
from endpoint_sdk.wire import messages
from endpoint_sdk.wire.messages import Scope

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiScope = MutableMapping[str, Any]

_NAMESPACE: Final = messages.HEADER_NAMESPACE.encode()
_encode: Final = msgspec.json.Encoder().encode


class Answer(msgspec.Struct, frozen=True):
    """A status, JSON bytes, and headers beyond the usual ones."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Call:
    """A request: its path arguments, headers and body stream, and the services that answer it."""

    __slots__ = ("arguments", "receive", "request_id", "scope", "services")

    def __init__(self, scope: AsgiScope, receive: Receive, services: Services, request_id: str) -> None:
        self.scope = scope
        self.receive = receive
        self.services = services
        self.request_id = request_id
        self.arguments: dict[str, str] = {}

    def header(self, name: bytes) -> bytes | None:
        """The value of a header, given by its lower-case *name*. Raises BadRequest when it is sent twice."""
        found = [value for key, value in self.scope["headers"] if key == name]
        if len(found) > 1:
            raise errors.BadRequest("malformed", f"The header {name.decode()} was sent more than once.")
        return found[0] if found else None

    def credential(self) -> str:
        """The bearer credential. Raises Unauthorized when there is none, or more than one."""
        values = [value for key, value in self.scope["headers"] if key == b"authorization"]
        if len(values) != 1:
            raise access.unauthorized("A credential is needed, and one only.")
        scheme, _, credential = values[0].partition(b" ")
        credential = credential.strip(b" ")
        if scheme.lower() != b"bearer" or not credential or not credential.isascii():
            raise access.unauthorized("The Authorization header is not of the form: Bearer <credential>.")
        return str(credential, "ascii")

    async def caller(self, scope: Scope) -> Caller:
        """The holder of the API key that was sent, who may do what *scope* covers.

        Raises Unauthorized, Forbidden, or BadRequest for a malformed `pointsman-namespace`.
        """
        caller = await self.services.access.caller(self.credential(), self._namespace())
        caller.allow(scope)
        return caller

    def _namespace(self) -> str | None:
        value = self.header(_NAMESPACE)
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError:
            raise errors.BadRequest("bad_parameter", "pointsman-namespace has to be UTF-8.") from None


def answer(message: Any, status: int = 200) -> Answer:
    """*message*, a Struct or plain data, as JSON."""
    return Answer(status, _encode(message))
