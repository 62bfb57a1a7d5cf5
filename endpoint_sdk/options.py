"""What a workflow declares beside its code: retries, time, schedule, concurrency, and what runs when it has failed."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.retry import Retry
from endpoint_sdk.wire import messages

if TYPE_CHECKING:
    from endpoint_sdk.workflow import Workflow

_MILLISECOND: Final = timedelta(milliseconds=1)
_NO_TIME: Final = timedelta(0)
_LONGEST_JITTER: Final = timedelta(days=1)
_SHORTEST: Final = timedelta(seconds=1)
_LONGEST: Final = timedelta(days=366)
_MOST_MISSED: Final = 100
_MOST_RUNS: Final = 10_000
_FIELDS: Final = 5
_NICKNAMES: Final = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})
_FIELD_CHARACTERS: Final = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ*,-/#")

Overlap = Literal["skip", "allow", "cancel_previous"]
_OVERLAPS: Final = ("skip", "allow", "cancel_previous")


class _Schedule:
    """What both kinds of schedule say."""

    def __init__(self, what: str, timezone: str, overlap: Overlap, catch_up: int, jitter: timedelta) -> None:
        if overlap not in _OVERLAPS:
            raise ConfigurationError(f"{what}: overlap= is one of {', '.join(_OVERLAPS)}: {overlap!r}")
        if not _whole(catch_up, 0, _MOST_MISSED):
            raise ConfigurationError(f"{what}: catch_up= is a whole number from 0 to {_MOST_MISSED}: {catch_up!r}")
        if not isinstance(jitter, timedelta) or not _NO_TIME <= jitter <= _LONGEST_JITTER:
            raise ConfigurationError(f"{what}: jitter= is a timedelta of 0 to 24 hours: {jitter!r}")
        self.timezone: Final = _checked_timezone(timezone, what)
        self.overlap: Final[Overlap] = overlap
        self.catch_up: Final = catch_up
        self.jitter: Final = jitter

    def _on_the_wire(self, cron: str | None, every_ms: int | None) -> messages.Schedule:
        return messages.Schedule(cron, self.timezone, every_ms, self.overlap, self.catch_up, _ms(self.jitter))


class Cron(_Schedule):
    """At the moments of *expression*, five fields or a nickname as in crontab(5), in *timezone*, an IANA name.

    While a run of the schedule is alive the next one is skipped, starts beside it or cancels it, as *overlap* says. Of
    the moments missed while no dispatcher ran, the latest *catch_up* are made up for. Each run starts up to *jitter*
    late. Raises ConfigurationError for what no dispatcher takes.
    """

    def __init__(
        self,
        expression: str,
        *,
        timezone: str = "UTC",
        overlap: Overlap = "skip",
        catch_up: int = 1,
        jitter: timedelta = _NO_TIME,
    ) -> None:
        super().__init__(f"Cron({expression!r})", timezone, overlap, catch_up, jitter)
        self.expression: Final = _checked_expression(expression)

    def on_the_wire(self) -> messages.Schedule:
        """As a dispatcher is told."""
        return self._on_the_wire(self.expression, None)


class Interval(_Schedule):
    """Every *every*, a second to 366 days, counted from 1970-01-01 00:00 UTC; otherwise as Cron."""

    def __init__(
        self,
        every: timedelta,
        *,
        timezone: str = "UTC",
        overlap: Overlap = "skip",
        catch_up: int = 1,
        jitter: timedelta = _NO_TIME,
    ) -> None:
        super().__init__(f"Interval({every!r})", timezone, overlap, catch_up, jitter)
        if not isinstance(every, timedelta) or not _SHORTEST <= every <= _LONGEST:
            raise ConfigurationError(f"Interval needs a timedelta of 1 second to 366 days: {every!r}")
        self.every: Final = every

    def on_the_wire(self) -> messages.Schedule:
        """As a dispatcher is told."""
        return self._on_the_wire(None, _ms(self.every))


class Concurrency:
    """At most *limit* runs, 1 to 10 000, are handed out at once: of those whose tag *key* is alike, if one is named.

    Runs without that tag are alike too. Raises ConfigurationError for other limits and keys.
    """

    def __init__(self, limit: int, *, key: str | None = None) -> None:
        if not _whole(limit, 1, _MOST_RUNS):
            raise ConfigurationError(f"Concurrency needs a limit of 1 to {_MOST_RUNS}: {limit!r}")
        if key is not None and (not isinstance(key, str) or not key):
            raise ConfigurationError(f"Concurrency(key=) is the name of a tag: {key!r}")
        self.limit: Final = limit
        self.key: Final = key

    def on_the_wire(self) -> messages.Concurrency:
        """As a dispatcher is told; raises ConfigurationError for a key that is no tag."""
        try:
            return msgspec.convert({"limit": self.limit, "key": self.key}, messages.Concurrency)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"Concurrency(key={self.key!r}): {error}") from error


class Options(msgspec.Struct, frozen=True):
    """The options of one workflow, checked by `checked`."""

    retry: Retry
    timeout: timedelta | None = None
    schedule: Cron | Interval | None = None
    concurrency: Concurrency | None = None
    on_failure: "Workflow[Any, Any] | None" = None

    def declared(self, name: str, version: str, accepts: tuple[str, ...]) -> messages.ServedWorkflow:
        """The workflow as its executors announce it."""
        failed = self.on_failure
        return messages.ServedWorkflow(
            name,
            version,
            list(accepts),
            concurrency=None if self.concurrency is None else self.concurrency.on_the_wire(),
            schedule=None if self.schedule is None else self.schedule.on_the_wire(),
            on_failure=None if failed is None else messages.WorkflowRef(failed.name, failed.version),
            timeout_ms=None if self.timeout is None else _ms(self.timeout),
        )


def checked(options: Options, where: str) -> Options:
    """*options*, if they make sense; raises ConfigurationError naming *where* they were given."""
    expected: tuple[tuple[str, object, tuple[type, ...], str], ...] = (
        ("retry", options.retry, (Retry,), "a Retry"),
        ("schedule", options.schedule, (Cron, Interval, type(None)), "a Cron or an Interval"),
        ("concurrency", options.concurrency, (Concurrency, type(None)), "a Concurrency"),
    )
    for option, value, types, what in expected:
        if not isinstance(value, types):
            raise ConfigurationError(f"{where}: {option}= is {what}: {value!r}")
    timeout: object = options.timeout
    if timeout is not None and (not isinstance(timeout, timedelta) or timeout < _MILLISECOND):
        raise ConfigurationError(f"{where}: timeout= is a positive timedelta: {timeout!r}")
    if options.on_failure is not None and not hasattr(options.on_failure, "encode_input"):
        raise ConfigurationError(f"{where}: on_failure= is a workflow: {options.on_failure!r}")
    if options.concurrency is not None:
        options.concurrency.on_the_wire()
    return options


def _whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _ms(duration: timedelta) -> int:
    return -(-duration // _MILLISECOND)


def _checked_expression(expression: str) -> str:
    """What no cron could be; what its numbers mean is the dispatcher's to judge."""
    fields = expression.split() if isinstance(expression, str) else []
    usable = all(_FIELD_CHARACTERS.issuperset(field) for field in fields)
    if not (expression in _NICKNAMES or (len(fields) == _FIELDS and usable)):
        raise ConfigurationError(
            f"Cron({expression!r}): a crontab expression has five fields, minute hour day-of-month month day-of-week"
        )
    return expression


def _checked_timezone(name: str, what: str) -> str:
    """*name*; where this host has no time zones at all it cannot be judged, and is left to the dispatcher."""
    import zoneinfo  # only programs with a schedule pay for it

    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"{what}: timezone= is an IANA name such as 'Europe/Berlin': {name!r}")
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        if _knows_time_zones(zoneinfo.ZoneInfo):
            raise ConfigurationError(f"{what}: timezone= is an IANA name such as 'Europe/Berlin': {name!r}") from error
    return name


def _knows_time_zones(zone: Any) -> bool:
    try:
        zone("Europe/Berlin")
    except LookupError:
        return False
    return True
