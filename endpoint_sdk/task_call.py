"""Calls of tasks."""

from collections.abc import Callable
from typing import Any

from endpoint_sdk import addresses, failures
from endpoint_sdk.addresses import Address
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.pending_call import Call, Outcome
from endpoint_sdk.tasks import Definition, code_of
from endpoint_sdk.wire import clock, messages


class TaskCall(Call):
    """A call of the task *definition*; raises TypeError or ConfigurationError for arguments it cannot have."""

    def __init__(self, definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        data = definition.arguments(args, kwargs)
        super().__init__(Address("task", definition.name, addresses.args_hash(data)), addresses.preview(data))
        self.definition = definition
        self.args = args
        self.kwargs = kwargs

    def read(self, record: messages.Record, run_id: str) -> Outcome:
        """The task's result, or TaskFailed or OutcomeUnknown; raises PayloadError."""
        finished_ms = clock.known_ms(record.finished_at)
        if record.error is not None:
            return Outcome(None, failures.raised(self.key, record.attempt, record.error, run_id), finished_ms)
        data = b"null" if not record.value else record.value
        value = self.definition.result.decode(data, f"result of {self.definition.place}")
        return Outcome(value, None, finished_ms)

    def wait(self) -> messages.WaitFor:
        """Its next attempt."""
        address = self.address
        deadline = None if self.due_ms is None else clock.to_wire(self.due_ms)
        return messages.WaitFor("retry", address.name, self.key.ordinal, address.args_hash, deadline)


class Functions:
    """The functions behind the task names of one run."""

    def __init__(self) -> None:
        self._known: dict[str, Callable[..., Any]] = {}

    def check(self, call: Call) -> None:
        """Raises ConfigurationError when another function has gone by the name of *call*'s task."""
        if not isinstance(call, TaskCall):
            return
        name, fn = call.definition.name, call.definition.fn
        known = self._known.setdefault(name, fn)
        if known is not fn:
            raise ConfigurationError(
                f"two functions go by the task name {name!r} in one run, {code_of(known)} and {code_of(fn)}; give one "
                "of them another name="
            )
