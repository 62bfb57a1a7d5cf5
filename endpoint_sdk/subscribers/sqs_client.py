"""boto3 clients for one queue, and what their errors mean, in sentences without a secret.

boto3 is imported when a client is made; its errors are recognised by their codes and class names, so that a client
that was handed in needs no import at all.
"""

import re
from typing import Any, Final
from urllib.parse import urlsplit

from endpoint_sdk.subscribers.base import SubscriberFailed

MISSING: Final = "SQS needs boto3: install pointsman[sqs]"

_CONNECT_TIMEOUT: Final = 2.0
# A long poll's answer may come this much later than its wait; botocore's own retries would only double a hang.
_LATE: Final = 10.0
_LONGEST_CALL: Final = 10.0
_SHORTEST_CALL: Final = 1.0

_REGION: Final = re.compile(
    r"(?:^|\.)(?:sqs[a-z-]*\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)(?:\.vpce)?\.(?:amazonaws|api\.aws)"
)

_NO_QUEUE: Final = {
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDoesNotExist",
    "NonExistentQueue",
    "InvalidAddress",
}
_REFUSED: Final = {
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "KmsAccessDenied",
    "MissingAuthenticationToken",
    "NotAuthorized",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_NO_CREDENTIALS: Final = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
    "SSOTokenLoadError",
    "ProfileNotFound",
}


def for_polls(queue_url: str, endpoint_url: str | None, wait: int) -> Any:
    """A client for one long poll at a time of *wait* seconds. Raises SubscriberFailed."""
    return _client(queue_url, endpoint_url, read_timeout=wait + _LATE, attempts=1)


def for_acks(queue_url: str, endpoint_url: str | None, window: int) -> Any:
    """A client for deletes and holds of *window* seconds, of which one call may take a fraction only.

    Raises SubscriberFailed.
    """
    longest = max(min(window / 6, _LONGEST_CALL), _SHORTEST_CALL)
    return _client(queue_url, endpoint_url, read_timeout=longest, attempts=3)


def patience(client: Any, wait: int) -> int:
    """*wait*, or less where *client* itself gives up on an answer sooner."""
    config = getattr(getattr(client, "meta", None), "config", None)
    read_timeout = getattr(config, "read_timeout", None)
    return wait if read_timeout is None else min(wait, max(int(read_timeout) - 1, 0))


def code(error: Exception) -> str:
    """The machine's word for *error*: SQS's code, or the name of its class."""
    response = getattr(error, "response", None)
    given = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return str(given or type(error).__name__)


def failure(error: Exception, queue_url: str) -> SubscriberFailed:
    """*error* as a sentence about the queue at *queue_url*."""
    found = code(error)
    if found in _NO_QUEUE:
        return SubscriberFailed(f"there is no SQS queue {queue_url}, or it is in another region or account ({found})")
    if found in _REFUSED:
        return SubscriberFailed(f"AWS refuses this process's credentials for the queue {queue_url} ({found})")
    if found in _NO_CREDENTIALS:
        return SubscriberFailed(f"no AWS credentials can be had for the queue {queue_url} ({found})")
    if found == "NoRegionError":
        return SubscriberFailed(f"the region of the queue {queue_url} is not known: set AWS_REGION")
    if getattr(error, "response", None) is None:
        return SubscriberFailed(f"SQS cannot be reached for the queue {queue_url} ({found})")
    return SubscriberFailed(f"SQS answers {found} for the queue {queue_url}")


def region_of(queue_url: str) -> str | None:
    """The region in a queue's URL, None where the URL is not AWS's."""
    found = _REGION.search(urlsplit(queue_url).hostname or "")
    return (found[1] or found[2]) if found else None


def _client(queue_url: str, endpoint_url: str | None, *, read_timeout: float, attempts: int) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise SubscriberFailed(MISSING) from None
    config = Config(
        connect_timeout=_CONNECT_TIMEOUT,
        read_timeout=read_timeout,
        retries={"mode": "standard", "total_max_attempts": attempts},
        tcp_keepalive=True,
    )
    try:
        session = boto3.session.Session()
        region = region_of(queue_url) or session.region_name
        # Somebody else's SQS names no region, and none is asked for there.
        region = region or ("us-east-1" if endpoint_url else None)
        return session.client("sqs", region_name=region, endpoint_url=endpoint_url, config=config)
    except Exception as error:
        raise failure(error, queue_url) from None
