"""The SQS batch around an existing handler, on the real Lambda runtime client: one queue, two kinds of messages."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.esm.conftest import AUDIENCE, Site, dispatcher
from tests.acceptance.esm.mapping import EventSourceMapping
from tests.acceptance.examples.conftest import EXAMPLES
from tests.acceptance.lambda_runtime.runtime_api import LambdaRuntime
from tests.brokers import AWS_ENVIRONMENT, Sqs
from tests.faults import rig


@pytest.fixture
def site(sqs: Sqs, sqlite_url: str, tmp_path: Path) -> Iterator[Site]:
    """A dispatcher that publishes to the user's own queue."""
    queue = sqs.queue(visibility=30)
    described = {"type": "sqs", "queueUrl": queue, "endpointUrl": sqs.endpoint_url, "secret": rig.SECRET}
    routes = [{"workflows": ["*"], "publish": [AUDIENCE]}]
    with ExitStack() as stack:
        client = stack.enter_context(dispatcher(sqlite_url, publishers={AUDIENCE: described}, routes=routes))
        yield Site(stack, sqs, tmp_path, client, queue)


@pytest.fixture
def mapping(site: Site, sqs: Sqs) -> Iterator[EventSourceMapping]:
    """The event source of the example's function, with ReportBatchItemFailures."""
    runtimes: list[LambdaRuntime] = []

    def start() -> LambdaRuntime:
        settings = {"POINTSMAN_SIGNING_SECRET": rig.SECRET, "POINTSMAN_ENDPOINT": AUDIENCE}
        environment = {**AWS_ENVIRONMENT, "AWS_ENDPOINT_URL_SQS": sqs.endpoint_url, **settings}
        runtime = LambdaRuntime("beside.handler", EXAMPLES, timeout=20, environment=environment)
        runtimes.append(runtime)
        assert runtime.initialised.wait(20)
        assert runtime.init_error is None
        return runtime

    yield EventSourceMapping(sqs, site.queue, start)
    for runtime in runtimes:
        runtime.close()


def test_each_message_of_a_mixed_batch_goes_where_it_belongs(site: Site, mapping: EventSourceMapping) -> None:
    """The run is executed, the user's good message is done, and only the one it could not read stays."""
    run_id = site.submit("invoice", input={"id": "i1", "address": "ana@example.com"})
    rig.until(lambda: site.left()[0] == 1, what="the delivery")
    site.send_foreign('{"customer": "c1"}')
    bad = site.send_foreign("{}")

    batch = mapping.poll(at_least=3)

    assert batch.invocation.kind == "response", batch.invocation.payload
    assert batch.failed == [bad]
    assert site.run(run_id)["result"] == "invoices/i1.pdf to ana@example.com"
