"""The transports a worker can take its runs from; each is loaded when it is asked for.

    Worker([order], subscriber=subscribers.sqs(queue_url))

`poll` needs nothing but the dispatcher, `redis` the extra pointsman[redis], `sqs` the extra pointsman[sqs]. Another
transport is a class of your own with the methods of `base.Subscriber`.

Their modules have other names than these functions: importing a module puts it under its name in the package.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from endpoint_sdk.subscribers.base import Subscriber

__all__ = ["poll", "redis", "sqs"]

_DEFAULT: Final = ("default",)


def poll(*, pools: Sequence[str] = _DEFAULT, wait: timedelta = timedelta(seconds=20)) -> "Subscriber":
    """Asks the dispatcher itself for runs of *pools*; each question may wait up to *wait*, 1 to 20 seconds.

    Raises ConfigurationError for a wait or pools that could not work.
    """
    from endpoint_sdk.subscribers.polling import PollSubscriber

    return PollSubscriber(pools=pools, wait=wait)


def redis(url: str, /, *, pools: Sequence[str] = _DEFAULT) -> "Subscriber":
    """Takes deliveries from the sorted sets a `type: redis` publisher fills, at the Redis of *url*.

    Raises ConfigurationError for a URL or pools that could not work, or when the extra is not installed.
    """
    from endpoint_sdk.subscribers.redis_sets import RedisSubscriber

    return RedisSubscriber(url, pools=pools)


def sqs(
    queue_url: str,
    /,
    *,
    pools: Sequence[str] = _DEFAULT,
    visibility_timeout: timedelta = timedelta(seconds=60),
    wait: timedelta = timedelta(seconds=20),
    endpoint_url: str | None = None,
    client: Any = None,
) -> "Subscriber":
    """Takes deliveries from the SQS queue at *queue_url*, each kept invisible while its run executes.

    *visibility_timeout* is how long a message stays hidden after this process died, *wait* the long poll, *client* a
    boto3 SQS client to use instead of one of its own, made for *endpoint_url* where that is given. Raises
    ConfigurationError for what could not work, or when the extra is not installed.
    """
    from endpoint_sdk.subscribers.sqs_queue import SqsSubscriber

    return SqsSubscriber(
        queue_url,
        pools=pools,
        visibility_timeout=visibility_timeout,
        wait=wait,
        endpoint_url=endpoint_url,
        client=client,
    )
