"""What the tests of schedules share: a world with schedules, and daemons that fire them by hand."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import sqlalchemy as sa

from dispatcher import schedule_owners
from dispatcher.declarations import Declarations
from dispatcher.schedule_firing import Fired, FireSchedules, fire
from dispatcher.schedule_owners import FollowDeclarations
from dispatcher.settings import Settings
from dispatcher.store import Session, runs, schema
from dispatcher.store import schedules as schedule_store
from dispatcher.store.schedules import Key, Row
from dispatcher.store.session import Statement
from endpoint_sdk.wire.messages import Schedule, ServedWorkflow
from tests.integration.world import HOUR_MS, NAMESPACE, World

MINUTE_MS = 60_000


class Clockwork:
    """The schedules of *world*, at some time between two full hours; *versions* are the latest that somebody serves."""

    def __init__(self, world: World, **versions: str) -> None:
        self.world = world
        self.versions = versions or {"report": "1"}
        self.declarations = Declarations(world.store)
        self.daemon = FireSchedules(world.store, world.settings, self._version)
        past = world.now() % HOUR_MS
        if not (20 * MINUTE_MS <= past < 40 * MINUTE_MS and 5_000 <= past % MINUTE_MS < 30_000):
            world.elapse((20 * MINUTE_MS - past) % HOUR_MS + 5_000)  # no occurrence comes while a test prepares
        self.following = FollowDeclarations(world.store, self.declarations, self._version)

    async def _version(self, _namespace: str, workflow: str) -> str | None:
        return self.versions.get(workflow)

    async def describes(self, **described: Mapping[str, Any]) -> None:
        """The configuration file describes these schedules, of the workflow report unless they say otherwise."""
        sections = {name: {"workflow": "report", **given} for name, given in described.items()}
        await schedule_owners.apply_file(self.world.store, Settings.model_validate({"schedules": sections}).schedules)

    async def every_minute(self, **fields: Any) -> int:
        """A schedule named minutely has an occurrence each minute; answers when the first is."""
        await self.describes(minutely={"everyMs": MINUTE_MS, **fields})
        return self.next_at("minutely")

    async def declares(self, version: str = "1", schedule: Schedule | None = None, namespace: str = NAMESPACE) -> None:
        """The code of the workflow report, whose latest version this is, declares *schedule*."""
        self.versions["report"] = version
        await self.declarations.put(namespace, [ServedWorkflow("report", version, schedule=schedule)])
        await self.following.once()

    async def fires(self) -> tuple[int, int]:
        """How many runs a tick started, and how many occurrences it skipped."""
        counts = await self.daemon.once()
        return counts["started"], counts["skipped"]

    def find(self, name: str) -> Row | None:
        return self.world.store.transact_blocking(lambda session: schedule_store.get(session, NAMESPACE, name))

    def row(self, name: str) -> Row:
        found = self.find(name)
        assert found is not None
        return found

    def next_at(self, name: str) -> int:
        found = self.row(name).next_at
        assert found is not None
        return found

    def runs(self, name: str = "minutely") -> list[runs.Row]:
        """The runs the schedule has started, the oldest first."""
        statement = Statement(
            sa.select(*runs.COLUMNS).where(schema.run.c.schedule == name).order_by(schema.run.c.scheduled_for)
        )
        return [runs.Row(*row) for row in self.world.store.transact_blocking(lambda session: session.all(statement))]

    def due(self, session: Session) -> list[Key]:
        """The schedules due now."""
        return schedule_store.due(session, session.now(), 100)

    async def fire(self, key: Key) -> Fired | None:
        """What this dispatcher starts of the schedule that is due."""
        return await self.world.store.transact(partial(fire, key=key, version="1", grace_ms=1_000))

    def set(self, name: str, **values: Any) -> None:
        """The schedule's columns are as given, whoever wrote them."""
        statement = Statement(sa.update(schema.schedule).where(schema.schedule.c.name == name).values(values))
        self.world.store.transact_blocking(lambda session: session.run(statement))

    def until(self, moment: int) -> None:
        """The time is *moment*, some dispatcher having been up all the while."""
        self.world.elapse(moment - self.world.now())
