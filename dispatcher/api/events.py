"""Sending events to runs, and looking at their mailboxes."""

from typing import Any, Final

from msgspec.json import Decoder

from dispatcher import errors, mailbox
from dispatcher.api import bodies
from dispatcher.api import errors as api_errors
from dispatcher.api.call import Answer, Call, answer
from dispatcher.api.routing import Route
from dispatcher.api.runs import history, run_id
from endpoint_sdk.wire.operating import SendEvent, SendToMany, SentToOne

_SEND: Final = Decoder(SendEvent)
_SEND_TO_MANY: Final = Decoder(SendToMany)


async def send(call: Call) -> Answer:
    caller = await call.caller("submit")
    request = await bodies.decoded(call, _SEND)
    bodies.check_payload(request.value, "$.value")
    return answer(await mailbox.send(call.services.store, caller.namespace, run_id(call), request, caller.actor))


async def send_to_many(call: Call) -> Answer:
    """One result per target, in order: {runId, eventId, stored} or {error}."""
    caller = await call.caller("submit")
    request = await bodies.decoded(call, _SEND_TO_MANY)
    bodies.check_payload(request.value, "$.value")
    found = await mailbox.send_to_many(call.services.store, caller.namespace, request, caller.actor)
    return answer({"results": [_outcome(call, outcome) for outcome in found]})


async def events(call: Call) -> Answer:
    caller = await call.caller("read")
    return await history(call, caller, mailbox.events_of, first=0)


def _outcome(call: Call, outcome: SentToOne | errors.Refusal) -> Any:
    if isinstance(outcome, errors.Refusal):
        return {"error": api_errors.body(outcome, call.request_id)}
    return outcome


ROUTES: Final = (
    Route("POST", "/v1/events", send_to_many),
    Route("POST", "/v1/runs/{run_id}/events", send),
    Route("GET", "/v1/runs/{run_id}/events", events),
)
