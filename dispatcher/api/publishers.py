"""The publishers over HTTP: endpoints and brokers, with their states."""

from typing import Final

from dispatcher import publisher_views
from dispatcher.api import queries
from dispatcher.api.call import Answer, Call, answer
from dispatcher.api.routing import Route


async def list_(call: Call) -> Answer:
    caller = await call.caller("read")
    queries.parse(call, ())
    return answer({"items": await publisher_views.list_(call.services.store, caller.namespace), "next": None})


async def get(call: Call) -> Answer:
    caller = await call.caller("read")
    queries.parse(call, ())
    found = await publisher_views.get(call.services.store, caller.namespace, call.arguments["name"])
    return answer({"publisher": found})


ROUTES: Final = (
    Route("GET", "/v1/publishers", list_),
    Route("GET", "/v1/publishers/{name}", get),
)
