"""Standard Webhooks signatures: published vectors, an independent verifier both ways, and hostile input."""

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from endpoint_sdk.wire import signature

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KEY = signature.parse_secret(SECRET)
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
SENT = 1_614_265_330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = {"webhook-id": ID, "webhook-timestamp": str(SENT), "webhook-signature": SIGNATURE}

keys = st.binary(min_size=24, max_size=64)
ids = st.text(st.characters(codec="ascii", min_codepoint=0x21, exclude_characters=".\x7f"), min_size=1, max_size=60)


def reason(headers: Any, *, body: Any = BODY, now: float = SENT, tolerance: int = 300) -> str | None:
    """Why verification refuses, or None when it accepts."""
    try:
        signature.verify([KEY], headers, body, now, tolerance)
    except signature.SignatureError as error:
        return error.reason
    return None


def test_published_vector_signs() -> None:
    """The example of the Standard Webhooks documentation comes out byte for byte."""
    assert signature.sign([KEY], ID, SENT, BODY) == HEADERS


def test_published_vector_verifies() -> None:
    """The example of the Standard Webhooks documentation is accepted."""
    assert reason(HEADERS) is None


@given(keys, ids, st.text(max_size=200))
def test_the_reference_package_makes_the_same_signature(key: bytes, message_id: str, text: str) -> None:
    """What we sign is what the standardwebhooks package signs."""
    ours = signature.sign([key], message_id, SENT, text.encode())
    assert ours["webhook-signature"] == Webhook(key).sign(message_id, datetime.fromtimestamp(SENT, tz=UTC), text)


@given(keys, keys, st.text(max_size=200))
def test_the_reference_package_accepts_what_we_sign(old: bytes, new: bytes, text: str) -> None:
    """Under either of two keys, the standardwebhooks package verifies our headers."""
    headers = signature.sign([new, old], ID, int(datetime.now(tz=UTC).timestamp()), text.encode())
    Webhook(old).verify(text, headers, json_parse=False)
    Webhook(new).verify(text, headers, json_parse=False)


