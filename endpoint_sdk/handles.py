"""Handles: a started run, to wait for, look at, cancel or send events to."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from endpoint_sdk import client_flows, codec
from endpoint_sdk.client_flows import Flow, RunState
from endpoint_sdk.envelope import PLAIN, Envelope
from endpoint_sdk.events import Event
from endpoint_sdk.workflow import Workflow

T = TypeVar("T")
O_co = TypeVar("O_co", covariant=True)


class Drive(Protocol):
    """How a blocking client carries out a flow."""

    def __call__(self, flow: Flow[T], /) -> T: ...


class AsyncDrive(Protocol):
    """How an asynchronous client carries out a flow."""

    async def __call__(self, flow: Flow[T], /) -> T: ...


class _Named:
    """The run a handle is of; `patience` is how many seconds an unknown outcome is tried again."""

    def __init__(
        self, run_id: str, created: bool, workflow: Workflow[Any, Any] | None, patience: float, envelope: Envelope
    ) -> None:
        self._id = run_id
        self._created = created
        self._decode: Callable[[bytes], Any] = codec.from_json if workflow is None else workflow.decode_result
        self._patience = patience
        self._envelope = envelope

    @property
    def id(self) -> str:
        """The run's id."""
        return self._id

    @property
    def created(self) -> bool:
        """Whether the call that returned this handle made the run; false when it existed."""
        return self._created


class Handle(_Named, Generic[O_co]):
    """A run, seen from a blocking program; made by `Client.start` and `Client.get`."""

    def __init__(
        self,
        drive: Drive,
        run_id: str,
        created: bool,
        workflow: Workflow[Any, O_co] | None,
        patience: float,
        envelope: Envelope = PLAIN,
    ) -> None:
        super().__init__(run_id, created, workflow, patience, envelope)
        self._drive = drive

    def result(self, *, timeout: float | timedelta | None = None) -> O_co:
        """What the workflow returned, once the run has completed.

        *timeout* in seconds; None waits for ever. Raises RunFailed, RunCancelled, TimeoutError, or PointsmanError when
        the dispatcher refuses or stays out of reach.
        """
        data = self._drive(client_flows.result(self._id, seconds(timeout), self._patience, self._envelope))
        return cast("O_co", self._decode(data))

    def state(self) -> RunState:
        """Where the run stands now; raises PointsmanError."""
        return self._drive(client_flows.state(self._id, self._patience))

    def cancel(self, reason: str = "", *, now: bool = False) -> None:
        """The run's cancellation is asked for; *now* fences its executor at once.

        Cancelling a cancelled run again changes nothing. Raises Conflict `run_finished`, PointsmanError.
        """
        self._drive(client_flows.cancel(self._id, reason, now, self._patience))

    @overload
    def send(self, event: Event[T], value: T, /, *, event_id: str | None = None) -> None: ...
    @overload
    def send(self, event: str, value: object, /, *, event_id: str | None = None) -> None: ...
    def send(self, event: Event[Any] | str, value: object, /, *, event_id: str | None = None) -> None:
        """The run has the event, for the first wait of that name that has none; stored even before it is waited for.

        An *event_id* the run has seen with this event's name adds nothing. Raises PayloadError for a value JSON cannot
        carry or over 256 KiB, Conflict `run_finished`, PointsmanError.
        """
        self._drive(client_flows.send(self._id, event, value, event_id, self._patience, self._envelope))


class AsyncHandle(_Named, Generic[O_co]):
    """A run, seen from an asynchronous program; made by `AsyncClient.start` and `AsyncClient.get`."""

    def __init__(
        self,
        drive: AsyncDrive,
        run_id: str,
        created: bool,
        workflow: Workflow[Any, O_co] | None,
        patience: float,
        envelope: Envelope = PLAIN,
    ) -> None:
        super().__init__(run_id, created, workflow, patience, envelope)
        self._drive = drive

    async def result(self, *, timeout: float | timedelta | None = None) -> O_co:
        """As `Handle.result`."""
        data = await self._drive(client_flows.result(self._id, seconds(timeout), self._patience, self._envelope))
        return cast("O_co", self._decode(data))

    async def state(self) -> RunState:
        """As `Handle.state`."""
        return await self._drive(client_flows.state(self._id, self._patience))

    async def cancel(self, reason: str = "", *, now: bool = False) -> None:
        """As `Handle.cancel`."""
        await self._drive(client_flows.cancel(self._id, reason, now, self._patience))

    @overload
    async def send(self, event: Event[T], value: T, /, *, event_id: str | None = None) -> None: ...
    @overload
    async def send(self, event: str, value: object, /, *, event_id: str | None = None) -> None: ...
    async def send(self, event: Event[Any] | str, value: object, /, *, event_id: str | None = None) -> None:
        """As `Handle.send`."""
        await self._drive(client_flows.send(self._id, event, value, event_id, self._patience, self._envelope))


def seconds(duration: float | timedelta | None) -> float | None:
    """*duration* in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration
