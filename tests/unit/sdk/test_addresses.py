"""Equal calls have equal addresses, in every process and however they are written."""

import hashlib
import inspect
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint_sdk import ConfigurationError, addresses
from endpoint_sdk.addresses import Address, Key

text = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(text, values, max_size=5))
def test_canonical_json_is_sorted_ascii_without_spaces(arguments: dict[str, Any]) -> None:
    """The hashed bytes are those of any JSON writer told to sort keys, leave out spaces and escape to ASCII."""
    expected = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    assert addresses.canonical(arguments, "task 't'") == expected


def test_the_hash_is_half_a_sha256() -> None:
    """32 hexadecimal digits."""
    assert addresses.args_hash(b"{}") == hashlib.sha256(b"{}").hexdigest()[:32]


def test_positional_and_keyword_calls_agree_and_defaults_do_not_count() -> None:
    """A call written otherwise, or one made before a defaulted parameter existed, has the same address."""

    def before(a: int, b: int) -> None: ...
    def after(a: int, b: int, c: int = 3) -> None: ...

    def hashed(fn: Any, *args: Any, **kwargs: Any) -> bytes:
        return addresses.canonical(addresses.bound(inspect.signature(fn), args, kwargs), "task 't'")

    assert hashed(before, 1, 2) == hashed(before, b=2, a=1) == hashed(after, 1, b=2) == b'{"a":1,"b":2}'


@given(text)
def test_a_preview_is_at_most_200_bytes(value: str) -> None:
    """A preview is cut between characters and never longer than 200 bytes of UTF-8."""
    data = json.dumps({"v": value}, ensure_ascii=False).encode()
    shown = addresses.preview(data)

    assert len(shown.encode()) <= 200
    assert data.decode().startswith(shown.removesuffix("…"))


def test_an_argument_json_cannot_carry_is_named_with_its_type() -> None:
    """The refusal says which argument, of what type, and what to do."""
    with pytest.raises(ConfigurationError, match=r"task 't': argument 'session'.*\(a object\); pass an id") as refused:
        addresses.canonical({"id": 1, "session": object()}, "task 't'")
    assert refused.value.code == "argument_not_recordable"


def test_an_idempotency_key_tells_calls_apart() -> None:
    """The same for one call, another for the next at its address or another run's; safe in a header."""
    address = Address("task", "charge", "0" * 32)
    keys = [addresses.idempotency_key(run, Key(address, ordinal)) for run in ("run_a", "run_b") for ordinal in (0, 1)]

    assert len(set(keys)) == 4
    assert all(key.isascii() and key.isprintable() and " " not in key for key in keys)
    assert addresses.idempotency_key("run_a", Key(address, 0)) == keys[0]
