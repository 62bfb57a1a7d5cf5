"""Schedules over HTTP."""

from typing import Final

import msgspec
from msgspec.json import Decoder

from dispatcher import schedule_control, schedule_views
from dispatcher.api import bodies, queries
from dispatcher.api.call import Answer, Call, answer
from dispatcher.api.routing import Route
from endpoint_sdk.wire.operating import Nothing
from endpoint_sdk.wire.scheduling import Backfill, PutSchedule, RunNow, ScheduleAnswer

_PUT: Final = Decoder(PutSchedule)
_RUN_NOW: Final = Decoder(RunNow)
_BACKFILL: Final = Decoder(Backfill)
_NOTHING: Final = Decoder(Nothing)


async def list_(call: Call) -> Answer:
    caller = await call.caller("read")
    given = queries.parse(call, ("limit", "after"))
    items, following = await schedule_views.list_(
        call.services.store, caller.namespace, limit=queries.limit(given), after=given.get("after", "")
    )
    return answer({"items": items, "next": following})


async def get(call: Call) -> Answer:
    caller = await call.caller("read")
    queries.parse(call, ())
    return answer(ScheduleAnswer(await schedule_views.get(call.services.store, caller.namespace, _name(call))))


async def put(call: Call) -> Answer:
    """201 for a new schedule, 200 for one that was there."""
    caller = await call.caller("operate")
    request = await bodies.decoded(call, _PUT)
    if not isinstance(request.input, msgspec.UnsetType):
        bodies.check_payload(request.input, "$.input")
    view, created = await schedule_control.define(call.services.store, caller.namespace, _name(call), request)
    return answer(ScheduleAnswer(view), 201 if created else 200)


async def delete(call: Call) -> Answer:
    caller = await call.caller("operate")
    await schedule_control.delete(call.services.store, caller.namespace, _name(call))
    return answer({"deleted": True})


async def run_now(call: Call) -> Answer:
    """201 with the run, 200 if an earlier copy of the request made it."""
    caller = await call.caller("operate")
    request = await bodies.decoded(call, _RUN_NOW, empty=b"{}")
    held = call.services
    done, existed = await schedule_control.run_now(
        held.store, held.registry, held.settings, caller.namespace, _name(call), request, caller.actor
    )
    return answer(done, 200 if existed else 201)


async def backfill(call: Call) -> Answer:
    caller = await call.caller("operate")
    request = await bodies.decoded(call, _BACKFILL)
    held = call.services
    return answer(await schedule_control.backfill(held.store, held.registry, caller.namespace, _name(call), request))


async def pause(call: Call) -> Answer:
    caller = await call.caller("operate")
    await bodies.decoded(call, _NOTHING, empty=b"{}")
    return answer(ScheduleAnswer(await schedule_control.pause(call.services.store, caller.namespace, _name(call))))


async def resume(call: Call) -> Answer:
    caller = await call.caller("operate")
    await bodies.decoded(call, _NOTHING, empty=b"{}")
    return answer(ScheduleAnswer(await schedule_control.resume(call.services.store, caller.namespace, _name(call))))


def _name(call: Call) -> str:
    return call.arguments["name"]


ROUTES: Final = (
    Route("GET", "/v1/schedules", list_),
    Route("GET", "/v1/schedules/{name}", get),
    Route("PUT", "/v1/schedules/{name}", put),
    Route("DELETE", "/v1/schedules/{name}", delete),
    Route("POST", "/v1/schedules/{name}/run-now", run_now),
    Route("POST", "/v1/schedules/{name}/pause", pause),
    Route("POST", "/v1/schedules/{name}/resume", resume),
    Route("POST", "/v1/schedules/{name}/backfill", backfill),
)
