"""A dispatcher, a queue and a function: each real, with the event source mapping between them ours."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dispatcher.app import create_app
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Settings
from endpoint_sdk.wire import messages, signature
from publishers import message
from tests.acceptance.esm.mapping import EventSourceMapping
from tests.acceptance.lambda_runtime.runtime_api import LambdaRuntime
from tests.brokers import AWS_ENVIRONMENT, Sqs
from tests.faults import rig

HERE = Path(__file__).parent
AUDIENCE = "orders-queue"
SECRET_KEY = "k" * 40

# Short enough to wait for a claim to go stale, long enough for a busy machine to refresh it.
RECOVERY = {"interval_ms": 100, "claim_idle_timeout_ms": 5_000, "claim_refresh_interval_ms": 1_500}


class Site:
    """A dispatcher, a queue and the functions behind it."""

    def __init__(self, stack: ExitStack, sqs: Sqs, folder: Path, client: httpx.Client, queue: str) -> None:
        self.sqs = sqs
        self.client = client
        self.url = str(client.base_url).rstrip("/")
        self.runtimes: list[LambdaRuntime] = []
        self.queue = queue
        self._stack = stack
        self._marks = folder / "marks"
        self._marks.touch()

    # --- runs and messages -------------------------------------------------------------------------------------------
    def submit(self, workflow: str = "order", **more: Any) -> str:
        """The id of a fresh run."""
        return rig.submit(self.client, workflow, version="1", **more)

    def run(self, run_id: str) -> dict[str, Any]:
        """The run as the API shows it."""
        return rig.run_of(self.client, run_id)

    def send(self, run_id: str, *, workflow: str = "", **options: Any) -> str:
        """The id of a message that delivers the run as it is now, under the name of *workflow* if given."""
        run = self.run(run_id)
        delivery = messages.Delivery(
            run_id,
            run["namespace"],
            workflow or run["workflow"],
            run["version"],
            run["revision"],
            run["attempt"],
            AUDIENCE,
            self.url,
            ServerKeys.from_env(SECRET_KEY).claim_token(run_id, run["revision"]),
        )
        return self.send_delivery(delivery, **options)

    def send_delivery(
        self, delivery: messages.Delivery, *, secret: str = rig.SECRET, age: int = 0, group: str | None = None
    ) -> str:
        """The id of a message that carries *delivery*, signed *age* seconds ago; *group* is for FIFO queues."""
        headers, body = message.signed(delivery, [signature.parse_secret(secret)], int(time.time()) - age)
        fifo = {} if group is None else {"MessageGroupId": group, "MessageDeduplicationId": headers["webhook-id"]}
        return self._sent(body.decode(), headers, **fifo)

    def send_foreign(self, body: str) -> str:
        """The id of a message of the user's own."""
        return self._sent(body, {"kind": "theirs"})

    def deliver(self, submitted: str = "order", **options: Any) -> tuple[str, str]:
        """A fresh run and the message that delivers it."""
        run_id = self.submit(submitted)
        return run_id, self.send(run_id, **options)

    def left(self) -> tuple[int, int]:
        """How many messages of the queue could be received now, and how many are in flight or put off."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.client.get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])

    # --- functions ---------------------------------------------------------------------------------------------------
    def mapping(self, handler: str = "functions.handler", *, timeout: float = 20, **options: Any) -> EventSourceMapping:
        """An event source mapping to *handler*, whose function times out after *timeout* seconds."""
        environment = options.pop("environment", {})

        def start() -> LambdaRuntime:
            runtime = LambdaRuntime(handler, HERE, timeout=timeout, environment={**self._environment(), **environment})
            self._stack.callback(runtime.close)
            self.runtimes.append(runtime)
            assert runtime.initialised.wait(20)
            assert runtime.init_error is None
            return runtime

        return EventSourceMapping(self.sqs, self.queue, start, **options)

    def marks(self, run_id: str) -> list[str]:
        """The bodies that began for the run, in order."""
        lines = [line.split(" ", 1) for line in self._marks.read_text().splitlines()]
        return [body for marked, body in lines if marked == run_id]

    def let_go(self) -> None:
        """Lets every body of `wait` return."""
        self._marks.with_suffix(".go").touch()

    @property
    def output(self) -> str:
        """What the sandboxes wrote."""
        return "".join(line for runtime in self.runtimes for line in runtime.output)

    def _sent(self, body: str, attributes: dict[str, str], **more: str) -> str:
        given = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
        sent = self.sqs.client.send_message(QueueUrl=self.queue, MessageBody=body, MessageAttributes=given, **more)
        message_id: str = sent["MessageId"]
        return message_id

    def _environment(self) -> dict[str, str]:
        return {
            **AWS_ENVIRONMENT,
            "AWS_ENDPOINT_URL_SQS": self.sqs.endpoint_url,
            "POINTSMAN_SIGNING_SECRET": rig.SECRET,
            "POINTSMAN_ENDPOINT": AUDIENCE,
            "POINTSMAN_TEST_MARKS": str(self._marks),
        }


@contextmanager
def dispatcher(database_url: str, **sections: Any) -> Iterator[httpx.Client]:
    """A client of a fresh dispatcher with *sections* in its settings."""
    settings = Settings.model_validate(
        {
            "database": {"url": database_url},
            "daemons": {**rig.FAST, "recover_overdue_outbox_entries": RECOVERY},
            "secret_key": SECRET_KEY,
            "admin_key": rig.ADMIN_KEY,
            **sections,
        }
    )
    serving = rig.Serving(lambda url: create_app(settings, url=url)).open()
    headers = {"authorization": f"Bearer {rig.ADMIN_KEY}"}
    try:
        with httpx.Client(base_url=serving.url, headers=headers, timeout=30) as client:
            yield client
    finally:
        serving.stop()


@pytest.fixture
def site(sqs: Sqs, sqlite_url: str, tmp_path: Path) -> Iterator[Site]:
    """A site whose messages the test sends itself, when it wants."""
    with ExitStack() as stack:
        client = stack.enter_context(dispatcher(sqlite_url))
        yield Site(stack, sqs, tmp_path, client, sqs.queue(visibility=600))


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
def published(request: pytest.FixtureRequest, sqs: Sqs, sqlite_url: str, tmp_path: Path) -> Iterator[Site]:
    """A site whose dispatcher publishes to the queue by itself, once for each kind of queue."""
    queue = sqs.queue(visibility=5, fifo=request.param)
    described = {"type": "sqs", "queueUrl": queue, "endpointUrl": sqs.endpoint_url, "secret": rig.SECRET}
    routes = [{"workflows": ["*"], "publish": [AUDIENCE]}]
    with ExitStack() as stack:
        client = stack.enter_context(dispatcher(sqlite_url, publishers={AUDIENCE: described}, routes=routes))
        yield Site(stack, sqs, tmp_path, client, queue)
