"""The envelope of a user's codec: what it hides, what it leaves readable, what it takes as it comes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from endpoint_sdk import ConfigurationError, PayloadError, envelope
from endpoint_sdk.envelope import Envelope
from endpoint_sdk.wire import child_messages, messages

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab$enc"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab$enc"), inner, max_size=4),
    max_leaves=12,
)


class Reversed:
    """A codec anybody can read, and which refuses what it did not make."""

    def encode(self, data: bytes, /) -> bytes:
        return b"!" + data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        if data[:1] != b"!":
            raise ValueError("secret words")
        return data[:0:-1]


sealed = Envelope(Reversed())


def _record(**given: Any) -> messages.RecordIn:
    return messages.RecordIn("task", "charge", "hash", 0, "ended", "completed", 1, preview='{"card":"4111"}', **given)


@given(values)
def test_a_payload_comes_back_as_it_was(value: Any) -> None:
    """Any JSON makes the way out and back, one that looks like an envelope too."""
    data = msgspec.json.encode(value)

    stored = sealed.seal(data)

    assert msgspec.json.decode(stored).keys() == {"$enc"}
    assert bytes(sealed.open(stored)) == data


def test_without_a_codec_nothing_is_changed() -> None:
    """What looks like an envelope is the user's own value then."""
    data = b'{"$enc":"IXt9"}'

    assert bytes(envelope.PLAIN.seal(data)) == data
    assert bytes(envelope.PLAIN.open(data)) == data
    assert envelope.PLAIN.seal_record(_record()) == _record()


def test_a_record_keeps_its_address_and_loses_its_preview() -> None:
    """Name and argument hash are what replay goes by; the preview would show the arguments."""
    record = sealed.seal_record(_record(value=Raw(b'"r1"')))

    assert (record.name, record.args_hash, record.preview) == ("charge", "hash", None)
    assert isinstance(record.value, Raw)
    assert b"r1" not in bytes(record.value)


def test_an_error_keeps_its_type_alone() -> None:
    """Retries and `is_` go by the type; message and details are the user's words."""
    error = messages.ErrorObject("CardDeclined", "4111 was declined", {"card": "4111"}, retryable=False)

    stored = sealed.seal_error(error)

    assert (stored.type, stored.retryable) == ("CardDeclined", False)
    assert b"4111" not in msgspec.json.encode(stored)
    assert sealed.open_error(stored) == error


def test_an_error_the_dispatcher_wrote_is_read_as_it_is() -> None:
    """A child's own error lies within the one its parent sees; only that is encoded."""
    child = sealed.seal_error(messages.ErrorObject("CardDeclined", "4111 was declined", {"card": "4111"}))
    details = {"runId": "run_1", "status": "failed", "type": child.type, "details": child.details}

    opened = sealed.open_error(messages.ErrorObject("ChildFailed", "run_1 failed", details))

    assert opened.message == "run_1 failed"
    assert opened.details == {**details, "message": "4111 was declined", "details": {"card": "4111"}}


def test_envelopes_within_plain_json_are_opened() -> None:
    """A run of on_failure gets the failed run's input and error inside an object the dispatcher made."""
    error = sealed.seal_error(messages.ErrorObject("CardDeclined", "no", {"card": "4111"}))
    made = {"runId": "run_1", "input": sealed.seal(b'{"id":"o1"}'), "error": error}

    opened = msgspec.json.decode(sealed.open(msgspec.json.encode(made)))

    assert opened["runId"] == "run_1"
    assert opened["input"] == {"id": "o1"}
    assert opened["error"]["message"] == "no"
    assert opened["error"]["details"] == {"card": "4111"}


@pytest.mark.parametrize(
    ("ending", "hidden"),
    [
        (messages.Complete(Raw(b'"secret"')), True),
        (messages.Restart(Raw(b'"secret"')), True),
        (messages.Fail(messages.ErrorObject("E", "secret")), True),
        (messages.Retry(messages.ErrorObject("E", "secret"), 5), True),
        (messages.Release("handoff"), False),
    ],
)
def test_every_ending_with_a_payload_is_encoded(ending: messages.Ending, hidden: bool) -> None:
    """Results, errors and the input of a restart; the others go as they are."""
    stored = sealed.seal_ending(ending)

    assert b"secret" not in msgspec.json.encode(stored)
    assert (stored != ending) is hidden


def test_a_divergence_names_calls_without_their_arguments() -> None:
    """Previews, changed arguments and what a decoder said of a value stay here."""
    call = {"kind": "task", "name": "charge", "ordinal": 0, "preview": '{"card":"4111"}'}
    details = {"recorded": [{**call, "seq": 3}], "new": [call], "message": "charge 4111", "changed": ["card"]}

    stored = sealed.seal_ending(messages.Stall("divergence", details))

    assert isinstance(stored, messages.Stall)
    assert stored.details == {
        "recorded": [{**call, "seq": 3, "preview": None}],
        "new": [{**call, "preview": None}],
        "message": "the recorded task charge does not fit, task charge is new",
    }


def test_children_are_encoded_both_ways() -> None:
    """Their inputs leave encoded and without preview, their results and errors come back readable."""
    start = child_messages.ChildStart("child", "ship", "1", "hash", 0, Raw(b'"o1"'), preview='"o1"')
    sent = sealed.seal_child(start)

    assert bytes(sealed.open(sent.input)) == b'"o1"'
    assert sent.preview is None
    outcome = child_messages.ChildOutcome(0, "run_1", "completed", sealed.seal(b'"r1"'))
    assert bytes(sealed.open_child(outcome).result) == b'"r1"'  # type: ignore[arg-type]


@pytest.mark.parametrize("stored", [b'{"$enc":"IA=="}', b'{"$enc":"not base64"}'])
def test_what_the_codec_refuses_is_named_without_its_words(stored: bytes) -> None:
    """The error of a codec may quote what it was given: only its class is told."""
    with pytest.raises(PayloadError) as refused:
        sealed.open(stored)

    assert refused.value.code == "undecodable"
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("codec", [Reversed, object(), b"key"])
def test_what_is_no_codec_is_refused_at_once(codec: Any) -> None:
    """A class, or an object without the two methods, fails where it is handed over."""
    with pytest.raises(ConfigurationError, match=r"Endpoint\(codec=\) is an object with encode"):
        envelope.of(codec, "Endpoint(codec=)")
