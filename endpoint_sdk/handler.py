"""The handler of a run: made for its workflow, and what its return means for the run."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from endpoint_sdk import failures
from endpoint_sdk.async_handler import AsyncHandler
from endpoint_sdk.bodies import Returned
from endpoint_sdk.cancelling import Cancelling
from endpoint_sdk.errors import CancelRequested, ConfigurationError, NonRetryableError, PayloadError
from endpoint_sdk.port import Cancelled, Completed, Decided, Failed, Retried
from endpoint_sdk.run import Run, info_of
from endpoint_sdk.sync_run import SyncRun
from endpoint_sdk.thread_handler import ThreadHandler
from endpoint_sdk.wire import clock, messages
from endpoint_sdk.workflow import Workflow

if TYPE_CHECKING:
    from endpoint_sdk.replay import Engine

Handler = AsyncHandler | ThreadHandler

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


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


class Try(msgspec.Struct, frozen=True):
    """The attempt *run* is at, as it ends at *now*, in epoch milliseconds; *chance* is in [0, 1)."""

    run: messages.GrantedRun
    now: int
    chance: Callable[[], float]
    cancel: Cancelling

    @property
    def elapsed(self) -> timedelta:
        """Since the run was submitted, or since the moment it was scheduled for."""
        return max(self.now - clock.from_wire(self.run.scheduled_for or self.run.created_at), 0) * _MILLISECOND


def result(workflow: Workflow[Any, Any], returned: Returned, attempt: Try) -> Decided:
    """How the run ends by what its handler gave back."""
    if returned.error is not None:
        if attempt.cancel.raised and _is_cancel(returned.error):
            return Cancelled()
        return _failure(workflow, returned.error, attempt)
    try:
        return Completed(msgspec.Raw(workflow.encode_result(returned.value)))
    except PayloadError as error:
        return Failed(failures.describe(error))


def _failure(workflow: Workflow[Any, Any], error: BaseException, attempt: Try) -> Failed | Retried:
    final = isinstance(error, NonRetryableError | ConfigurationError | PayloadError)
    if not (final or attempt.cancel.asked):
        delay = workflow.options.retry.delay(
            attempt.run.attempt,
            error,
            elapsed=attempt.elapsed,
            now=_EPOCH + attempt.now * _MILLISECOND,
            random=attempt.chance,
        )
        if delay is not None:
            return Retried(failures.describe(error, retryable=True), -(-delay // _MILLISECOND))
    return Failed(failures.describe(error, retryable=not final))


def _is_cancel(error: BaseException) -> bool:
    """Whether *error* is the cancel itself, be it from within a TaskGroup."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(CancelRequested)[1] is None
    return isinstance(error, CancelRequested)
