"""The composition root: settings in, a running dispatcher out. The one place that names a concrete publisher."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from dispatcher import access, broker_clients, endpoint_url, endpoints, reloading, schedule_owners, secrets
from dispatcher.access import Access
from dispatcher.api.server import Api
from dispatcher.api.services import Services
from dispatcher.broker_clients import BrokerClients
from dispatcher.bulk import ApplyActions
from dispatcher.cascade import CancelChildren
from dispatcher.completion import Completion
from dispatcher.delivery import PublishPendingOutboxEntries
from dispatcher.discovery import Discovery
from dispatcher.lanes import OpenPlaces
from dispatcher.loop import Loop
from dispatcher.polling import Polling
from dispatcher.publisher_checks import CheckPublishers
from dispatcher.publisher_pool import Broker, PublisherPool
from dispatcher.readiness import Readiness
from dispatcher.recovery import RecoverOverdueOutboxEntries
from dispatcher.registry import Registry
from dispatcher.schedule_firing import FireSchedules
from dispatcher.schedule_owners import FollowDeclarations
from dispatcher.secrets import ServerKeys
from dispatcher.settings import BrokerPublisher, Settings
from dispatcher.stalling import StallUndeliverableRuns
from dispatcher.store import Store, migrating
from dispatcher.timers import FireTimers
from endpoint_sdk.transport import AsyncTransport
from publishers.base import Target
from publishers.push import PushPublisher
from publishers.redis import RedisPublisher
from publishers.sqs import SqsPublisher

_TICK_MS: Final = 1_000
_FOLLOW_MS: Final = 5_000

log = logging.getLogger(__name__)


class Dispatcher:
    """Everything one dispatcher process is made of, wired together; `start` and `stop` it inside an event loop."""

    def __init__(self, settings: Settings, store: Store, keys: ServerKeys, url: str) -> None:
        self.settings = settings
        self.store = store
        self.keys = keys
        self._own_url = url
        self.transport = AsyncTransport()
        self.publishers = PublisherPool(self.endpoint, broker, settings.broker_publishers)
        self.registry = Registry(store, keys, settings.publishers)
        self.discovery = Discovery(store, self.registry, self.transport, lambda: self.url)
        self.relay = PublishPendingOutboxEntries(
            store,
            keys,
            self.registry,
            publishing=settings.publishing,
            stalling=settings.stalling,
            routes=settings.routes,
            publisher_for=self.publishers.publisher,
            public_url=lambda: self.url,
        )
        self.checks = CheckPublishers(store, self.registry, self.publishers.check, self.publishers.sweep)
        self.recovery = RecoverOverdueOutboxEntries(store, settings.recovery, settings.publishing, settings.stalling)
        self.stalling = StallUndeliverableRuns(store, settings.stalling)
        self.timers = FireTimers(store, settings.runs)
        self.polling = Polling(
            store, keys, self.registry.pollers, settings.recovery, settings.publishing, self.registry.declarations
        )
        self.lanes = OpenPlaces(store)
        self.actions = ApplyActions(store, settings)
        self.cascade = CancelChildren(store, settings)
        self.schedules = FireSchedules(store, settings, self.registry.default_version)
        self.following = FollowDeclarations(store, self.registry.declarations, self.registry.default_version)
        self.loops = self._loops()
        self.services = Services(
            settings=settings,
            store=store,
            keys=keys,
            access=Access(store),
            registry=self.registry,
            discovery=self.discovery,
            completion=Completion(store),
            polling=self.polling,
            readiness=Readiness(store, list(self.loops.values())),
        )

    @property
    def url(self) -> str:
        """What deliveries carry: `publicUrl`, else this process's own address."""
        return self.settings.server.public_url or self._own_url

    def endpoint(self, target: Target) -> PushPublisher:
        """A publisher to an endpoint, over the connections all of them share."""
        return PushPublisher(target, self.transport)

    async def start(self) -> None:
        """Keys and the file's publishers are in the store, and every daemon runs; nobody else has to be reachable.

        Raises StartUpError.
        """
        admin_key = self.settings.admin_key
        await access.ensure_admin(self.store, admin_key.get_secret_value() if admin_key else None)
        await self._apply(self.settings)
        await self.registry.targets()
        self._warn_about_url()
        for loop in self.loops.values():
            loop.start()

    async def reload(self, settings: Settings) -> None:
        """*settings* hold, all but what needs a restart, which is logged; what is under way goes on.

        Raises StartUpError or Unavailable with nothing changed.
        """
        before, settings = self.settings, reloading.effective(self.settings, settings)
        await self._apply(settings)
        self.settings = self.services.settings = settings
        self.publishers.reload(settings.broker_publishers)
        self.registry.reload(settings.publishers)
        for daemon in (
            self.relay,
            self.recovery,
            self.stalling,
            self.polling,
            self.timers,
            self.cascade,
            self.schedules,
            self.actions,
        ):
            daemon.reload(settings)
        for name, interval_ms in _intervals(settings).items():
            self.loops[name].every(interval_ms)
        for loop in self.loops.values():
            loop.wake()
        self._warn_about_url()
        log.info("configuration reloaded", extra={"changed": reloading.changed(before, settings)})

    async def stop(self) -> None:
        """No daemon runs, no push is under way, no connection is open; claims stay with their executors."""
        self.polling.stop()
        for loop in self.loops.values():
            await loop.stop()
        await self.relay.stop()
        await self.publishers.close()
        await self.transport.close()
        await asyncio.to_thread(self.store.close)

    async def _apply(self, settings: Settings) -> None:
        if missing := broker_clients.missing_extra(settings.broker_publishers):
            raise missing
        await endpoints.apply_file(self.store, self.keys, settings.publishers)
        await schedule_owners.apply_file(self.store, settings.schedules)

    def _loops(self) -> dict[str, Loop]:
        daemons = (
            self.relay,
            self.recovery,
            self.stalling,
            self.discovery,
            self.checks,
            self.polling,
            self.timers,
            self.cascade,
            self.schedules,
            self.following,
            self.lanes,
            self.actions,
        )
        intervals = _intervals(self.settings)
        loops = {daemon.name: Loop(daemon, intervals.get(daemon.name, _TICK_MS)) for daemon in daemons}
        relay = loops[self.relay.name]
        self.store.listen("queued", relay.wake)
        self.relay.on_room = relay.wake
        self.store.listen("action", loops[self.actions.name].wake)
        self.store.listen("cascade", loops[self.cascade.name].wake)
        timers = loops[self.timers.name]
        self.store.listen("timed", lambda wake_at: timers.wake() if self.timers.hears(wake_at) else None)
        firing = loops[self.schedules.name]
        self.store.listen("schedule", lambda wake_at: firing.wake() if self.schedules.hears(wake_at) else None)
        self.store.listen("declared", loops[self.following.name].wake)
        self.store.listen("lane", self.lanes.hears)
        self.store.listen("lane", loops[self.lanes.name].wake)
        return loops

    def _warn_about_url(self) -> None:
        remote = [
            name
            for name, item in self.settings.publishers.items()
            if not endpoint_url.is_loopback(endpoints.url_of(item))
        ]
        if remote and self.settings.server.public_url is None:
            log.warning(
                "server.publicUrl is not set, so executors behind these publishers are told an address they may not "
                "reach",
                extra={"publishers": remote, "url": self.url},
            )


