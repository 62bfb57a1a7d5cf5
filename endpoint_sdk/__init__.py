"""Durable workflows in Python: decorate tasks and workflows, serve them by an Endpoint, start them by a Client.

Importing this package loads msgspec and the standard library only; what talks HTTP is loaded at its first use.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from endpoint_sdk._version import __version__ as __version__
from endpoint_sdk.child import Child, SyncChild
from endpoint_sdk.context import TaskContext, task_context
from endpoint_sdk.endpoint import Endpoint
from endpoint_sdk.envelope import PayloadCodec
from endpoint_sdk.errors import (
    CancelRequested,
    ChildFailed,
    ConfigurationError,
    Conflict,
    EventInvalid,
    NonRetryableError,
    OutcomeUnknown,
    PayloadError,
    PointsmanError,
    RetryAfterError,
    RunCancelled,
    RunFailed,
    TaskFailed,
    WaitTimeout,
)
from endpoint_sdk.events import Event
from endpoint_sdk.options import Concurrency, Cron, Interval
from endpoint_sdk.retry import Retry
from endpoint_sdk.run import Run, RunInfo
from endpoint_sdk.sync_run import SyncRun, TaskFuture
from endpoint_sdk.tasks import AsyncTask, Task, task
from endpoint_sdk.workflow import Workflow, workflow

if TYPE_CHECKING:
    from endpoint_sdk.client import AsyncClient, Client
    from endpoint_sdk.client_flows import RunState
    from endpoint_sdk.handles import AsyncHandle, Handle
    from endpoint_sdk.subscribers.base import Subscriber
    from endpoint_sdk.worker import Worker

__all__ = [
    "AsyncClient",
    "AsyncHandle",
    "AsyncTask",
    "CancelRequested",
    "Child",
    "ChildFailed",
    "Client",
    "Concurrency",
    "ConfigurationError",
    "Conflict",
    "Cron",
    "Endpoint",
    "Event",
    "EventInvalid",
    "Handle",
    "Interval",
    "NonRetryableError",
    "OutcomeUnknown",
    "PayloadCodec",
    "PayloadError",
    "PointsmanError",
    "Retry",
    "RetryAfterError",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunInfo",
    "RunState",
    "Subscriber",
    "SyncChild",
    "SyncRun",
    "Task",
    "TaskContext",
    "TaskFailed",
    "TaskFuture",
    "WaitTimeout",
    "Worker",
    "Workflow",
    "task",
    "task_context",
    "workflow",
]

_LATER: Final = {
    "AsyncClient": "endpoint_sdk.client",
    "AsyncHandle": "endpoint_sdk.handles",
    "Client": "endpoint_sdk.client",
    "Handle": "endpoint_sdk.handles",
    "RunState": "endpoint_sdk.client_flows",
    "Subscriber": "endpoint_sdk.subscribers.base",
    "Worker": "endpoint_sdk.worker",
}


if not TYPE_CHECKING:  # to a type checker every name would be there

    def __getattr__(name: str) -> Any:
        """Loads what talks HTTP at its first use."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_LATER[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names, those not loaded yet included."""
    return sorted({*globals(), *__all__})
