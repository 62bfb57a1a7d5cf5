"""`pointsman serve` and `pointsman migrate`."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dispatcher.cli import config as configuration
from dispatcher.cli import output
from dispatcher.cli.config import ConfigFile, DatabaseUrl, Listen, LogLevel, PublicUrl
from dispatcher.cli.output import Format, Output

if TYPE_CHECKING:
    from dispatcher.app import Dispatcher
    from dispatcher.cli.live import LiveConfiguration
    from dispatcher.errors import Refusal, StartUpError
    from dispatcher.settings import Settings

_GRACE_SECONDS = 5


def serve(
    config: ConfigFile = None,
    listen: Listen = None,
    database: DatabaseUrl = None,
    public_url: PublicUrl = None,
    log_level: LogLevel = None,
) -> None:
    """Run the dispatcher until SIGTERM or SIGINT; SIGHUP reads the configuration again. Logs go to stderr as JSON."""
    given = configuration.flags(listen, database, public_url, log_level)
    settings = configuration.load(config, given, Format.TABLE).settings

    from dispatcher import errors, telemetry
    from dispatcher.cli.live import LiveConfiguration

    telemetry.configure(settings.log_level)
    try:
        _run(settings, LiveConfiguration(config, given))
    except (errors.StartUpError, errors.Refusal) as error:
        _refuse(error, Format.TABLE)


def migrate(
    config: ConfigFile = None,
    database: DatabaseUrl = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit code 1 unless the schema fits.")] = False,
    o: Output = Format.TABLE,
) -> None:
    """Bring the database's schema to this version."""
    settings = configuration.load(config, configuration.flags(database=database), o).settings

    from dispatcher import errors
    from dispatcher.store import Store, migrating

    try:
        store = Store.open(settings.database.url)
        try:
            if not check:
                store.migrate()
            store.check_schema()
            version = migrating.current(store)
        finally:
            store.close()
    except (errors.StartUpError, errors.Refusal) as error:
        _refuse(error, o)
    if o is Format.TABLE:
        output.say(f"ok: the schema is at version {version}")
    else:
        print(f'{{"version":{version}}}')


def _refuse(error: "StartUpError | Refusal", shown: Format) -> NoReturn:
    from dispatcher import errors

    code = output.UNREACHABLE if isinstance(error, errors.Unavailable) else output.FAILED
    output.fail(code, {"code": error.code, "message": error.message, "hint": error.hint}, shown)


def _run(settings: "Settings", live: "LiveConfiguration") -> None:
    import uvloop

    from dispatcher import app

    with contextlib.closing(_bind(settings)) as bound:
        dispatcher = app.build(settings, url=_url(settings, bound))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(dispatcher, bound, live))


def _bind(settings: "Settings") -> socket.socket:
    from dispatcher import errors

    host, port = settings.server.address
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise errors.StartUpError(
            "listen_refused",
            f"{settings.server.listen} cannot be listened on: {error.strerror or error}.",
            hint="Name another address with --listen.",
        ) from None
    return bound


def _url(settings: "Settings", bound: socket.socket) -> str:
    host = settings.server.listen.rpartition(":")[0]
    port = bound.getsockname()[1]
    return settings.server.model_copy(update={"listen": f"{host}:{port}"}).url


async def _serve(dispatcher: "Dispatcher", bound: socket.socket, live: "LiveConfiguration") -> None:
    import uvicorn

    from dispatcher import app

    class Server(uvicorn.Server):
        """Ends on a signal with exit code 0, where uvicorn would raise the signal again."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            logging.getLogger(__name__).info("listening", extra={"url": dispatcher.url, "pid": os.getpid()})

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            dispatcher.polling.stop()  # or it would wait for the longest poll
            await super().shutdown(sockets)

    server = Server(
        uvicorn.Config(
            app.asgi(dispatcher),
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    loop.add_signal_handler(signal.SIGHUP, live.ask)
    try:
        await dispatcher.start()
        reloads = asyncio.create_task(live.follow(dispatcher), name="reload")
        await server.serve(sockets=[bound])
        reloads.cancel()
    finally:
        await dispatcher.stop()