def test_the_reference_package_refuses_a_changed_body() -> None:
    """A changed body fails under the standardwebhooks package as well."""
    headers = signature.sign([KEY], ID, int(datetime.now(tz=UTC).timestamp()), BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(KEY).verify(BODY + b" ", headers)


@given(keys, ids, st.binary(max_size=200))
def test_we_accept_what_the_reference_package_signs(key: bytes, message_id: str, raw: bytes) -> None:
    """A signature of the standardwebhooks package verifies over the received bytes."""
    text = base64.b64encode(raw).decode()
    theirs = Webhook(key).sign(message_id, datetime.fromtimestamp(SENT, tz=UTC), text)
    headers = {"Webhook-Id": message_id, "Webhook-Timestamp": str(SENT), "Webhook-Signature": theirs}
    signature.verify([key], headers, text.encode(), SENT)


def test_raw_bytes_are_what_counts() -> None:
    """C01: the same JSON written differently is another body."""
    assert reason(HEADERS, body=b'{"test":2432232314}') == "no_matching_signature"


@pytest.mark.parametrize("body", [{"test": 2432232314}, BODY.decode(), None])
def test_a_parsed_body_is_refused(body: Any) -> None:
    """C01: a body that is not bytes is refused with a reason of its own."""
    assert reason(HEADERS, body=body) == "body_not_bytes"


@pytest.mark.parametrize("skew", [299, 300, -299, -300, 300.9])
def test_within_the_tolerance(skew: float) -> None:
    """C02: a sender up to 300 whole seconds off is accepted, either way."""
    assert reason(HEADERS, now=SENT + skew) is None


@pytest.mark.parametrize(("skew", "why"), [(301, "too_old"), (-301, "too_new"), (-300.1, "too_new")])
def test_beyond_the_tolerance(skew: float, why: str) -> None:
    """C02: more than 300 seconds off is refused, either way."""
    assert reason(HEADERS, now=SENT + skew) == why


@pytest.mark.parametrize(("skew", "why"), [(0, None), (0.9, None), (1, "too_old"), (-1, "too_new")])
def test_zero_tolerance_means_zero(skew: float, why: str | None) -> None:
    """C02: a tolerance of 0 accepts the very second only."""
    assert reason(HEADERS, now=SENT + skew, tolerance=0) == why


@pytest.mark.parametrize("tolerance", [0, 1, 300, 900])
def test_tolerances_accepted(tolerance: int) -> None:
    """Whole seconds from 0 to 900 are a tolerance."""
    assert signature.check_tolerance(tolerance) == tolerance


@pytest.mark.parametrize("tolerance", [-1, 901, 1.5, 300.0, float("nan"), float("inf"), True, False, "300", None, [1]])
def test_tolerances_refused(tolerance: Any) -> None:
    """C02: NaN, negatives, fractions, booleans, text and more than 900 are refused at set-up and at use."""
    with pytest.raises(ValueError, match="whole number of seconds"):
        signature.check_tolerance(tolerance)
    with pytest.raises(ValueError, match="whole number of seconds"):
        signature.verify([KEY], HEADERS, BODY, SENT, tolerance)


@pytest.mark.parametrize(
    "stamp",
    [
        "1614265330.9",
        " 1614265330",
        "1614265330 ",
        "1614265330\n",
        "161_4265330",
        "+1614265330",
        "-1614265330",
        "01614265330",
        "1e9",
        "0x10",
        "",
        "nan",
        "inf",
        "١٦١٤٢٦٥٣٣٠",
        "\uff11\uff16\uff11\uff14\uff12\uff16\uff15\uff13\uff13\uff10",
        "²",
        "9" * 13,
        "1" * 20_000,
    ],
)
def test_odd_timestamps_are_refused(stamp: str) -> None:
    """C05: only plain ASCII digits are a timestamp, even when the signature covers the odd text."""
    assert reason(HEADERS | {"webhook-timestamp": stamp}) == "malformed"


@pytest.mark.parametrize("junk", ["!", "\n", "=", "*", "\t", "-", "v1"])
@pytest.mark.parametrize("place", [3, 4, 20, 46, 47])
def test_junk_inside_base64_is_refused(junk: str, place: int) -> None:
    """C05: a signature is compared as written; nothing inside it is skipped."""
    assert reason(HEADERS | {"webhook-signature": SIGNATURE[:place] + junk + SIGNATURE[place:]}) in (
        "no_matching_signature",
        "malformed",
    )


def test_another_spelling_of_the_same_bytes_is_refused() -> None:
    """C05: base64 with other unused bits decodes alike and is refused."""
    twin = SIGNATURE[:-2] + "F="
    assert base64.b64decode(twin[3:]) == base64.b64decode(SIGNATURE[3:])
    assert reason(HEADERS | {"webhook-signature": twin}) == "no_matching_signature"


@pytest.mark.parametrize("other", ["v1a,abc", "v2,abc", "v1", ",", "", "v1,", "junk", "v1,AAAA"])
def test_other_signatures_do_not_hide_a_good_one(other: str) -> None:
    """Entries of schemes we do not know, or of other keys, are skipped."""
    assert reason(HEADERS | {"webhook-signature": f"{other} {SIGNATURE}"}) is None


@pytest.mark.parametrize("only", ["v1a" + SIGNATURE[2:], "v2" + SIGNATURE[2:], SIGNATURE[3:], SIGNATURE.upper()])
def test_only_scheme_v1_counts(only: str) -> None:
    """The right bytes under another scheme are no signature."""
    assert reason(HEADERS | {"webhook-signature": only}) == "no_matching_signature"


@pytest.mark.parametrize("name", sorted(HEADERS))
def test_a_missing_header_is_refused(name: str) -> None:
    """Each of the three headers is needed."""
    assert reason({key: value for key, value in HEADERS.items() if key != name}) == "missing_header"


@pytest.mark.parametrize("name", sorted(HEADERS))
def test_a_doubled_header_is_refused(name: str) -> None:
    """C05: a header sent twice, in whatever case, is malformed even when both agree."""
    assert reason([*HEADERS.items(), (name.title(), HEADERS[name])]) == "malformed"
    assert reason(HEADERS | {name.upper(): HEADERS[name]}) == "malformed"


@pytest.mark.parametrize("headers", [None, 5, "webhook-id", [1, 2], [("a",)], [("a", "b", "c")], object(), b"ab"])
def test_headers_of_no_known_shape_are_refused(headers: Any) -> None:
    """C05: whatever is passed for headers, the error is the one error."""
    assert reason(headers) in ("malformed", "missing_header")


@pytest.mark.parametrize("value", [None, 5, b"x", ["x"], "", "é", "\ud800", "x" * 20_000])
@pytest.mark.parametrize("name", sorted(HEADERS))
def test_header_values_of_no_known_shape_are_refused(name: str, value: Any) -> None:
    """C05: bytes, numbers, lone surrogates and huge values are malformed."""
    assert reason(HEADERS | {name: value}) == "malformed"


def test_a_dot_cannot_move_between_id_and_timestamp() -> None:
    """The bytes of one signed message do not pass for another message."""
    moved = signature.sign([KEY], "msg_1", SENT, f"{SENT}.rest".encode())
    assert reason(moved | {"webhook-id": f"msg_1.{SENT}"}, body=b"rest") == "malformed"


@pytest.mark.parametrize("body", [b"", b"\x00\xff", "é".encode()])
def test_any_body_verifies_as_received(body: bytes) -> None:
    """C08: an empty body, or one that is not JSON, verifies over exactly what arrived."""
    assert reason(signature.sign([KEY], ID, SENT, body), body=body) is None


def test_the_tenth_key_is_tried_and_the_eleventh_is_not() -> None:
    """Verification tries ten keys."""
    others = [bytes([n]) * 24 for n in range(10)]
    signature.verify([*others[:9], KEY], HEADERS, BODY, SENT)
    with pytest.raises(signature.SignatureError, match="no_matching_signature"):
        signature.verify([*others, KEY], HEADERS, BODY, SENT)


def test_without_a_secret_nothing_verifies() -> None:
    """No key means refused, never unchecked."""
    with pytest.raises(signature.SignatureError, match="no_secret"):
        signature.verify([], HEADERS, BODY, SENT)


@given(keys, st.integers(0, 2**33), st.binary(max_size=100))
def test_round_trip(key: bytes, sent: int, body: bytes) -> None:
    """What one side signs the other verifies, and no other key does."""
    headers = signature.sign([key], ID, sent, body)
    signature.verify([KEY, key], headers, body, sent)
    if key != KEY:
        with pytest.raises(signature.SignatureError):
            signature.verify([KEY], headers, body, sent)


anything = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=80), st.binary(max_size=80))
names = st.one_of(st.sampled_from([*HEADERS, *(name.title() for name in HEADERS)]), anything)
near = st.sampled_from([*HEADERS.values(), SIGNATURE + "=", "v1," + "A" * 44, "v1,,", " ", "9" * 400])


