"""The dispatcher's settings: frozen, checked, with the defaults written here.

YAML keys are camelCase; every duration is an integer of milliseconds and says so in its name. How the layers (flag,
environment, YAML, default) are read and what is said about a fault is `dispatcher.settings_load`.
"""

import re
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from dispatcher import broker_url, endpoint_url
from dispatcher.settings_yaml import FromText
from endpoint_sdk.wire import limits, signature

_LISTEN: Final = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):([0-9]{1,5})")
_REGION: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_DAY: Final = 86_400_000


class Section(BaseModel):
    """A mapping of the configuration: unknown keys are faults, nothing is coerced, nothing changes afterwards."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
        hide_input_in_errors=True,
    )


def _number(value: Any) -> Any:
    if isinstance(value, FromText) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return value


def _truth(value: Any) -> Any:
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, FromText) else value


def _listen(value: str) -> str:
    match = _LISTEN.fullmatch(value)
    if match is None or int(match[1]) > 65535:
        raise PydanticCustomError("invalid_listen", "An address is written host:port, such as 127.0.0.1:8400.")
    return value


def _web_url(value: str) -> str:
    if fault := endpoint_url.fault(value, allow_http=True):
        raise PydanticCustomError("invalid_url", "{fault}", {"fault": fault})
    return value.rstrip("/")


def _endpoint_url(value: str) -> str:
    if fault := endpoint_url.fault(value, allow_http=True):
        raise PydanticCustomError("endpoint_url_refused", "{fault}", {"fault": fault})
    return value


def _queue_url(value: str) -> str:
    if fault := broker_url.queue_fault(value):
        raise PydanticCustomError("queue_url_invalid", "{fault}", {"fault": fault})
    return value


def _redis_url(value: str) -> str:
    if fault := broker_url.redis_fault(value):
        raise PydanticCustomError("redis_url_invalid", "{fault}", {"fault": fault})
    return value


def _region(value: str) -> str:
    if _REGION.fullmatch(value) is None:
        raise PydanticCustomError("region_invalid", "A region is written as AWS does, such as eu-west-1.")
    return value


def _database_url(value: str) -> str:
    try:
        urlsplit(value)  # what it says of a host that is none may hold the password
    except ValueError:
        value = ""
    if not value.startswith(("sqlite:///", "postgresql://")) or value == "sqlite:///":
        raise PydanticCustomError(
            "invalid_database_url", "A database is sqlite:///path/to/file.db or postgresql://user@host/name."
        )
    return value


def _signing_secret(value: SecretStr) -> SecretStr:
    try:
        signature.parse_secret(value.get_secret_value())
    except ValueError as error:
        raise PydanticCustomError("secret_invalid", "{fault}", {"fault": str(error)}) from None
    return value


Duration = Annotated[int, BeforeValidator(_number), Field(ge=1, le=30 * _DAY)]
Republish = Annotated[int, BeforeValidator(_number), Field(ge=1_000, le=3_600_000)]
Interval = Annotated[int, BeforeValidator(_number), Field(ge=10, le=3_600_000)]
Truth = Annotated[bool, BeforeValidator(_truth)]
Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
Tag = Annotated[str, Field(min_length=1, max_length=limits.MAX_TAG, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
Texts = Annotated[tuple[Text, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)]
Secret = Annotated[SecretStr, AfterValidator(_signing_secret)]


class Server(Section):
    """Where the dispatcher listens, and the URL deliveries carry (`public_url`, else made from `listen`)."""

    listen: Annotated[str, AfterValidator(_listen)] = "127.0.0.1:8400"
    public_url: Annotated[str, AfterValidator(_web_url)] | None = None
    max_body_bytes: Annotated[int, BeforeValidator(_number), Field(ge=1_024, le=256 * 1024 * 1024)] = 8 * 1024 * 1024

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `listen`; port 0 asks the system for a free one."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def url(self) -> str:
        """The URL executors reach this dispatcher at, without a trailing slash."""
        return self.public_url or self.own_url

    @property
    def own_url(self) -> str:
        """The URL of `listen`, good on this machine."""
        host, port = self.address
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - compared, not bound
        return f"http://{host}:{port}"


class Database(Section):
    url: Annotated[str, AfterValidator(_database_url), Field(repr=False)] = "sqlite:///pointsman.db"


class Retention(Section):
    runs_days: Annotated[int, BeforeValidator(_number), Field(ge=1, le=36_500)] = 30


class Runs(Section):
    cancel_grace_ms: Duration = 300_000
    record_arguments: Truth = True
    record_tracebacks: Truth = False


class PushPublisher(Section):
    """Signed HTTP pushes to one endpoint."""

    type: Literal["push"] = "push"
    url: Annotated[str, Field(max_length=2_000), AfterValidator(_endpoint_url)]
    secret: Secret
    platform: Literal["generic", "lambda-url", "api-gateway", "alb", "cloud-run", "web-function"] = "generic"
    max_in_flight: Annotated[int, BeforeValidator(_number), Field(ge=1, le=10_000)] = 50
    allow_http: Truth = False
    allow_addresses: Texts = ()


class SqsPublisher(Section):
    """Messages on one SQS queue, standard or FIFO; AWS credentials come the ordinary boto3 ways, never from here."""

    type: Literal["sqs"] = "sqs"
    queue_url: Annotated[str, Field(max_length=2_000), AfterValidator(_queue_url)]
    secret: Secret
    endpoint_url: Annotated[str, Field(max_length=2_000), AfterValidator(_web_url)] | None = None
    region: Annotated[str, Field(max_length=50), AfterValidator(_region)] | None = None
    republish_ms: Republish = 300_000

    @property
    def region_name(self) -> str | None:
        """The region of the queue: as given, else the one its URL or the endpoint's names; None is refused."""
        urls = filter(None, (self.queue_url, self.endpoint_url))
        return self.region or next(filter(None, map(broker_url.queue_region, urls)), None)

    @property
    def service_url(self) -> str | None:
        """Where calls go: as given, else the origin of a queue URL that is not AWS's own; None is for boto3 to say."""
        return self.endpoint_url or broker_url.queue_endpoint(self.queue_url)


