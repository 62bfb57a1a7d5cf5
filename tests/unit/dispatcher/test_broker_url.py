"""URLs of brokers: which are refused and why, what they tell, how they are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import broker_url

QUEUES = [
    ("https://sqs.eu-west-1.amazonaws.com/123456789012/orders", "eu-west-1", None),
    ("https://sqs.eu-west-1.amazonaws.com/1/orders.fifo", "eu-west-1", None),
    ("https://sqs.us-gov-west-1.amazonaws.com/1/q", "us-gov-west-1", None),
    ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", "cn-north-1", None),
    ("https://eu-west-1.queue.amazonaws.com/1/q", "eu-west-1", None),
    ("https://queue.amazonaws.com/1/q", "us-east-1", None),
    ("https://sqs-fips.us-east-1.amazonaws.com/1/q", "us-east-1", "https://sqs-fips.us-east-1.amazonaws.com"),
    ("https://sqs.eu-west-1.api.aws/1/q", "eu-west-1", "https://sqs.eu-west-1.api.aws"),
    (
        "https://vpce-1-a.sqs.ap-southeast-2.vpce.amazonaws.com/1/q",
        "ap-southeast-2",
        "https://vpce-1-a.sqs.ap-southeast-2.vpce.amazonaws.com",
    ),
    (
        "http://sqs.eu-west-1.localhost.localstack.cloud:4566/000000000000/q",
        "eu-west-1",
        "http://sqs.eu-west-1.localhost.localstack.cloud:4566",
    ),
    ("http://localhost:9324/000000000000/q-1_A", None, "http://localhost:9324"),
    ("http://[::1]:4566/queue/us-east-1/000000000000/q", None, "http://[::1]:4566"),
]


@pytest.mark.parametrize(("url", "region", "endpoint"), QUEUES)
def test_queues(url: str, region: str | None, endpoint: str | None) -> None:
    """The shapes a queue's URL has are accepted; the region and the place to call are read from the host."""
    assert broker_url.queue_fault(url) is None
    assert broker_url.queue_region(url) == region
    assert broker_url.queue_endpoint(url) == endpoint


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("arn:aws:sqs:eu-west-1:123456789012:orders", "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"),
        ("orders", "is written"),
        ("ftp://sqs.eu-west-1.amazonaws.com/1/q", "is written"),
        ("http://sqs.eu-west-1.amazonaws.com/1/q", "https"),
        ("https://u:p@sqs.eu-west-1.amazonaws.com/1/q", "credentials"),
        ("https://sqs.eu-west-1.amazonaws.com/q", "account"),
        ("https://sqs.eu-west-1.amazonaws.com/1/q/", "account"),
        ("https://sqs.eu-west-1.amazonaws.com/1/a.b", "account"),
        ("https://sqs.eu-west-1.amazonaws.com/1/" + "q" * 81, "account"),
        ("https://sqs.eu-west-1.amazonaws.com/1/q?x=1", "query"),
        ("https://sqs.eu-west-1.amazonaws.com/1/q#f", "fragment"),
        ("https://sqs.eu-west-1.amazonaws.com/1/q\n", "ASCII"),
        ("https://[::1/1/q", "malformed"),
        ("https://x:99999/1/q", "malformed"),
        ("https://x:0/1/q", "is written"),
        ("", "ASCII"),
    ],
)
def test_no_queues(url: str, word: str) -> None:
    """What is not the URL of a queue is refused with a sentence that helps; an ARN with the URL it means."""
    fault = broker_url.queue_fault(url)

    assert fault is not None
    assert word in fault


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://localhost:6379/0",
        "redis://user:p%23w@cache:6379/15",
        "rediss://:pw@cache?ssl_cert_reqs=none&client_name=pointsman",
        "unix:///run/redis.sock?db=2&password=x",
        "redis://[::1]:6379",
    ],
)
def test_redis(url: str) -> None:
    """The shapes redis-py takes are accepted."""
    assert broker_url.redis_fault(url) is None


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://cache", "begins with"),
        ("cache:6379", "begins with"),
        ("redis://", "is written"),
        ("redis://cache:0", "is written"),
        ("redis://cache:99999", "malformed"),
        ("redis://cache/zero", "number"),
        ("redis://cache?db=x", "number"),
        ("redis://cache?socket_timeout=900", "parameters"),
        ("redis://:a#b@cache", "malformed"),
        ("redis://cache/0#x", "%23"),
        ("unix://", "socket"),
        ("redis://cäche", "ASCII"),
    ],
)
def test_no_redis(url: str, word: str) -> None:
    """What redis-py would misread or fail on later is refused now; a parameter may not undo our timeouts."""
    fault = broker_url.redis_fault(url)

    assert fault is not None
    assert word in fault


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("redis://:secret@cache:6379/0", "redis://:…@cache:6379/0"),
        ("redis://me:sec@ret@cache", "redis://me:…@cache"),
        ("unix:///run/r.sock?db=1", "unix:///run/r.sock?db=1"),
        ("unix:///run/r.sock?password=secret&db=1", "unix:///run/r.sock?password=…&db=1"),
        ("redis://a:secret@b?password=secret", "redis://a:…@b?password=…"),
        ("postgresql://u:secret@h/d?sslmode=require", "postgresql://u:…@h/d?sslmode=require"),
        ("postgresql:///d?host=/run/pg&password=secret", "postgresql:///d?host=/run/pg&password=…"),
        ("redis://cache?p%61ssword=secret&db=1", "redis://cache?p%61ssword=…&db=1"),
        ("postgresql://h/d?password=sec#ret", "postgresql://h/d?password=…"),
        ("postgresql://u:sec/ret@h/d", "postgresql://u:…@h/d"),
        ("postgresql://u:sec?r#et@h/d", "postgresql://u:…@h/d"),
        ("postgresql://h:5432,i:5433/d?user=a@b", "postgresql://h:5432,i:5433/d?user=a@b"),
        ("redis://cache:6379/0?client_name=a@b", "redis://cache:6379/0?client_name=a@b"),
        ("redis://[::1]:6379/0?client_name=a@b", "redis://[::1]:6379/0?client_name=a@b"),
    ],
)
def test_without_password(url: str, shown: str) -> None:
    """No part of a password is left, and nothing else is changed."""
    assert broker_url.without_password(url) == shown


@given(
    st.builds(
        lambda scheme, rest: f"{scheme}{rest}",
        st.sampled_from(["", "https://", "redis://", "unix://", "arn:aws:sqs:"]),
        st.text(st.sampled_from("ab1.:/@[]?#=&%\u00e4\n")),
    )
)
def test_any_text_is_judged(text: str) -> None:
    """No text raises; what is accepted can be asked for what it tells."""
    assert isinstance(broker_url.without_password(text), str)
    broker_url.redis_fault(text)
    if broker_url.queue_fault(text) is None:
        assert broker_url.queue_region(text) is None or broker_url.queue_endpoint(text) != ""