@given(st.lists(st.tuples(names, st.one_of(near, anything)), max_size=6), st.one_of(st.just(BODY), anything))
def test_hostile_input_is_one_error(pairs: list[tuple[Any, Any]], body: Any) -> None:
    """C05: no input raises anything but SignatureError, and only the signed message is accepted."""
    if reason(pairs, body=body) is None:
        assert body == BODY


@given(st.text(max_size=60))
def test_changed_signatures_are_refused(text: str) -> None:
    """No other text than the signature itself is accepted in its place."""
    if SIGNATURE not in text.split(" "):
        assert reason(HEADERS | {"webhook-signature": text}) in ("malformed", "no_matching_signature")


@pytest.mark.parametrize("size", [24, 25, 32, 63, 64])
def test_secrets_of_24_to_64_bytes(size: int) -> None:
    """A secret holds 24 to 64 bytes and may leave out its padding."""
    encoded = base64.b64encode(bytes(range(size))).decode()
    assert signature.parse_secret("whsec_" + encoded) == bytes(range(size))
    assert signature.parse_secret("whsec_" + encoded.rstrip("=")) == bytes(range(size))


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        SECRET.removeprefix("whsec_"),
        SECRET.upper(),
        f" {SECRET}",
        f"{SECRET}\n",
        SECRET + "=",
        SECRET + "====",
        SECRET + "A",
        SECRET[:20] + "!" + SECRET[20:],
        SECRET.replace("9", "-"),
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        "whsec_" + base64.b64encode(b"x" * 25).decode()[:-3] + "B==",
        "whsec_é" + SECRET[6:],
        None,
        KEY,
    ],
)
def test_secrets_refused(secret: Any) -> None:
    """Anything but whsec_ and canonical base64 of 24 to 64 bytes is refused, showing four characters at most."""
    with pytest.raises(signature.SecretInvalid) as caught:
        signature.parse_secret(secret)
    if isinstance(secret, str) and len(secret) > 8:
        assert not any(secret[at : at + 5] in str(caught.value) for at in range(6, len(secret) - 4))


@given(st.text(max_size=80))
def test_no_text_breaks_the_secret_parser(text: str) -> None:
    """The parser of secrets raises SecretInvalid and nothing else."""
    with pytest.raises(signature.SecretInvalid):
        signature.parse_secret("whsec_?" + text)


def test_new_secrets_are_secrets() -> None:
    """A new secret parses, holds 32 bytes, and is new."""
    first, second = signature.new_secret(), signature.new_secret()
    assert len(signature.parse_secret(first)) == 32
    assert first != second


@given(keys)
def test_hints_agree(key: bytes) -> None:
    """A secret and its key have the same hint of four characters."""
    secret = "whsec_" + base64.b64encode(key).decode()
    assert signature.hint(key) == signature.hint(secret) == secret.rstrip("=")[-4:]


@pytest.mark.parametrize("message_id", ["", "a.b", "a b", "é", "a\n", "x" * 257])
def test_ids_we_do_not_sign(message_id: str) -> None:
    """An id that verification would refuse is never signed."""
    with pytest.raises(ValueError, match="signing takes"):
        signature.sign([KEY], message_id, SENT, BODY)


@pytest.mark.parametrize(("secrets", "sent"), [([], SENT), ([KEY], -1)])
def test_signing_needs_a_key_and_a_time(secrets: list[bytes], sent: int) -> None:
    """Nothing is signed without a key or before the epoch."""
    with pytest.raises(ValueError, match="signing takes"):
        signature.sign(secrets, ID, sent, BODY)
