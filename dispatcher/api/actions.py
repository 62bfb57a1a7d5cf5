"""Operating on many runs over HTTP."""

from typing import Final

from msgspec.json import Decoder

from dispatcher import bulk
from dispatcher.api import bodies, queries
from dispatcher.api.call import Answer, Call, answer
from dispatcher.api.routing import Route
from endpoint_sdk.wire.actions import BulkAction

_BULK: Final = Decoder(BulkAction)


async def start(call: Call) -> Answer:
    """202 for an action that will be applied, 200 where there is nothing to do."""
    caller = await call.caller("operate")
    request = await bodies.decoded(call, _BULK)
    started = await bulk.start(call.services.store, caller.namespace, request, caller.actor)
    return answer(started, 202 if started.started else 200)


async def get(call: Call) -> Answer:
    caller = await call.caller("read")
    queries.parse(call, ())
    return answer(await bulk.get(call.services.store, caller.namespace, call.arguments["action_id"]))


ROUTES: Final = (
    Route("POST", "/v1/runs/actions", start),
    Route("GET", "/v1/runs/actions/{action_id}", get),
)
