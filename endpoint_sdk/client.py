"""Starting runs and following them: `Client` for blocking programs, `AsyncClient` for asyncio.

Both carry out the flows of `client_flows` over the SDK's own transport; neither starts anything at import.
"""

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, overload

from endpoint_sdk import client_flows, config, envelope
from endpoint_sdk._version import __version__
from endpoint_sdk.client_flows import Flow, Pause, Send
from endpoint_sdk.envelope import PayloadCodec
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.handles import AsyncHandle, Handle
from endpoint_sdk.transport import Answer, AsyncTransport, BlockingTransport, TransportError
from endpoint_sdk.wire import limits, messages
from endpoint_sdk.workflow import Workflow

I = TypeVar("I")  # noqa: E741 - the input of a workflow
O = TypeVar("O")  # noqa: E741 - its output
T = TypeVar("T")

_TIMEOUT: Final = timedelta(seconds=30)
_MAX_ANSWER: Final = limits.MAX_BODY * 2


class _Connected:
    """Where a client calls, as whom, and for how long it tries."""

    def __init__(self, url: str | None, api_key: str | None, timeout: timedelta, codec: PayloadCodec | None) -> None:
        environment = config.read()
        self._envelope = envelope.of(codec, "Client(codec=)")
        base = config.url(url, "Client(url=)") or environment.url
        if base is None:
            raise ConfigurationError("a client needs the dispatcher's URL: Client(url=) or POINTSMAN_URL")
        self._base = base
        self._patience = (config.duration(timeout, "Client(timeout=)") or _TIMEOUT).total_seconds()
        self._headers = {"content-type": "application/json", messages.HEADER_SDK: f"python/{__version__}"}
        key = api_key or environment.api_key
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        if environment.namespace is not None:
            self._headers[messages.HEADER_NAMESPACE] = environment.namespace

    def _arguments(self, send: Send) -> dict[str, Any]:
        return {
            "method": send.method,
            "url": self._base + send.path,
            "headers": self._headers,
            "body": send.body,
            "timeout": send.seconds,
            "max_body": _MAX_ANSWER,
        }


