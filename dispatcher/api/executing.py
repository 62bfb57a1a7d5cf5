"""The executor's calls: claim, poll, refresh, progress. Hot: bytes to Structs and back, nothing between."""

import asyncio
from typing import Final

from msgspec import Raw
from msgspec.json import Decoder

from dispatcher import access, claims, progress
from dispatcher.api import bodies
from dispatcher.api.call import Answer, Call, answer
from dispatcher.api.routing import Route
from dispatcher.secrets import CLAIM_PREFIX, WRITE_PREFIX
from endpoint_sdk.wire.messages import Claimed, ClaimMany, ClaimRun, Complete, Progress, Refresh

_CLAIM: Final = Decoder(ClaimRun)
_CLAIM_MANY: Final = Decoder(ClaimMany)
_REFRESH: Final = Decoder(Refresh)
_PROGRESS: Final = Decoder(Progress)


def token(call: Call, prefix: str) -> str:
    """The credential of the call. Raises Unauthorized when it is missing or of another kind."""
    credential = call.credential()
    if not credential.startswith(prefix):
        raise access.unauthorized(f"This call needs a token that begins with {prefix}.")
    return credential


async def claim(call: Call) -> Answer:
    credential = token(call, CLAIM_PREFIX)
    request = await bodies.decoded(call, _CLAIM)
    held = call.services
    run_id = call.arguments["run_id"]
    return answer(await claims.claim(held.store, held.keys, held.settings.recovery, run_id, request, credential))


async def claim_many(call: Call) -> Answer:
    """A poll: answered when something was claimed, when `waitMs` ends, and never once the client has hung up."""
    caller = await call.caller("execute")
    request = await bodies.decoded(call, _CLAIM_MANY)
    gone = asyncio.ensure_future(bodies.hung_up(call))
    try:
        return answer(Claimed(await call.services.polling.claim(caller.namespace, request, gone)))
    finally:
        gone.cancel()


async def refresh(call: Call) -> Answer:
    request = await bodies.decoded(call, _REFRESH)
    return answer(await claims.refresh(call.services.store, call.services.keys, request))


async def apply_progress(call: Call) -> Answer:
    credential = token(call, WRITE_PREFIX)
    request = await bodies.decoded(call, _PROGRESS)
    for place, record in enumerate(request.records):
        if isinstance(record.value, Raw):
            bodies.check_payload(record.value, f"$.records[{place}].value")
    if isinstance(request.ending, Complete):
        bodies.check_payload(request.ending.result, "$.ending.result")
    held = call.services
    return answer(
        await progress.apply(held.store, held.keys, held.settings, call.arguments["run_id"], request, credential)
    )


ROUTES: Final = (
    Route("POST", "/v1/runs/{run_id}/claim", claim),
    Route("POST", "/v1/runs/{run_id}/progress", apply_progress),
    Route("POST", "/v1/claims", claim_many),
    Route("POST", "/v1/claims/refresh", refresh),
)
