"""Asking endpoints what they serve: at registration, on demand, and again and again in the background."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from dispatcher import endpoints
from dispatcher.endpoints import RelayTarget
from dispatcher.pace import Pace
from dispatcher.registry import Registry
from dispatcher.store import Session, Store
from dispatcher.store import endpoints as endpoint_store
from dispatcher.store.endpoints import EVERYWHERE
from endpoint_sdk.transport.aio import AsyncTransport
from endpoint_sdk.wire.operating import EndpointTested
from publishers import discovery
from publishers.base import Target
from publishers.discovery import ProbeResult

_AT_ONCE: Final = 16

log = logging.getLogger(__name__)


class Discovery:
    """Probes endpoints with a signed request and stores what they answer.

    An endpoint that never answered is asked again after 1 s, 2 s, 4 s … 60 s; one that did, every 60 s, so that a new
    deployment's workflows are found.
    """

    name: Final = "discoverEndpoints"

    def __init__(
        self, store: Store, registry: Registry, transport: AsyncTransport, public_url: Callable[[], str]
    ) -> None:
        self._store = store
        self._registry = registry
        self._transport = transport
        self._public_url = public_url
        self._paces: dict[tuple[str, Target], Pace] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def test(self, namespace: str, name: str) -> EndpointTested:
        """What the endpoint answers within 5 s; a good answer makes it active, a bad one is kept as its reason.

        Raises NotFound `endpoint_not_found`.
        """
        self._registry.invalidate()
        found = [item for item in await self._registry.endpoints(namespace) if item.name == name]
        if not found:
            raise endpoints.not_found(name)
        own = [item for item in found if item.namespace == namespace]
        result = await self._probe((own or found)[0])
        workflows = result.discovered.workflows if result.discovered else []
        return EndpointTested(result.ok, result.code, result.message, result.status, result.ms, workflows)

    async def once(self) -> dict[str, int]:
        """The endpoints due longest, sixteen at most, were probed; counts those that answered and the others."""
        now = time.monotonic()
        known = await self._registry.endpoints()
        self._paces = {_key(item): self._pace(item) for item in known}
        longest = sorted(known, key=lambda item: self._pace(item).at)[:_AT_ONCE]
        results = await asyncio.gather(*(self._probe(item) for item in longest if self._pace(item).at <= now))
        answered = sum(result.ok for result in results)
        return {"answered": answered, "unreached": len(results) - answered}

    async def _probe(self, item: RelayTarget) -> ProbeResult:
        async with self._gate:
            result = await discovery.probe(item.target, self._transport, self._public_url(), item.name)
        await self._store.transact(lambda session: _keep(session, item, result))
        if result.ok and result.discovered is not None:
            await self._registry.declarations.put(item.namespace or EVERYWHERE, result.discovered.workflows)
        self._paces[_key(item)] = self._pace(item).after(time.monotonic(), well=result.ok)
        if result.ok:
            self._registry.invalidate()
        else:
            log.warning(
                "endpoint did not answer discovery",
                extra={"endpoint": item.name, "code": result.code, "status": result.status},
            )
        return result

    def _pace(self, item: RelayTarget) -> Pace:
        return self._paces.get(_key(item), Pace())


def _key(item: RelayTarget) -> tuple[str, Target]:
    """By what the pace of probing is remembered: an endpoint that was changed is probed at once."""
    return item.endpoint_id, item.target


def _keep(session: Session, item: RelayTarget, result: ProbeResult) -> None:
    if result.ok and result.discovered is not None:
        found = result.discovered
        workflows = msgspec.json.encode(found.workflows).decode()
        endpoint_store.discovered(session, item.endpoint_id, found.sdk, found.build_id, workflows)
    else:
        endpoint_store.unreached(session, item.endpoint_id, result.code or "endpoint_unreachable")
