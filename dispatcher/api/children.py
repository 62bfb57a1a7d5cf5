"""Children: started by the claim holder of their parent, and looked at."""

from typing import Final, get_args

from msgspec.json import Decoder

from dispatcher import child_views, children, errors
from dispatcher.api import bodies, queries
from dispatcher.api.call import Answer, Call, answer
from dispatcher.api.executing import token
from dispatcher.api.routing import Route
from dispatcher.api.runs import run_id
from dispatcher.secrets import WRITE_PREFIX
from endpoint_sdk.wire import identity, limits
from endpoint_sdk.wire.child_messages import StartChildren
from endpoint_sdk.wire.messages import Status

_START: Final = Decoder(StartChildren)


async def start(call: Call) -> Answer:
    credential = token(call, WRITE_PREFIX)
    request = await bodies.decoded(call, _START)
    for place, child in enumerate(request.children):
        bodies.check_payload(child.input, f"$.children[{place}].input")
    held = call.services
    return answer(await children.start(held.store, held.keys, run_id(call), request, credential))


async def list_(call: Call) -> Answer:
    caller = await call.caller("read")
    given = queries.parse(call, ("status", "limit", "after"))
    status, after = given.get("status"), given.get("after", "")
    if status is not None and status not in get_args(Status):
        raise errors.BadRequest("bad_parameter", f"status has to be one of {', '.join(get_args(Status))}.")
    if after and not identity.is_id("run", after):
        raise errors.BadRequest("bad_parameter", "after has to be the `next` of the page before.")
    items, cursor = await child_views.list_(
        call.services.store,
        caller.namespace,
        run_id(call),
        status=status,
        limit=queries.limit(given),
        after=after,
    )
    return answer({"items": items, "next": cursor})


async def outcomes(call: Call) -> Answer:
    """What became of the children of a call, for the holder of their parent's claim."""
    credential = token(call, WRITE_PREFIX)
    given = queries.parse(call, ("call", "after"))
    if "call" not in given:
        raise errors.BadRequest("bad_parameter", "call has to name the call that started the children.")
    after = queries.number(given, "after", -1, 0, limits.MAX_CHILDREN)
    held = call.services
    return answer(await child_views.outcomes(held.store, held.keys, run_id(call), credential, given["call"], after))


ROUTES: Final = (
    Route("POST", "/v1/runs/{run_id}/children", start),
    Route("GET", "/v1/runs/{run_id}/children", list_),
    Route("GET", "/v1/runs/{run_id}/children/outcomes", outcomes),
)
