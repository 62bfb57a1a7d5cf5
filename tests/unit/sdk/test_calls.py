"""endpoint_sdk.calls: what to send, and which answers are a loss, a refusal or unknown."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint_sdk import calls
from endpoint_sdk.wire import clock, messages

DELIVERY = messages.Delivery("run_1", "default", "order", "1", 4, 1, "orders", "http://d", "pmc_x", 7)
GRANT = messages.Grant(
    messages.GrantedRun("run_1", "default", "order", "1", 1, msgspec.Raw(b"1"), clock.to_wire(0)),
    5,
    "clm_1",
    "pmw_y",
    90_000,
    30_000,
    clock.to_wire(0),
)
CLAIM = calls.claim(DELIVERY, "clm_1", messages.ExecutorInfo("me"), 30_000)
PROGRESS = calls.progress(GRANT, "req_1", signal_seq=0)
FINISH = calls.progress(GRANT, "req_2", signal_seq=0, ending=messages.Complete(msgspec.Raw(b"1")))
REFRESH = calls.refresh([messages.HeldClaim("run_1", 5, "clm_1", "pmw_y")])


def error(code: object) -> bytes:
    return msgspec.json.encode({"error": {"code": code, "message": "no"}})


def test_a_claim_carries_its_token_revision_claim_id_and_push_number() -> None:
    """The claim request is what the protocol asks for."""
    body = msgspec.json.decode(CLAIM.body)

    assert (CLAIM.method, CLAIM.path) == ("POST", "/v1/runs/run_1/claim")
    assert CLAIM.headers["authorization"] == "Bearer pmc_x"
    assert body == {
        "expectedRevision": 4,
        "claimId": "clm_1",
        "executor": {"id": "me"},
        "refreshIntervalMs": 30_000,
        "pushNumber": 7,
    }


def test_a_refresh_needs_no_credential_but_its_tokens() -> None:
    """No Authorization header is sent; the token travels with its claim."""
    assert "authorization" not in REFRESH.headers
    assert msgspec.json.decode(REFRESH.body)["claims"][0]["token"] == "pmw_y"


def test_a_run_id_cannot_leave_its_place_in_the_path() -> None:
    """An id with a slash or a question mark is percent-encoded."""
    call = calls.claim(msgspec.structs.replace(DELIVERY, run_id="../x?y"), "c", messages.ExecutorInfo("me"), 1)

    assert call.path == "/v1/runs/..%2Fx%3Fy/claim"


def test_encoded_records_are_sent_as_they_are() -> None:
    """A record encoded once is embedded byte for byte."""
    record = calls.record(messages.RecordIn("task", "charge", "h", 0, "ended", "completed", 1, msgspec.Raw(b"1.50")))
    call = calls.progress(GRANT, "req_1", signal_seq=3, encoded=[record])

    assert b'"value":1.50' in call.body
    assert msgspec.json.decode(call.body, type=messages.Progress).signal_seq == 3


def test_a_grant_of_this_claim_is_accepted() -> None:
    """200 with our run, claim id and the next revision is a grant."""
    assert CLAIM.outcome(200, msgspec.json.encode(GRANT)) == calls.Accepted(GRANT)


@pytest.mark.parametrize(
    "grant",
    [
        msgspec.structs.replace(GRANT, claim_id="clm_2"),
        msgspec.structs.replace(GRANT, revision=7),
        msgspec.structs.replace(GRANT, run=msgspec.structs.replace(GRANT.run, id="run_2")),
    ],
)
def test_a_grant_of_something_else_is_unknown(grant: messages.Grant) -> None:
    """C14: nothing adopts a claim id, a revision or a run it did not ask for."""
    assert isinstance(CLAIM.outcome(200, msgspec.json.encode(grant)), calls.Unknown)


def test_an_answer_with_another_revision_is_unknown() -> None:
    """I2: a progress answer that names a newer revision does not make the executor continue under it."""
    newer = msgspec.json.encode(messages.Progressed(9))

    assert isinstance(PROGRESS.outcome(200, newer), calls.Unknown)
    assert isinstance(FINISH.outcome(200, newer), calls.Unknown)
    assert isinstance(FINISH.outcome(200, msgspec.json.encode(messages.Progressed(6))), calls.Accepted)
    assert isinstance(PROGRESS.outcome(200, msgspec.json.encode(messages.Progressed(6))), calls.Unknown)


@pytest.mark.parametrize("code", ["already_claimed", "cancelled", "run_finished", "not_claimable", "stale_delivery"])
def test_a_refused_claim_is_a_loss(code: str) -> None:
    """C18: each refusal of a claim is recognised by its machine code."""
    assert CLAIM.outcome(409, error(code)) == calls.Loss(code)


@pytest.mark.parametrize("code", ["revision_conflict", "cancelled"])
def test_a_fenced_write_is_a_loss(code: str) -> None:
    """409 with a code of ours says the claim is gone."""
    assert PROGRESS.outcome(409, error(code)) == calls.Loss(code)


def test_an_unknown_run_is_a_loss() -> None:
    """404 is a loss only with run_not_found in our error body."""
    assert PROGRESS.outcome(404, error("run_not_found")) == calls.Loss("run_not_found")
    assert isinstance(PROGRESS.outcome(404, error("route_not_found")), calls.Unknown)
    assert isinstance(PROGRESS.outcome(404, b"not found"), calls.Unknown)


@pytest.mark.parametrize("status", [400, 403, 413, 422])
def test_a_definite_refusal_needs_our_code(status: int) -> None:
    """A gateway's own 4xx is not the dispatcher's word."""
    assert PROGRESS.outcome(status, error("payload_too_large")) == calls.Refused("payload_too_large", "no")
    assert isinstance(PROGRESS.outcome(status, b'{"message": "Forbidden"}'), calls.Unknown)
    assert isinstance(PROGRESS.outcome(status, error(413)), calls.Unknown)


@pytest.mark.parametrize("status", [201, 204, 301, 401, 405, 408, 409, 410, 429, 500, 502, 503, 504])
def test_everything_else_is_unknown(status: int) -> None:
    """Any other status decides nothing, whatever its body says."""
    for body in (b"", b"<html>", error("some_code"), error("unavailable")):
        assert isinstance(PROGRESS.outcome(status, body), calls.Unknown)


@given(st.integers(100, 599), st.binary(max_size=200))
def test_no_answer_raises(status: int, body: bytes) -> None:
    """Whatever comes back, the outcome is one of four, and bytes that are not ours decide nothing."""
    for call in (CLAIM, PROGRESS, FINISH, REFRESH):
        assert isinstance(call.outcome(status, body), calls.Unknown)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )
)
def test_json_that_is_not_ours_decides_nothing(body: object) -> None:
    """A 200 with foreign JSON is not an acceptance."""
    assert isinstance(PROGRESS.outcome(200, msgspec.json.encode(body)), calls.Unknown)


def test_a_claim_in_neither_list_is_unknown() -> None:
    """A refresh answer judges only the revision it names."""
    claim = messages.HeldClaim("run_1", 5, "clm_1", "pmw_y")
    answer = messages.Refreshed(
        [messages.Held("run_1", 4), messages.Held("run_2", 5)], [messages.Lost("run_1", 6, "revision_conflict")]
    )

    assert isinstance(calls.held(claim, answer), calls.Unknown)
    assert calls.held(claim, messages.Refreshed([messages.Held("run_1", 5, "cancel")], [])) == calls.Accepted("cancel")
    lost = messages.Refreshed([], [messages.Lost("run_1", 5, "revision_conflict")])
    assert calls.held(claim, lost) == calls.Loss("revision_conflict")
