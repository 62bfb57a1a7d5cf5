"""Everything the SDK raises to its user, and the signals it keeps to itself.

PointsmanError
├── ConfigurationError        the program is wrong; raised before any side effect
├── PayloadError              a value cannot be recorded as JSON, or is too large
├── NonRetryableError         raised by a task: no further attempt
├── RetryAfterError           raised by a task: the next attempt no earlier than
├── TaskFailed                a task used up its attempts
├── OutcomeUnknown            an at-most-once task was started and never recorded
├── WaitTimeout               a wait for an event ended without one
├── EventInvalid              an event's value is not what its annotation says
├── ChildFailed               a child ended `failed` or `cancelled`
├── CancelRequested           somebody asked for the run to be cancelled: undo what must be undone
├── RunFailed                 the run ended `failed`
├── RunCancelled              the run ended `cancelled`
└── Conflict                  the dispatcher refused a call in the state things are in
RecordRefused (Exception)     internal: the dispatcher definitely refused a record
HandlerStopped (BaseException)  internal: raised at the blocking call of a suspended `def` workflow, and by its restart
"""

import math
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

LONGEST_DELAY: Final = timedelta(days=3660)


class PointsmanError(Exception):
    """Base of what this package raises; `code` is stable, for machines, the text is for people."""

    default_code: ClassVar[str] = "error"

    def __init__(self, message: str = "", /, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code: str = code or self.default_code


class ConfigurationError(PointsmanError):
    """The program or its settings are wrong; nothing was started."""

    default_code = "configuration"


class PayloadError(PointsmanError, ValueError):
    """A value cannot travel: not JSON (`not_recordable`), not what its annotation says (`invalid_payload`), over
    1 MiB (`payload_too_large`), or nothing the codec can read (`undecodable`)."""

    default_code = "not_recordable"


class NonRetryableError(PointsmanError):
    """Raised by a task that must not be tried again; *details* is JSON and reaches `TaskFailed.details`."""

    default_code = "non_retryable"

    def __init__(self, message: str = "", /, *, details: object = None) -> None:
        super().__init__(message)
        self.details = details


class RetryAfterError(PointsmanError):
    """Raised by a task that knows when trying again makes sense; the attempts allowed stay the limit.

    *after* is a timedelta, a number of seconds, or an aware datetime; the past and negative mean at once, and no wait
    is longer than ten years.
    """

    default_code = "retry_after"
    # For subclasses that do not call __init__: at once.
    after: timedelta | datetime = timedelta(0)

    def __init__(self, after: timedelta | float | datetime, message: str = "", /) -> None:
        super().__init__(message)
        self.after = _moment(after)

    def delay(self, now: datetime) -> timedelta:
        """The wait from *now*, never negative."""
        wait = self.after - now if isinstance(self.after, datetime) else self.after
        return min(max(wait, timedelta(0)), LONGEST_DELAY)


def _moment(after: timedelta | float | datetime) -> timedelta | datetime:
    if isinstance(after, datetime):
        # A task computing local times raises this mid-failure: reading them as UTC beats hiding the failure.
        return after if after.tzinfo is not None else after.replace(tzinfo=UTC)
    if isinstance(after, timedelta):
        return after
    if math.isnan(after):
        return timedelta(0)
    return timedelta(seconds=min(max(after, 0.0), LONGEST_DELAY.total_seconds()))


class TaskFailed(PointsmanError):
    """A task failed for good; alike on the first run and on replay.

    `error_type` is the qualified name of the exception's class, or a code of the dispatcher (`payload_too_large`).
    The original exception is the `__cause__` where the task ran, and nowhere else.
    """

    default_code = "task_failed"

    def __init__(self, task: str, attempt: int, error_type: str, message: str, details: object = None) -> None:
        super().__init__(f"task {task!r} failed at attempt {attempt}: {error_type}: {message}")
        self.task = task
        self.attempt = attempt
        self.error_type = error_type
        self.message = message
        self.details = details

    def is_(self, error: type[BaseException], /) -> bool:
        """Whether the task raised *error* or a subclass of it that this process has loaded."""
        return self.error_type in _names(error)


def _names(error: type[BaseException]) -> set[str]:
    # By identity: two classes may share a name, and a metaclass may make them unhashable.
    known, pending = {id(error): error.__qualname__}, [error]
    while pending:
        for subclass in type.__subclasses__(pending.pop()):
            if id(subclass) not in known:
                known[id(subclass)] = subclass.__qualname__
                pending.append(subclass)
    return set(known.values())


class OutcomeUnknown(PointsmanError):
    """An at-most-once task was started, and whether it took effect was never recorded; it will not run again.

    Ask the other side with `idempotency_key`, which the task saw as `task_context().idempotency_key`.
    """

    default_code = "outcome_unknown"

    def __init__(self, task: str, idempotency_key: str) -> None:
        super().__init__(
            f"task {task!r} was started and its outcome never recorded; ask the provider with the idempotency key "
            f"{idempotency_key}"
        )
        self.task = task
        self.idempotency_key = idempotency_key


class WaitTimeout(PointsmanError, TimeoutError):
    """No event came before the wait's timeout, or an operator ended the wait early."""

    default_code = "wait_timeout"


class EventInvalid(PointsmanError):
    """The value of `event` is not what its annotation says; the event is used up."""

    default_code = "event_invalid"

    def __init__(self, event: str, message: str = "") -> None:
        super().__init__(message or f"event {event!r} has a value it cannot have")
        self.event = event


class CancelRequested(PointsmanError):
    """Raised in a workflow, once, at its first call without a record after a graceful cancel was asked for.

    Every replay raises it at the same call. Calls made afterwards run as ever. A handler that raises it, or lets it
    pass, ends the run `cancelled`; one that returns completes it. `reason` is what was given with the request.
    """

    default_code = "cancel_requested"

    def __init__(self, reason: str = "") -> None:
        super().__init__("the run is to be cancelled" + (f": {reason}" if reason else ""))
        self.reason = reason


class ChildFailed(PointsmanError):
    """The child `run_id` ended without a result; alike on the first run and on replay.

    Of one that failed, `error_type`, `message` and `details` are those of its error; of a cancelled one `error_type` is
    "cancelled".
    """

    default_code = "child_failed"

    def __init__(self, run_id: str, error_type: str, message: str = "", details: object = None) -> None:
        super().__init__(f"child {run_id} failed: {error_type}: {message}")
        self.run_id = run_id
        self.error_type = error_type
        self.message = message
        self.details = details


class RunFailed(PointsmanError):
    """The run ended `failed`; `error_type`, `message` and `details` are those of its error."""

    default_code = "run_failed"

    def __init__(self, run_id: str, error_type: str, message: str = "", details: object = None) -> None:
        super().__init__(f"run {run_id} failed: {error_type}: {message}")
        self.run_id = run_id
        self.error_type = error_type
        self.message = message
        self.details = details


class RunCancelled(PointsmanError):
    """The run ended `cancelled`."""

    default_code = "cancelled"

    def __init__(self, run_id: str, reason: str = "") -> None:
        super().__init__(f"run {run_id} was cancelled" + (f": {reason}" if reason else ""))
        self.run_id = run_id
        self.reason = reason


class Conflict(PointsmanError):
    """The dispatcher refused a call because of the state things are in; `code` says which refusal."""

    default_code = "conflict"

    def __init__(self, message: str = "", /, *, code: str | None = None, details: dict[str, Any] | None = None) -> None:
        super().__init__(message, code=code)
        self.details = details


class RecordRefused(Exception):
    """Internal: the dispatcher definitely refused a record (400, 403, 413 or 422 with a code of ours)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class HandlerStopped(BaseException):
    """Internal: unwinds a suspended `def` workflow; what the handler does with it is ignored."""
