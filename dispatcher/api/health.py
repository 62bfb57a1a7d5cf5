"""For load balancers and orchestrators; no credential."""

from typing import Final

from dispatcher.api.call import Answer, Call, answer
from dispatcher.api.routing import Route


async def healthz(call: Call) -> Answer:
    """The process answers; nothing else is asked. `statements` counts what this process sent to the database."""
    return answer({"status": "ok", "statements": call.services.store.statements})


async def readyz(call: Call) -> Answer:
    """The database answers and the daemons make progress; 503 `unavailable` otherwise."""
    return answer({"status": "ok", "checks": await call.services.readiness.check()})


ROUTES: Final = (Route("GET", "/healthz", healthz), Route("GET", "/readyz", readyz))
