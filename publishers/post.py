"""A signed POST to an endpoint, under the rules for where one may go."""

from typing import Final, Protocol

from endpoint_sdk.transport.http1 import Answer
from endpoint_sdk.wire import limits, signature
from publishers.base import Target

CONNECT_SECONDS: Final = 5.0


class UrlRefused(Exception):
    """Nothing was sent: the target's URL is not one we post to."""


class Transport(Protocol):
    """What a publisher needs of `endpoint_sdk.transport.AsyncTransport`."""

    async def request(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes,
        *,
        connect_timeout: float,
        timeout: float,
        max_body: int,
        resend_idle: bool,
    ) -> Answer: ...


async def signed(
    target: Target,
    transport: Transport,
    message_id: str,
    body: bytes,
    *,
    now: float,
    timeout: float,
    resend_idle: bool,
) -> Answer:
    """The answer to *body*, signed now with every key of *target*; redirects are answers, 64 KiB the most read.

    Raises TransportError, or UrlRefused before anything is sent.
    """
    if not target.secrets:
        raise UrlRefused("the endpoint has no signing secret")
    if not target.url.startswith("https://") and not (target.allow_http and target.url.startswith("http://")):
        raise UrlRefused("the URL is not https, and plain HTTP is not allowed for this endpoint (allowHttp)")
    headers = signature.sign(target.secrets, message_id, int(now), body)
    headers["content-type"] = "application/json"
    headers["user-agent"] = "pointsman"
    try:
        return await transport.request(
            "POST",
            target.url,
            headers,
            body,
            connect_timeout=min(CONNECT_SECONDS, timeout),
            timeout=timeout,
            max_body=limits.MAX_ANSWER,
            resend_idle=resend_idle,
        )
    except ValueError as error:
        raise UrlRefused(str(error)) from None
