"""A poller of a world's dispatcher, and what its tests share."""

import asyncio
from typing import Any

from dispatcher.pollers import Pollers
from dispatcher.polling import Polling
from endpoint_sdk.wire import identity
from endpoint_sdk.wire.messages import ClaimMany, ExecutorInfo, Grant, WantedWorkflow
from tests.integration.world import NAMESPACE, Claim, World

DEADLINE_MS = 30_000


class Poller:
    """Polls a world's dispatcher."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pollers = Pollers(world.store)
        settings = world.settings
        self.polling = Polling(world.store, world.keys, self.pollers, settings.recovery, settings.publishing)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(
        self, limit: int = 10, *workflows: str, namespace: str = NAMESPACE, **fields: Any
    ) -> list[Grant]:
        """The grants of a poll for version 1 of *workflows*, of order if none is named."""
        wanted = [WantedWorkflow(name, ["1"]) for name in workflows or ("order",)]
        given = {"request_id": identity.new("req"), "limit": limit, "pools": ["default"], **fields}
        request = ClaimMany(wanted, executor=ExecutorInfo("poller"), refresh_interval_ms=30_000, **given)
        return await self.polling.claim(namespace, request, self.gone)

    async def waits(self, count: int = 1) -> None:
        """Returns once *count* polls wait; fails after ten seconds."""
        async with asyncio.timeout(10):
            while self.polling.waiting != count:  # noqa: ASYNC110 - a poll tells nobody that it waits
                await asyncio.sleep(0.001)


def ids(grants: list[Grant]) -> list[str]:
    return [grant.run.id for grant in grants]


def claim_of(grant: Grant) -> Claim:
    return Claim(grant.run.id, grant.revision, grant.claim_id, grant.token)


def publish(world: World, run_id: str, at: int) -> None:
    """A broker was given the run's delivery *at* that time, and is not asked again for ten minutes."""
    world.set_entry(
        run_id, status="published", route="redis", publisher="ep_1", published_at=at, next_publish_at=at + 600_000
    )
