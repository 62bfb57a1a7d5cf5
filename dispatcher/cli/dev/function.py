"""A Lambda execution environment's loop: one event after the other, as the service's runtime client does it."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from dispatcher.cli.dev.channel import Answered, Child, Invoke

log = logging.getLogger(__name__)


class Context:
    """What Lambda passes beside the event."""

    def __init__(self, name: str, order: Invoke) -> None:
        self._deadline_ms = order.deadline_ms
        self.aws_request_id = order.id
        self.function_name = name
        self.function_version = "$LATEST"
        self.invoked_function_arn = f"arn:aws:lambda:us-east-1:000000000000:function:{name}"
        self.memory_limit_in_mb = "1024"
        self.log_group_name = f"/aws/lambda/{name}"
        self.log_stream_name = "dev"
        self.identity = None
        self.client_context = None

    def get_remaining_time_in_millis(self) -> int:
        return max(self._deadline_ms - int(time.time() * 1000), 0)


def answer(handler: Callable[[Any, Any], Any], name: str, parent: Child) -> None:
    """Hands *handler* one event after the other until the parent closes the channel."""
    while isinstance(order := parent.order(), Invoke):
        try:
            payload = json.dumps(handler(order.event, Context(name, order)))
        except Exception:
            log.exception("the handler raised")
            parent.tell(Answered(None))
        else:
            parent.tell(Answered(payload))