def broker(target: Target, described: BrokerPublisher, clients: BrokerClients) -> Broker:
    """A publisher to the broker *described*, over the client all publishers to the same place share."""
    if described.type == "sqs":
        return SqsPublisher(target, clients.sqs(described.region_name, described.service_url))
    return RedisPublisher(target, clients.redis(described.url))


def _intervals(settings: Settings) -> dict[str, int]:
    return {
        PublishPendingOutboxEntries.name: settings.publishing.interval_ms,
        RecoverOverdueOutboxEntries.name: settings.recovery.interval_ms,
        StallUndeliverableRuns.name: settings.stalling.interval_ms,
        FollowDeclarations.name: _FOLLOW_MS,
    }


def build(settings: Settings, *, url: str | None = None) -> Dispatcher:
    """A dispatcher ready to start. *url* is what deliveries carry unless `publicUrl` is set.

    A database without a schema, and any SQLite file, is migrated. Raises StartUpError.
    """
    store = open_store(settings.database.url)
    try:
        secret_key = settings.secret_key
        keys = secrets.open_keys(settings.database.url, secret_key.get_secret_value() if secret_key else None)
        return Dispatcher(settings, store, keys, url or settings.server.own_url)
    except BaseException:
        store.close()
        raise


def asgi(dispatcher: Dispatcher) -> ASGIApp:
    """The ASGI application of *dispatcher*; its lifespan starts and stops it."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await dispatcher.start()
        try:
            yield
        finally:
            await dispatcher.stop()

    api, rest = Api(dispatcher.services), Starlette(lifespan=lifespan)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        # Executor calls are hot: Starlette's layers around a handler cost more than the handler.
        await (api if scope["type"] == "http" else rest)(scope, receive, send)

    return application


def create_app(settings: Settings, *, url: str | None = None) -> ASGIApp:
    """As `build` and `asgi`: the whole dispatcher as one ASGI application."""
    return asgi(build(settings, url=url))


def open_store(url: str) -> Store:
    """The store at *url*, its schema good for this code. Raises StartUpError."""
    store = Store.open(url)
    try:
        if store.dialect == "sqlite" or migrating.current(store) == 0:
            store.migrate()
        store.check_schema()
    except BaseException:
        store.close()
        raise
    return store
