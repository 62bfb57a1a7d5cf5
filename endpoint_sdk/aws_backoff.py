"""When a message that failed comes again: a message's own time instead of the queue's whole visibility timeout.

Best effort: boto3 is imported when the first message needs it, every call has one short attempt, and without boto3,
the permission or the time for it the message waits for the visibility timeout.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from endpoint_sdk.aws_sqs import Failure
    from endpoint_sdk.host_time import Remaining

_log: Final = logging.getLogger(__name__)

_AT_A_TIME: Final = 10
_CONNECT_TIMEOUT: Final = 0.3
_READ_TIMEOUT: Final = 0.7
# What a call may take, with something left for the answer, and what loading boto3 may take before the first.
_CALL: Final = timedelta(seconds=1.25)
_LOADING: Final = timedelta(seconds=1.5)


class Backoff:
    """Puts failed messages of SQS queues off; says once for each reason why it cannot."""

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}
        self._told: set[str] = set()

    def put_off(self, arn: str, failures: "Sequence[Failure]", remaining: "Remaining | None") -> None:
        """Every message of *failures* comes again after its delay, as far as SQS can be told so in time; never raises.

        *arn* is the queue's, as the event source names it.
        """
        try:
            for first in range(0, len(failures), _AT_A_TIME):
                if not self._in_time(arn, remaining):
                    self._tell("time", "there is not the time to put failed messages off", arn)
                    return
                self._send(arn, failures[first : first + _AT_A_TIME])
        except ImportError:
            self._tell("boto3", "failed messages cannot be put off: boto3 is not installed", arn)
        except Exception as error:
            reason = _reason(error)
            hint = ": the function's role lacks sqs:ChangeMessageVisibility" if "AccessDenied" in reason else ""
            self._tell(reason, f"failed messages cannot be put off ({reason}){hint}", arn)

    def _send(self, arn: str, failures: "Sequence[Failure]") -> None:
        client, url = self._queue(arn)
        entries = [
            {"Id": str(number), "ReceiptHandle": each.record.receipt_handle, "VisibilityTimeout": each.delay}
            for number, each in enumerate(failures)
        ]
        refused = client.change_message_visibility_batch(QueueUrl=url, Entries=entries).get("Failed")
        if refused:
            code = str(refused[0].get("Code"))[:100]
            self._tell(code, f"SQS refused to put a failed message off ({code})", arn)

    def _queue(self, arn: str) -> tuple[Any, str]:
        _, _, _, region, account, name = arn.split(":", 5)
        client = self._clients.get(region)
        if client is None:
            client = self._clients[region] = _client(region)
        # The endpoint is the client's business: partitions, AWS_ENDPOINT_URL_SQS.
        return client, f"{client.meta.endpoint_url.rstrip('/')}/{account}/{name}"

    def _in_time(self, arn: str, remaining: "Remaining | None") -> bool:
        left = None if remaining is None else remaining()
        if left is None:
            return True
        region = arn.split(":", 4)[3:4]
        return left > (_CALL if region and region[0] in self._clients else _CALL + _LOADING)

    def _tell(self, reason: str, message: str, arn: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            _log.warning("%s; they come again after the visibility timeout of the queue", message, extra={"queue": arn})


def _client(region: str) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=_CONNECT_TIMEOUT,
        read_timeout=_READ_TIMEOUT,
        retries={"mode": "standard", "total_max_attempts": 1},
    )
    return boto3.session.Session().client("sqs", region_name=region, config=config)


def _reason(error: Exception) -> str:
    """A short, stable name: the service's error code, or the exception's class."""
    answer = getattr(error, "response", None)
    code = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
    return str(code or type(error).__name__)[:100]
