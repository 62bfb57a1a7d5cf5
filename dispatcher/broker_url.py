"""Where brokers are: which queue and Redis URLs a publisher may have, and what such a URL says. Pure."""

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

_PRINTABLE: Final = re.compile(r"[\x21-\x7e]+")
_QUEUE_NAME: Final = re.compile(r"(?=.{1,80}\Z)[A-Za-z0-9_-]+(?:\.fifo)?")
_ARN: Final = re.compile(r"arn:aws[a-z-]*:sqs:([a-z0-9-]+):([0-9]+):([A-Za-z0-9_.-]+)")
_REGION: Final = r"([a-z]{2,4}(?:-[a-z]+)+-[0-9]+)"
_NAMES_REGION: Final = re.compile(rf"(?:.+\.)?sqs(?:-fips)?\.{_REGION}\..+|{_REGION}\.queue\.amazonaws\.com")
_OF_AWS: Final = re.compile(rf"sqs\.{_REGION}\.amazonaws\.com(?:\.cn)?|(?:{_REGION}\.)?queue\.amazonaws\.com")
_FIRST_REGION: Final = "us-east-1"
# The second branch is for passwords that should have been percent-encoded: what follows the colon is no port.
_PASSWORD: Final = re.compile(r"^([^:/?#]+://(?!\[)[^:@/?#]*:)(?:[^/?#]*|(?![0-9]*(?:[,/?#]|$)).*)@")
_PARAMETER: Final = re.compile(r"([?&][^=&]*=)[^&]*")
_REDIS_OPTIONS: Final = frozenset(
    {
        "client_name",
        "db",
        "password",
        "ssl_ca_certs",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_keyfile",
        "username",
    }
)


def queue_fault(url: str) -> str | None:
    """Why *url* is not the URL of an SQS queue, as a sentence without the URL, or None when it is fine."""
    return next(_queue_faults(url), None)


def redis_fault(url: str) -> str | None:
    """Why *url* is not the URL of a Redis database, as a sentence without the URL, or None when it is fine."""
    return next(_redis_faults(url), None)


def queue_region(url: str) -> str | None:
    """The AWS region that the host of *url* names, None when it names none."""
    host = urlsplit(url).hostname or ""
    if host == "queue.amazonaws.com":
        return _FIRST_REGION
    match = _NAMES_REGION.fullmatch(host)
    return match and (match[1] or match[2])


def queue_endpoint(url: str) -> str | None:
    """Where the calls for the queue at *url* go when it is not one of the public addresses of AWS itself, else None."""
    parts = urlsplit(url)
    return None if _OF_AWS.fullmatch(parts.hostname or "") else f"{parts.scheme}://{parts.netloc}"


def without_password(url: str) -> str:
    """*url* with its password replaced, whether it stands before the host or among the parameters."""
    return _PARAMETER.sub(_shown_parameter, _PASSWORD.sub(r"\1…@", url))


def _shown_parameter(found: re.Match[str]) -> str:
    # Names are read percent-decoded by those who use them.
    return f"{found[1]}…" if "password" in unquote(found[0]).lower() else found[0]


def _queue_faults(url: str) -> Iterator[str]:
    if match := _ARN.fullmatch(url):
        region, account, name = match.groups()
        yield f"This is the queue's ARN; its URL is https://sqs.{region}.amazonaws.com/{account}/{name}."
    if _PRINTABLE.fullmatch(url) is None:
        yield "The queue's URL holds characters outside printable ASCII."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        yield "The host or port of the queue's URL is malformed."
        return
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        yield "A queue's URL is written https://sqs.eu-west-1.amazonaws.com/123456789012/orders."
    if parts.username is not None or parts.password is not None:
        yield "The queue's URL carries a user name or password; AWS credentials are found the ordinary boto3 ways."
    if parts.query or parts.fragment:
        yield "The queue's URL has a query or a fragment."
    if parts.scheme == "http" and _OF_AWS.fullmatch(parts.hostname or ""):
        yield "The URL of a queue at AWS begins with https://."
    path = parts.path.split("/")
    if len(path) < 3 or _QUEUE_NAME.fullmatch(path[-1]) is None:
        yield "The queue's URL has to end with an account and a queue name, /123456789012/orders."


def _redis_faults(url: str) -> Iterator[str]:
    if _PRINTABLE.fullmatch(url) is None:
        yield "The URL holds characters outside printable ASCII; percent-encode them."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        yield "The host or port of the URL is malformed."
        return
    if parts.scheme not in {"redis", "rediss", "unix"}:
        yield "A Redis URL begins with redis://, rediss:// or unix://."
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            yield "The URL names no socket; write unix:///path/to/redis.sock."
    elif not parts.hostname or port == 0:
        yield "A Redis URL is written redis://host:6379/0."
    elif parts.path.strip("/") and not _is_number(parts.path.strip("/")):
        yield "The path of a Redis URL is the number of a database, such as /0."
    if parts.fragment:
        yield "The URL has a fragment; percent-encode a # in the password as %23."
    yield from _option_faults(parts.query)


def _option_faults(query: str) -> Iterator[str]:
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _REDIS_OPTIONS:
            yield f"A Redis URL takes the parameters {', '.join(sorted(_REDIS_OPTIONS))} and no others."
        if name == "db" and not _is_number(value):
            yield "The parameter db is the number of a database."


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
