"""Queues and executors over HTTP."""

from typing import Final

from dispatcher import overview
from dispatcher.api import queries
from dispatcher.api.call import Answer, Call, answer
from dispatcher.api.routing import Route

_LAST: Final = 2**31 - 1


async def queues(call: Call) -> Answer:
    caller = await call.caller("read")
    limit, after = _page(call)
    held = call.services
    targets = await held.registry.targets()
    items, following = await overview.queues(
        held.store, held.settings.routes, targets, caller.namespace, limit=limit, after=after
    )
    return answer({"items": items, "next": following})


async def executors(call: Call) -> Answer:
    caller = await call.caller("read")
    limit, after = _page(call)
    items, following = await overview.executors(call.services.store, caller.namespace, limit=limit, after=after)
    return answer({"items": items, "next": following})


def _page(call: Call) -> tuple[int, int]:
    given = queries.parse(call, ("limit", "after"))
    return queries.limit(given), queries.number(given, "after", 0, 0, _LAST)


ROUTES: Final = (Route("GET", "/v1/queues", queues), Route("GET", "/v1/executors", executors))
