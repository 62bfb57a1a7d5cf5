"""A real dispatcher and real endpoints for the time of a test: SQLite in a temporary folder, everything in threads."""

import asyncio
import base64
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from endpoint_sdk import config
from endpoint_sdk.endpoint import Endpoint
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.testing import endpoint_insides
from endpoint_sdk.transport import BlockingTransport
from endpoint_sdk.wire import messages, operating

if TYPE_CHECKING:
    from endpoint_sdk.client import Client

_PATIENCE: Final = 30.0


@contextmanager
def local_dispatcher(*endpoints: Endpoint) -> "Iterator[Client]":
    """A client of a dispatcher that pushes to *endpoints*; all of it is gone when the block ends.

    The dispatcher is the one `pointsman serve` runs, on a free port of 127.0.0.1, its database in a temporary folder;
    each endpoint is served by uvicorn and calls this dispatcher, whatever its url= says. Time is real. Raises
    ConfigurationError where the server's parts are not installed, or an endpoint cannot be registered.
    """
    _check_installed()
    from endpoint_sdk.client import Client

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-testing-"))
        key = "pmk_" + base64.urlsafe_b64encode(os.urandom(30)).decode()
        dispatcher = stack.enter_context(_serving(lambda url: _dispatcher(folder, key, url)))
        headers = _headers(key)
        for number, endpoint in enumerate(endpoints, start=1):
            stack.enter_context(endpoint_insides.calling(endpoint, dispatcher.url))
            served = stack.enter_context(_serving(partial(_application, endpoint)))
            _register(dispatcher.url, headers, endpoint, served.url, f"endpoint-{number}")
        client = stack.enter_context(Client(dispatcher.url, api_key=key))
        if endpoints:
            endpoint_insides.share_envelope(endpoints[0], client)
        yield client


def _check_installed() -> None:
    try:
        import uvicorn  # noqa: F401

        import dispatcher.app  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f'local_dispatcher needs the server, and {error.name} is not installed: pip install "pointsman[server]"'
        ) from error


def _application(endpoint: Endpoint, _url: str) -> Any:
    return endpoint.asgi


def _dispatcher(folder: str, key: str, url: str) -> Any:
    from dispatcher import app
    from dispatcher.settings import Settings

    settings = Settings.model_validate(
        {"database": {"url": f"sqlite:///{folder}/pointsman.db"}, "admin_key": key, "secret_key": key}
    )
    return app.create_app(settings, url=url)


def _headers(key: str) -> dict[str, str]:
    """As the client will send them, so that both act in one namespace."""
    namespace = config.read().namespace
    named = {} if namespace is None else {messages.HEADER_NAMESPACE: namespace}
    return {"content-type": "application/json", "authorization": f"Bearer {key}", **named}


def _register(url: str, headers: dict[str, str], endpoint: Endpoint, address: str, default_name: str) -> None:
    secret = base64.b64encode(endpoint_insides.signing_key(endpoint)).decode()
    wanted = operating.AddEndpoint(
        name=min(endpoint.names, default=default_name), url=address, secret=f"whsec_{secret}", allow_http=True
    )
    transport = BlockingTransport()
    try:
        answer = transport.request("POST", f"{url}/v1/endpoints", headers, msgspec.json.encode(wanted))
    finally:
        transport.close()
    found = msgspec.json.decode(answer.body)
    if answer.status != 201 or not found["test"]["ok"]:
        raise ConfigurationError(f"the endpoint {wanted.name!r} cannot be registered: {found}")


class _Server(threading.Thread):
    """What *make* makes of its own URL, under uvicorn on a free port."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        super().__init__(name="pointsman-testing", daemon=True)
        import uvicorn

        # Named TCP, or asyncio would not switch Nagle's algorithm off: 40 ms for every answer.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.told = threading.Event()
        told = self.told

        class Server(uvicorn.Server):
            """Says when it listens."""

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                told.set()

        self.server = Server(
            uvicorn.Config(make(self.url), log_config=None, access_log=False, lifespan="on", ws="none", loop="asyncio")
        )

    def run(self) -> None:
        """Serves until it is told to stop."""
        try:
            asyncio.run(self.server.serve(sockets=[self._socket]))
        finally:
            self._socket.close()
            self.told.set()


@contextmanager
def _serving(make: Callable[[str], Any]) -> Iterator[_Server]:
    serving = _Server(make)
    serving.start()
    try:
        serving.told.wait(_PATIENCE)
        if not serving.server.started:
            raise ConfigurationError(f"nothing listens at {serving.url}; the log says why")
        yield serving
    finally:
        serving.server.should_exit = True
        serving.join(_PATIENCE)
