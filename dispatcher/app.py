"""The composition root: settings in, a running dispatcher out. The one place that names a concrete publisher."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from dispatcher import access, endpoint_url, endpoints, secrets
from dispatcher.access import Access
from dispatcher.api.server import Api
from dispatcher.api.services import Services
from dispatcher.completion import Completion
from dispatcher.delivery import PublishPendingOutboxEntries
from dispatcher.discovery import Discovery
from dispatcher.endpoints import RelayTarget
from dispatcher.loop import Loop
from dispatcher.readiness import Readiness
from dispatcher.recovery import RecoverOverdueOutboxEntries
from dispatcher.registry import Registry
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Settings
from dispatcher.stalling import StallUndeliverableRuns
from dispatcher.store import Store, migrating
from endpoint_sdk.transport import AsyncTransport
from publishers.base import Publisher
from publishers.push import PushPublisher

_DISCOVERY_INTERVAL_MS = 1_000

log = logging.getLogger(__name__)


class Dispatcher:
    """Everything one dispatcher process is made of, wired together; `start` and `stop` it inside an event loop."""

    def __init__(self, settings: Settings, store: Store, keys: ServerKeys, url: str) -> None:
        self.settings = settings
        self.store = store
        self.keys = keys
        self.url = url
        self.transport = AsyncTransport()
        self.registry = Registry(store, keys, list(settings.push_publishers))
        self.discovery = Discovery(store, self.registry, self.transport, url)
        self.relay = PublishPendingOutboxEntries(
            store,
            keys,
            self.registry,
            publishing=settings.publishing,
            stalling=settings.stalling,
            routes=settings.routes,
            publisher_for=self._publisher_for,
            public_url=lambda: url,
        )
        self._publishers: dict[str, tuple[RelayTarget, Publisher]] = {}
        self.loops = self._loops()
        self.services = Services(
            settings=settings,
            store=store,
            keys=keys,
            access=Access(store),
            registry=self.registry,
            discovery=self.discovery,
            completion=Completion(store),
            readiness=Readiness(store, self.loops),
        )

    async def start(self) -> None:
        """Keys and the file's endpoints are in the store, and every daemon runs; no endpoint has to be reachable.

        Raises StartUpError.
        """
        admin_key = self.settings.admin_key
        await access.ensure_admin(self.store, admin_key.get_secret_value() if admin_key else None)
        await endpoints.apply_file(self.store, self.keys, self.settings.push_publishers)
        await self.registry.targets()
        self._warn_about_url()
        for loop in self.loops:
            loop.start()

    async def stop(self) -> None:
        """No daemon runs, no push is under way, no connection is open; claims stay with their executors."""
        for loop in self.loops:
            await loop.stop()
        await self.relay.stop()
        await self.transport.close()
        await asyncio.to_thread(self.store.close)

    def _loops(self) -> list[Loop]:
        settings = self.settings
        relay = Loop(self.relay, settings.publishing.interval_ms)
        self.store.listen("queued", relay.wake)
        self.relay.on_room = relay.wake
        recovery = RecoverOverdueOutboxEntries(self.store, settings.recovery, settings.publishing, settings.stalling)
        stalling = StallUndeliverableRuns(self.store, settings.stalling)
        return [
            relay,
            Loop(recovery, settings.recovery.interval_ms),
            Loop(stalling, settings.stalling.interval_ms),
            Loop(self.discovery, _DISCOVERY_INTERVAL_MS),
        ]

    def _publisher_for(self, target: RelayTarget) -> Publisher:
        known = self._publishers.get(target.endpoint_id)
        if known is None or known[0].target != target.target:
            known = self._publishers[target.endpoint_id] = (target, PushPublisher(target.target, self.transport))
        return known[1]

    def _warn_about_url(self) -> None:
        remote = [
            name for name, item in self.settings.push_publishers.items() if not endpoint_url.is_loopback(item.url)
        ]
        if remote and self.settings.server.public_url is None:
            log.warning(
                "server.publicUrl is not set, so these endpoints are told an address they may not reach",
                extra={"endpoints": remote, "url": self.url},
            )


def build(settings: Settings, *, url: str | None = None) -> Dispatcher:
    """A dispatcher ready to start. *url* is what deliveries carry unless `publicUrl` is set.

    A database without a schema, and any SQLite file, is migrated. Raises StartUpError.
    """
    store = open_store(settings.database.url)
    try:
        secret_key = settings.secret_key
        keys = secrets.open_keys(settings.database.url, secret_key.get_secret_value() if secret_key else None)
        return Dispatcher(settings, store, keys, settings.server.public_url or url or settings.server.url)
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
