"""The handler of a run: made for its workflow, and what its return means for the run."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from endpoint_sdk import failures
from endpoint_sdk.async_handler import AsyncHandler
from endpoint_sdk.bodies import Returned
from endpoint_sdk.errors import ConfigurationError, NonRetryableError, PayloadError
from endpoint_sdk.port import Completed, Failed
from endpoint_sdk.run import Run, info_of
from endpoint_sdk.sync_run import SyncRun
from endpoint_sdk.thread_handler import ThreadHandler
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import Workflow

if TYPE_CHECKING:
    from endpoint_sdk.replay import Engine

Handler = AsyncHandler | ThreadHandler


def make(
    workflow: Workflow[Any, Any], grant: messages.Grant, engine: "Engine", done: Callable[[Returned], None]
) -> Handler:
    """A handler of the granted run that is still to be started; raises PayloadError for an input that does not fit."""
    value = workflow.decode_input(grant.run.input)
    arguments = (value,) if workflow.takes_input else ()
    info = info_of(grant)
    if workflow.is_async:
        run = Run(info, engine)
        return AsyncHandler(lambda: workflow.fn(run, *arguments), done)
    handler = ThreadHandler(lambda: workflow.fn(sync_run, *arguments), done, engine.moved)
    sync_run = SyncRun(info, engine, handler)
    return handler


def result(workflow: Workflow[Any, Any], returned: Returned) -> Completed | Failed:
    """How the run ends by what its handler gave back."""
    if returned.error is not None:
        final = isinstance(returned.error, NonRetryableError | ConfigurationError | PayloadError)
        return Failed(failures.describe(returned.error, retryable=not final))
    try:
        return Completed(msgspec.Raw(workflow.encode_result(returned.value)))
    except PayloadError as error:
        return Failed(failures.describe(error))
