"""Where the current code runs: inside which workflow, inside which attempt of a task."""

import logging
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final

from endpoint_sdk.errors import ConfigurationError

LOGGER: Final = logging.getLogger("endpoint_sdk")
LOGGER.addHandler(logging.NullHandler())


class ContextLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds *extra* to every line; silent while *muted* says so."""

    def __init__(self, name: str, extra: dict[str, object], muted: Callable[[], bool] = lambda: False) -> None:
        super().__init__(LOGGER.getChild(name), extra)
        self._muted = muted

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - overrides logging's name
        """Whether a line of *level* would be written now."""
        return not self._muted() and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """*msg* with the context's fields beside those of the call."""
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


class TaskContext:
    """One attempt of a task, as its body sees it through `task_context()`."""

    def __init__(
        self,
        run_id: str,
        task_id: str,
        attempt: int,
        idempotency_key: str,
        remaining: Callable[[], timedelta | None] = lambda: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._run_id = run_id
        self._task_id = task_id
        self._attempt = attempt
        self._idempotency_key = idempotency_key
        self._remaining = remaining
        self._cancelled = cancelled

    @property
    def run_id(self) -> str:
        """The run the task belongs to."""
        return self._run_id

    @property
    def task_id(self) -> str:
        """The call within its run: name, hash of the arguments and number among equal calls."""
        return self._task_id

    @property
    def attempt(self) -> int:
        """Counted from 1; an attempt that a crash left without a record is not counted."""
        return self._attempt

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of this call, on every executor: pass it to whoever can dedupe by it."""
        return self._idempotency_key

    @property
    def cancelled(self) -> bool:
        """Whether the outcome is no longer wanted: the claim is lost, the time is up or the caller gave up."""
        return self._cancelled()

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logs under `endpoint_sdk.task` with run_id, task_id and attempt."""
        return ContextLogger("task", {"run_id": self.run_id, "task_id": self.task_id, "attempt": self.attempt})

    def remaining(self) -> timedelta | None:
        """Time left to the body, by the host and its own `timeout=`; None when neither sets a limit."""
        return self._remaining()


CURRENT_TASK: Final[ContextVar[TaskContext | None]] = ContextVar("pointsman_task", default=None)
IN_WORKFLOW: Final[ContextVar[bool]] = ContextVar("pointsman_workflow", default=False)
# Hears of a task called directly inside a workflow, and raises; None where a warning is enough.
ON_DIRECT_CALL: Final[ContextVar[Callable[[str], None] | None]] = ContextVar("pointsman_direct_call", default=None)


def task_context() -> TaskContext:
    """The attempt the calling code runs in; raises ConfigurationError outside a task run by a workflow."""
    context = CURRENT_TASK.get()
    if context is None:
        raise ConfigurationError("task_context() works inside a task that a workflow runs, and nowhere else")
    return context
