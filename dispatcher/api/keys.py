"""API keys over HTTP; admin only."""

from typing import Final

from msgspec.json import Decoder

from dispatcher import access
from dispatcher.api import bodies, queries
from dispatcher.api.call import Answer, Call, answer
from dispatcher.api.routing import Route
from endpoint_sdk.wire.operating import CreateKey

_CREATE: Final = Decoder(CreateKey)


async def create(call: Call) -> Answer:
    await call.caller("admin")
    request = await bodies.decoded(call, _CREATE)
    return answer(await access.create(call.services.store, request), 201)


async def list_(call: Call) -> Answer:
    await call.caller("admin")
    queries.parse(call, ())
    return answer({"items": await access.list_(call.services.store), "next": None})


async def revoke(call: Call) -> Answer:
    await call.caller("admin")
    revoked = await access.revoke(call.services.store, call.arguments["key_id"])
    call.services.access.forget()
    return answer({"key": revoked})


ROUTES: Final = (
    Route("POST", "/v1/keys", create),
    Route("GET", "/v1/keys", list_),
    Route("DELETE", "/v1/keys/{key_id}", revoke),
)
