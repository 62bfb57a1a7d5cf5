"""endpoint_sdk.endpoint: whatever arrives or is configured, one clear answer."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoint_sdk.endpoint import Endpoint
from endpoint_sdk.errors import ConfigurationError
from tests.unit.sdk.pushes import SECRET, order, signed


@pytest.mark.parametrize(
    "options",
    [
        {"secret": None},
        {"secret": ""},
        {"secret": []},
        {"secret": "whsec_nope"},
        {"tolerance": -1},
        {"tolerance": 901},
        {"tolerance": float("nan")},
        {"tolerance": "300"},
        {"tolerance": True},
        {"max_duration": timedelta(0)},
        {"max_duration": 30},
        {"max_concurrent_runs": 0},
        {"max_concurrent_runs": 2.5},
        {"name": ""},
        {"name": 5},
        {"url": "not a url"},
        {"url": "https://u:p@host"},
    ],
)
def test_what_could_not_work_is_refused_at_construction(options: dict[str, Any]) -> None:
    """C02 and its kind: an endpoint that is wrongly set up does not start."""
    with pytest.raises(ConfigurationError):
        Endpoint([order], **{"secret": SECRET, **options})


def test_the_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not given is read from the environment; what is given beats it."""
    monkeypatch.setenv("POINTSMAN_SIGNING_SECRET", SECRET)
    monkeypatch.setenv("POINTSMAN_URL", "https://pointsman.example.com")
    monkeypatch.setenv("POINTSMAN_MAX_DURATION", "30")
    one = Endpoint([order])

    assert (one._url, one._max_duration) == ("https://pointsman.example.com", timedelta(seconds=30))
    assert Endpoint([order], url="https://other.example.com")._url == "https://other.example.com"


text = st.text(max_size=40)
header_names = st.sampled_from(
    ["webhook-id", "webhook-timestamp", "webhook-signature", "Webhook-Id", "content-type"]
) | st.text(max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(header_names, text), max_size=6), st.binary(max_size=200), st.sampled_from(["POST", "GET"]))
def test_unsigned_input_is_always_401(headers: list[tuple[str, str]], body: bytes, method: str) -> None:
    """I12: whatever arrives without a valid signature is one 401, never a 5xx, and never an exception."""
    answer = asyncio.run(_ENDPOINT.handle(method, headers, body))

    assert (answer.status, answer.headers["pointsman-result"]) == (401, "unauthorized")
    assert json.loads(answer.body)["error"]["code"] == "unauthorized"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)
signed_bodies = (
    st.binary(max_size=200)
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from(["type", "runId", "workflow", "version", "revision", "url"]), json_values).map(
        lambda value: json.dumps({"type": "run.ready", **value}).encode()
    )
)


@settings(max_examples=200, deadline=None)
@given(signed_bodies)
def test_signed_nonsense_is_always_400(body: bytes) -> None:
    """I13: a valid signature over something we cannot read is a 400 with a code."""
    answer = asyncio.run(_ENDPOINT.handle("POST", signed(body), body))

    assert (answer.status, answer.headers["pointsman-result"]) == (400, "invalid")
    assert json.loads(answer.body)["error"]["code"] in {"malformed", "wrong_audience"}


_ENDPOINT = Endpoint([order], secret=SECRET)
