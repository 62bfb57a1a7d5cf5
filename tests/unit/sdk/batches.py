"""Events of an SQS event source for an endpoint on a dispatcher in memory."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from endpoint_sdk.aws_sqs import Failure
from endpoint_sdk.endpoint import Endpoint
from tests.acceptance.lambda_runtime import events
from tests.unit.sdk import pushes
from tests.unit.sdk.dispatcher_double import DispatcherDouble


class Context:
    """A Lambda context with ten minutes left."""

    aws_request_id = "r"

    def get_remaining_time_in_millis(self) -> int:
        return 600_000


class Site:
    """An endpoint on a dispatcher in memory, and what was put off."""

    def __init__(self, **options: Any) -> None:
        self.dispatcher = DispatcherDouble()
        self.endpoint: Endpoint = pushes.endpoint(self.dispatcher, **options)
        self.handler = self.endpoint.lambda_handler
        self.put_off: list[tuple[str, int]] = []
        self.handler._backoff.put_off = self._put_off  # type: ignore[method-assign]

    def ours(self, message_id: str = "m1", *, age: int = 0, sent: int = 0, receives: int = 1, **changes: Any) -> Any:
        """A message signed *age* and taken in by SQS *sent* seconds ago."""
        body = pushes.pushed(self.dispatcher, **changes)
        attributes = {
            "SentTimestamp": str(int((time.time() - sent) * 1000)),
            "ApproximateReceiveCount": str(receives),
        }
        return events.sqs_record(message_id, pushes.signed(body, age=age), body, **attributes)

    def _put_off(self, arn: str, failures: Sequence[Failure], remaining: object) -> None:
        self.put_off += [(failure.record.message_id, failure.delay) for failure in failures]


@contextmanager
def sites() -> Iterator[Callable[..., Site]]:
    """Makes sites with options of an endpoint, and closes them."""
    with ExitStack() as stack:

        def made(**options: Any) -> Site:
            site = Site(**options)
            stack.callback(site.handler.close)
            return site

        yield made


def batch(*records: Any, **more: Any) -> dict[str, Any]:
    return {"Records": list(records), **more}


def failing(*ids: str) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": each} for each in ids]}


THEIRS = events.sqs_record("u1", {}, b"{}")
OTHER = events.sqs_record("u2", {}, b"{}")