class RedisPublisher(Section):
    """Members of sorted sets in one Redis database. The URL may hold a password: it is shown without."""

    type: Literal["redis"] = "redis"
    url: Annotated[str, Field(max_length=2_000, repr=False), AfterValidator(_redis_url)]
    secret: Secret
    republish_ms: Republish = 60_000


BrokerPublisher = SqsPublisher | RedisPublisher
Publisher = Annotated[PushPublisher | SqsPublisher | RedisPublisher, Field(discriminator="type")]


class Route(Section):
    """Which publishers deliver runs whose workflow and pool match one of the patterns (`*` stands for anything)."""

    workflows: Annotated[Texts, Field(min_length=1)] = ("*",)
    pools: Annotated[Texts, Field(min_length=1)] = ("*",)
    publish: Annotated[Texts, Field(min_length=1)]


class Schedule(Section):
    """A workflow that is started by the clock: by `cron` in `timezone`, or every `every_ms`."""

    workflow: Text
    version: Text | None = None
    cron: Annotated[str, Field(max_length=200)] | None = None
    timezone: Annotated[str, Field(max_length=100)] = "UTC"
    every_ms: Annotated[int, BeforeValidator(_number), Field(ge=1_000, le=366 * _DAY)] | None = None
    input: Any = None
    overlap: Literal["skip", "allow", "cancel_previous"] = "skip"
    catch_up: Annotated[int, BeforeValidator(_number), Field(ge=0, le=100)] = 1
    jitter_ms: Annotated[int, BeforeValidator(_number), Field(ge=0, le=_DAY)] = 0
    pool: Text = "default"
    tags: Annotated[dict[Tag, Tag], Field(max_length=limits.MAX_TAGS)] = {}
    priority: Annotated[int, BeforeValidator(_number), Field(ge=0, le=9)] = 5
    namespace: Text = "default"


class Recovery(Section):
    """Releasing claims that went silent."""

    interval_ms: Interval = 10_000
    claim_idle_timeout_ms: Annotated[int, BeforeValidator(_number), Field(ge=30, le=_DAY)] = 90_000
    claim_refresh_interval_ms: Annotated[int, BeforeValidator(_number), Field(ge=10, le=_DAY)] = 30_000
    max_releases_per_second: Annotated[int, BeforeValidator(_number), Field(ge=1, le=100_000)] = 100
    max_silence_ms: Duration = _DAY


class Publishing(Section):
    """Leasing due outbox entries and handing them to publishers."""

    interval_ms: Interval = 1_000
    base_backoff_ms: Duration = 5_000
    max_backoff_ms: Duration = 300_000
    declined_backoff_ms: Duration = 30_000
    claim_deadline_ms: Annotated[int, BeforeValidator(_number), Field(ge=10, le=3_600_000)] = 30_000


class Stalling(Section):
    """Giving up on runs that nobody can execute."""

    interval_ms: Interval = 60_000
    max_age_ms: Annotated[int, BeforeValidator(_number), Field(ge=1, le=366 * _DAY)] = _DAY
    max_endings_without_progress: Annotated[int, BeforeValidator(_number), Field(ge=1, le=1_000_000)] = 10
    max_kills_without_progress: Annotated[int, BeforeValidator(_number), Field(ge=1, le=1_000_000)] = 3


class Daemons(Section):
    recover_overdue_outbox_entries: Recovery = Recovery()
    publish_pending_outbox_entries: Publishing = Publishing()
    stall_undeliverable_runs: Stalling = Stalling()


class Settings(Section):
    """Everything `pointsman.yaml` and the environment can say. Keys come from the environment only."""

    server: Server = Server()
    database: Database = Database()
    runs: Runs = Runs()
    retention: Retention = Retention()
    publishers: dict[Text, Publisher] = {}
    routes: Annotated[
        tuple[Route, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
    ] = ()
    schedules: dict[Text, Schedule] = {}
    daemons: Daemons = Daemons()
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", exclude=True)
    secret_key: SecretStr | None = Field(default=None, exclude=True)
    admin_key: SecretStr | None = Field(default=None, exclude=True)

    @property
    def recovery(self) -> Recovery:
        return self.daemons.recover_overdue_outbox_entries

    @property
    def publishing(self) -> Publishing:
        return self.daemons.publish_pending_outbox_entries

    @property
    def stalling(self) -> Stalling:
        return self.daemons.stall_undeliverable_runs

    @property
    def push_publishers(self) -> dict[str, PushPublisher]:
        """The publishers of type push, in the order of the file."""
        return {name: item for name, item in self.publishers.items() if isinstance(item, PushPublisher)}

    @property
    def broker_publishers(self) -> dict[str, BrokerPublisher]:
        """The publishers of the other types, in the order of the file."""
        return {name: item for name, item in self.publishers.items() if not isinstance(item, PushPublisher)}
