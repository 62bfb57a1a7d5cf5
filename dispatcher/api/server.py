"""The API as an ASGI application: find the handler, answer, and turn every failure into an error object."""

from typing import Final

from dispatcher import errors
from dispatcher.api import (
    actions,
    children,
    endpoints,
    events,
    executing,
    health,
    keys,
    overview,
    publishers,
    runs,
    schedules,
)
from dispatcher.api import errors as api_errors
from dispatcher.api.bodies import ClientGone
from dispatcher.api.call import Answer, AsgiScope, Call, Receive, Send
from dispatcher.api.routing import Routes
from dispatcher.api.services import Services
from endpoint_sdk.wire import identity, limits, messages

_ROUTES: Final = Routes(
    [
        *executing.ROUTES,
        *runs.ROUTES,
        *actions.ROUTES,
        *events.ROUTES,
        *children.ROUTES,
        *schedules.ROUTES,
        *endpoints.ROUTES,
        *publishers.ROUTES,
        *keys.ROUTES,
        *overview.ROUTES,
        *health.ROUTES,
    ]
)
_REQUEST_ID: Final = messages.HEADER_REQUEST_ID.encode()
_JSON: Final = (b"content-type", b"application/json")


class Api:
    """Answers every HTTP request with JSON and a `pointsman-request-id`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        request_id = identity.new("req")
        call = Call(scope, receive, self._services, request_id)
        try:
            _check_headers(scope)
            answer = await _ROUTES.find(call)(call)
        except errors.Refusal as refusal:
            answer = api_errors.refused(refusal, request_id)
        except ClientGone:
            return
        except Exception as error:
            answer = api_errors.crashed(error, request_id, scope["path"])
        await _send(send, answer, request_id, head=scope["method"] == "HEAD")


def _check_headers(scope: AsgiScope) -> None:
    if sum(len(name) + len(value) for name, value in scope["headers"]) > limits.MAX_HEADERS:
        raise errors.BadRequest("malformed", f"The headers have more than {limits.MAX_HEADERS} bytes.")


async def _send(send: Send, answer: Answer, request_id: str, *, head: bool) -> None:
    headers = [
        _JSON,
        (b"content-length", str(len(answer.body)).encode()),
        (_REQUEST_ID, request_id.encode()),
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else answer.body})
