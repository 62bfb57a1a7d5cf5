"""Calls that wait: for a moment, or for an event.

A wait is asked for by kind and name alone: its duration may change between two deploys, and the deadline that was set
when it was first asked for stands.
"""

from abc import abstractmethod
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from endpoint_sdk.addresses import Address
from endpoint_sdk.errors import ConfigurationError, EventInvalid, PayloadError, PointsmanError, WaitTimeout
from endpoint_sdk.events import Event
from endpoint_sdk.pending_call import Call, Outcome
from endpoint_sdk.tasks import checked_name
from endpoint_sdk.wire import clock, messages

NO_DEFAULT: Final = object()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class WaitCall(Call):
    """A wait; `relative` says that its deadline counts from the asking."""

    relative: bool

    @abstractmethod
    def deadline(self, now: int) -> int | None:
        """When the wait is over by itself if it is asked for at *now*, in epoch milliseconds; None for never."""

    def _deadline_on_the_wire(self) -> str | None:
        return None if self.due_ms is None else clock.to_wire(self.due_ms)


class SleepCall(WaitCall):
    """Until *until*, a moment or a time from now; negative means at once."""

    def __init__(self, name: str, until: timedelta | datetime) -> None:
        super().__init__(Address("sleep", checked_name(name, "sleep"), ""), None)
        self.relative = isinstance(until, timedelta)
        self._until = until
        if not isinstance(until, timedelta | datetime):
            raise ConfigurationError(f"sleep {name!r} needs a timedelta or a datetime: {until!r}")
        if isinstance(until, datetime) and until.tzinfo is None:
            raise ConfigurationError(f"sleep {name!r} needs a datetime with a time zone")

    def deadline(self, now: int) -> int:
        """The moment, or that long after *now*."""
        if isinstance(self._until, datetime):
            return _whole_ms(self._until - _EPOCH)
        return now + _whole_ms(self._until)

    def read(self, record: messages.Record, run_id: str) -> Outcome:
        """None, however the sleep ended."""
        del run_id
        return Outcome(None, refused(record), clock.known_ms(record.finished_at))

    def wait(self) -> messages.WaitFor:
        """Its moment."""
        return messages.WaitFor("sleep", self.address.name, self.key.ordinal, "", self._deadline_on_the_wire())


class EventCall(WaitCall):
    """The next event of *event*'s name; *default* is what a timeout gives back instead of raising."""

    relative = True

    def __init__(self, event: Event[Any] | str, timeout: timedelta | None, default: object = NO_DEFAULT) -> None:
        self._event = event if isinstance(event, Event) else Event(event)
        super().__init__(Address("event", self._event.name, ""), None)
        if not isinstance(timeout, timedelta | None):
            raise ConfigurationError(f"event {self._event.name!r}: timeout= is a timedelta: {timeout!r}")
        self._timeout = timeout
        self._default = default

    def deadline(self, now: int) -> int | None:
        """*timeout* after *now*."""
        return None if self._timeout is None else now + _whole_ms(self._timeout)

    def read(self, record: messages.Record, run_id: str) -> Outcome:
        """The event's value, EventInvalid when it is not what the event says, or what a timeout makes of it."""
        del run_id
        finished_ms = clock.known_ms(record.finished_at)
        if record.error is not None and record.error.type == WaitTimeout.__qualname__:
            if self._default is not NO_DEFAULT:
                return Outcome(self._default, None, finished_ms)
            return Outcome(None, WaitTimeout(f"no event {self._event.name!r} came in time"), finished_ms)
        if (error := refused(record)) is not None:
            return Outcome(None, error, finished_ms)
        try:
            value = self._event.decode(b"null" if not record.value else record.value)
        except PayloadError as error:
            return Outcome(None, EventInvalid(self._event.name, str(error)), finished_ms)
        return Outcome(value, None, finished_ms)

    def wait(self) -> messages.WaitFor:
        """The event, up to its deadline."""
        return messages.WaitFor("event", self.address.name, self.key.ordinal, "", self._deadline_on_the_wire())


def refused(record: messages.Record | messages.RecordIn) -> PointsmanError | None:
    """The error of a wait whose record the dispatcher would not take."""
    return None if record.error is None else PointsmanError(record.error.message, code=record.error.type)


def _whole_ms(duration: timedelta) -> int:
    """Milliseconds, rounded up: no wait is over early."""
    whole, rest = divmod(duration, _MILLISECOND)
    return whole + bool(rest)
