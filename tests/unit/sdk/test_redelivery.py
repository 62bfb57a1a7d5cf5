"""endpoint_sdk.redelivery: when what is not settled comes again."""

import pytest

from endpoint_sdk import redelivery
from endpoint_sdk.redelivery import Unsettled


@pytest.mark.parametrize(
    ("result", "delays"),
    [
        ("retry", [5, 10, 20, 40, 80, 160, 320, 640]),
        ("unknown-workflow", [30] * 8),
        ("unauthorized", [60, 120, 240, 480, 900, 900, 900, 900]),
        ("invalid", [60, 120, 240, 480, 900, 900, 900, 900]),
        ("busy", [0] * 8),
    ],
)
def test_backoff_grows_with_the_receives(result: Unsettled, delays: list[int]) -> None:
    """C54: a message's own delay, however often it was received; absurd counts are clamped."""
    assert [redelivery.delay(result, receives) for receives in range(1, 9)] == delays
    assert redelivery.delay(result, 10**9) == max(redelivery.delay(result, 9), delays[-1]) <= 900
    assert redelivery.delay(result, 0) == delays[0]
