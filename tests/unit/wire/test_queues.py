"""The names of queues, as publishers and subscribers must agree on them."""

from endpoint_sdk.wire import queues


def test_the_redis_key_is_the_documented_one() -> None:
    """`pointsman:` and the four parts, each percent-encoded."""
    assert queues.redis_key("shop/eu", "pay:ment", "1.0 b", "é") == "pointsman:shop%2Feu:pay%3Ament:1.0%20b:%C3%A9"