class Client(_Connected):
    """A dispatcher, for blocking programs; safe to use from several threads.

    *url* defaults to POINTSMAN_URL, *api_key* to POINTSMAN_API_KEY; *timeout* is how long one call may take, repeats
    after unknown outcomes included. *codec* is that of the executors of its workflows, None if they have none. Raises
    ConfigurationError without a URL.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: timedelta = _TIMEOUT,
        codec: PayloadCodec | None = None,
    ) -> None:
        super().__init__(url, api_key, timeout, codec)
        self._transport = BlockingTransport()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Every connection is closed."""
        self._transport.close()

    @overload
    def start(
        self,
        workflow: Workflow[None, O],
        /,
        *,
        idempotency_key: str | None = None,
        delay: timedelta | datetime | None = None,
        priority: int = 5,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> Handle[O]: ...
    @overload
    def start(
        self,
        workflow: Workflow[I, O],
        input: I,
        /,
        *,
        idempotency_key: str | None = None,
        delay: timedelta | datetime | None = None,
        priority: int = 5,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> Handle[O]: ...
    @overload
    def start(
        self,
        workflow: str,
        input: object = ...,
        /,
        *,
        version: str | None = None,
        idempotency_key: str | None = None,
        delay: timedelta | datetime | None = None,
        priority: int = 5,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> Handle[Any]: ...
    def start(
        self,
        workflow: Workflow[Any, Any] | str,
        value: object = None,
        /,
        *,
        version: str | None = None,
        idempotency_key: str | None = None,
        delay: timedelta | datetime | None = None,
        priority: int = 5,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> Handle[Any]:
        """The handle of a stored run; with an *idempotency_key* in use, of the run that has it.

        *priority* 0 to 9, 9 first; *tags* at most 20. A reply that is lost makes no second run. Raises Conflict
        `idempotency_conflict` when the key names a run with another input, PayloadError, PointsmanError.
        """
        flow = client_flows.start(
            workflow,
            value,
            version=version,
            idempotency_key=idempotency_key,
            delay=delay,
            priority=priority,
            pool=pool,
            tags=tags,
            patience=self._patience,
            envelope=self._envelope,
        )
        run_id, created = self._drive(flow)
        return Handle(self._drive, run_id, created, _typed(workflow), self._patience, self._envelope)

    @overload
    def get(self, run_id: str, /) -> Handle[Any]: ...
    @overload
    def get(self, workflow: Workflow[Any, O], /, *, run_id: str) -> Handle[O]: ...
    @overload
    def get(self, workflow: Workflow[Any, O], /, *, idempotency_key: str) -> Handle[O]: ...
    def get(
        self,
        workflow: Workflow[Any, Any] | str,
        /,
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Handle[Any]:
        """The handle of a run that exists; raises PointsmanError `run_not_found` for a key that names none."""
        if isinstance(workflow, str):
            return Handle(self._drive, workflow, False, None, self._patience, self._envelope)
        if run_id is None:
            run_id = self._drive(client_flows.find(workflow.name, _key(idempotency_key), self._patience))
        return Handle(self._drive, run_id, False, workflow, self._patience, self._envelope)

    def _drive(self, flow: Flow[T]) -> T:
        answer: Answer | None = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            answer = None
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                answer = self._send(step)

    def _send(self, step: Send) -> Answer | None:
        try:
            return self._transport.request(**self._arguments(step))
        except TransportError:
            return None


class AsyncClient(_Connected):
    """A dispatcher, for asyncio programs; use it on one event loop. Arguments as `Client`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: timedelta = _TIMEOUT,
        codec: PayloadCodec | None = None,
    ) -> None:
        super().__init__(url, api_key, timeout, codec)
        self._transport = AsyncTransport()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Every connection is closed."""
        await self._transport.close()

    @overload
    async def start(
        self,
        workflow: Workflow[None, O],
        /,
        *,
        idempotency_key: str | None = None,
        delay: timedelta | datetime | None = None,
        priority: int = 5,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> AsyncHandle[O]: ...
    @overload
    async def start(
        self,
        workflow: Workflow[I, O],
        input: I,
        /,
        *,
        idempotency_key: str | None = None,
        delay: timedelta | datetime | None = None,
        priority: int = 5,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> AsyncHandle[O]: ...
    @overload
    async def start(
        self,
        workflow: str,
        input: object = ...,
        /,
        *,
        version: str | None = None,
        idempotency_key: str | None = None,
        delay: timedelta | datetime | None = None,
        priority: int = 5,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> AsyncHandle[Any]: ...
    async def start(
        self,
        workflow: Workflow[Any, Any] | str,
        value: object = None,
        /,
        *,
        version: str | None = None,
        idempotency_key: str | None = None,
        delay: timedelta | datetime | None = None,
        priority: int = 5,
        pool: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> AsyncHandle[Any]:
        """As `Client.start`."""
        flow = client_flows.start(
            workflow,
            value,
            version=version,
            idempotency_key=idempotency_key,
            delay=delay,
            priority=priority,
            pool=pool,
            tags=tags,
            patience=self._patience,
            envelope=self._envelope,
        )
        run_id, created = await self._drive(flow)
        return AsyncHandle(self._drive, run_id, created, _typed(workflow), self._patience, self._envelope)

    @overload
    async def get(self, run_id: str, /) -> AsyncHandle[Any]: ...
    @overload
    async def get(self, workflow: Workflow[Any, O], /, *, run_id: str) -> AsyncHandle[O]: ...
    @overload
    async def get(self, workflow: Workflow[Any, O], /, *, idempotency_key: str) -> AsyncHandle[O]: ...
    async def get(
        self,
        workflow: Workflow[Any, Any] | str,
        /,
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncHandle[Any]:
        """As `Client.get`."""
        if isinstance(workflow, str):
            return AsyncHandle(self._drive, workflow, False, None, self._patience, self._envelope)
        if run_id is None:
            run_id = await self._drive(client_flows.find(workflow.name, _key(idempotency_key), self._patience))
        return AsyncHandle(self._drive, run_id, False, workflow, self._patience, self._envelope)

    async def _drive(self, flow: Flow[T]) -> T:
        answer: Answer | None = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            answer = None
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            else:
                answer = await self._send(step)

    async def _send(self, step: Send) -> Answer | None:
        try:
            return await self._transport.request(**self._arguments(step))
        except TransportError:
            return None


def _typed(workflow: Workflow[Any, Any] | str) -> Workflow[Any, Any] | None:
    return None if isinstance(workflow, str) else workflow


def _key(idempotency_key: str | None) -> str:
    if idempotency_key is None:
        raise ConfigurationError("get() needs run_id= or idempotency_key=")
    return idempotency_key
