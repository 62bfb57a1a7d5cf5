"""The endpoint registry over HTTP."""

from typing import Final

from msgspec.json import Decoder

from dispatcher import endpoints
from dispatcher.api import bodies, queries
from dispatcher.api.call import Answer, Call, answer
from dispatcher.api.routing import Route
from endpoint_sdk.wire.operating import AddEndpoint, EndpointAdded, Nothing

_ADD: Final = Decoder(AddEndpoint)
_NOTHING: Final = Decoder(Nothing)


async def add(call: Call) -> Answer:
    """201 with the endpoint, its secret if it was made here, and what a first probe found within 5 s."""
    caller = await call.caller("operate")
    request = await bodies.decoded(call, _ADD)
    held = call.services
    added = await endpoints.add(held.store, held.keys, caller.namespace, request)
    tested = await held.discovery.test(caller.namespace, request.name)
    view = await endpoints.get(held.store, caller.namespace, request.name)
    return answer(EndpointAdded(view, added.secret, tested), 201)


async def list_(call: Call) -> Answer:
    caller = await call.caller("read")
    queries.parse(call, ())
    return answer({"items": await endpoints.list_(call.services.store, caller.namespace), "next": None})


async def get(call: Call) -> Answer:
    caller = await call.caller("read")
    queries.parse(call, ())
    found = await endpoints.get(call.services.store, caller.namespace, call.arguments["name"])
    return answer({"endpoint": found})


async def test(call: Call) -> Answer:
    caller = await call.caller("operate")
    await bodies.decoded(call, _NOTHING, empty=b"{}")
    return answer(await call.services.discovery.test(caller.namespace, call.arguments["name"]))


ROUTES: Final = (
    Route("POST", "/v1/endpoints", add),
    Route("GET", "/v1/endpoints", list_),
    Route("GET", "/v1/endpoints/{name}", get),
    Route("POST", "/v1/endpoints/{name}/test", test),
)
