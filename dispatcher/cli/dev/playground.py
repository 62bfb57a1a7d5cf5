"""The dispatcher of a development session: its settings, its sockets, and its life from start to Ctrl-C."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import uvicorn

from dispatcher import access, app, telemetry
from dispatcher.app import Dispatcher
from dispatcher.cli.client import DEFAULT_URL
from dispatcher.cli.dev import folder, screen
from dispatcher.cli.dev.folder import Folder
from dispatcher.cli.dev.guard import Guard
from dispatcher.cli.dev.session import Session, python_files
from dispatcher.cli.dev.target import Target
from dispatcher.errors import StartUpError
from dispatcher.settings import Daemons, Database, Publishing, Recovery, Server, Settings

_HOST: Final = "127.0.0.1"
_TRIED: Final = 50
# What waits for minutes in production should not make a developer wait.
_DAEMONS: Final = Daemons(
    recover_overdue_outbox_entries=Recovery(
        interval_ms=500, claim_idle_timeout_ms=9_000, claim_refresh_interval_ms=3_000
    ),
    publish_pending_outbox_entries=Publishing(
        base_backoff_ms=500, max_backoff_ms=5_000, declined_backoff_ms=1_000, claim_deadline_ms=5_000
    ),
)


def run(target: Target, port: int, *, fresh: bool) -> None:
    """Plays until SIGINT or SIGTERM. Raises StartUpError when the dispatcher cannot start."""
    import uvloop

    telemetry.configure("warning")
    kept = Folder(Path(folder.NAME))
    with kept.held(fresh=fresh), _bound(port, "the dispatcher") as bound:
        own = bound.getsockname()[1]
        with _bound(own + 1, "the program") as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            settings = Settings(
                server=Server(listen=f"{_HOST}:{own}"), database=Database(url=kept.database_url), daemons=_DAEMONS
            )
            runner.run(_play(app.build(settings), target, kept, bound, listener))


async def _play(
    dispatcher: Dispatcher, target: Target, kept: Folder, bound: socket.socket, listener: socket.socket
) -> None:
    credentials = kept.credentials()
    if not await access.ensure(dispatcher.store, credentials.key, "dev", access.SCOPES):
        raise StartUpError("dev_key_revoked", "The key of the session was revoked.", hint="Start over with --fresh.")
    option = "" if dispatcher.url == DEFAULT_URL else f" --url {dispatcher.url}"
    session = Session(dispatcher, target, credentials, listener, option)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = _server(Guard(app.asgi(dispatcher), credentials.key, bound))
    try:
        await dispatcher.start()
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        screen.welcome(dispatcher.url, str(Path(folder.NAME) / "dev.db"))
        try:
            await _until(stop, session, target)
        finally:
            await session.close()
            server.should_exit = True
            await serving
    finally:
        await dispatcher.stop()


async def _until(stop: asyncio.Event, session: Session, target: Target) -> None:
    """Loads the program, and again with every change of a file, until *stop* is set."""
    import watchfiles

    async def follow() -> None:
        await session.load()
        async for _ in watchfiles.awatch(target.root, watch_filter=python_files(target.root), stop_event=stop):
            await session.load()

    following, stopping = asyncio.create_task(follow()), asyncio.create_task(stop.wait())
    await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if following.done():
        following.result()
    following.cancel()
    stopping.cancel()
    await asyncio.gather(following, stopping, return_exceptions=True)


def _server(guarded: Guard) -> uvicorn.Server:
    class OurServer(uvicorn.Server):
        """Leaves signals to the session, which ends the program first."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        guarded,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return OurServer(config)


@contextlib.contextmanager
def _bound(port: int, who: str) -> Iterator[socket.socket]:
    """A loopback socket on *port* or the next free one after it, which is then said aloud."""
    for number in range(port, min(port + _TRIED, 65_536)):
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((_HOST, number))
            bound.listen(128)
        except OSError:
            bound.close()
            continue
        if number != port:
            screen.say(f"port {port} is taken: {who} listens on {number}")
        with bound:
            yield bound
        return
    raise StartUpError("listen_refused", f"No port from {port} on is free.", hint="Name another one with --port.")
