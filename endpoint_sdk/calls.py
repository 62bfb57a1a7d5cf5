"""The calls of an executor, without I/O: what to send, and what an answer means.

Every call is a `Call`; whoever has a transport sends it and hands the answer to `Call.outcome`. Only four things can
come of it (infra/docs/protocol.md, I3):

    Accepted   the dispatcher did it, now or before (a repeat under one request id)
    Refused    it never will: 400, 403, 413 or 422 with a code of ours
    Loss       the claim is gone: 409 with a code of ours, or 404 `run_not_found`
    Unknown    anything else, silence included: keep going, send the same call again
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from endpoint_sdk.wire import child_messages, messages

T = TypeVar("T")

DEFAULT_NAMESPACE: Final = "default"

_CLAIM_REFUSALS: Final = frozenset({"already_claimed", "cancelled", "run_finished", "not_claimable", "stale_delivery"})
_FENCED: Final = frozenset({"revision_conflict", "cancelled", "run_finished"})
_REFUSALS: Final = frozenset({400, 403, 413, 422})
_POLL_REFUSALS: Final = frozenset({401, 404, 405, 409, 429})
_CODE_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")


class Accepted(Struct, Generic[T], frozen=True):
    value: T


class Refused(Struct, frozen=True):
    code: str
    message: str


class Loss(Struct, frozen=True):
    code: str


class Unknown(Struct, frozen=True):
    """`why` is for the log: a status or the name of a transport error, never a body.

    `sent` is false where nothing of the call can have reached the dispatcher.
    """

    why: str
    sent: bool = True


def told(outcome: Refused | Loss | Unknown) -> str:
    """Why a call did not succeed, for the log."""
    match outcome:
        case Refused(code, message):
            return f"{message} ({code})"
        case Loss(code):
            return code
        case Unknown(why):
            return f"no answer ({why})"


Outcome: TypeAlias = Accepted[T] | Refused | Loss | Unknown
Fence: TypeAlias = tuple[str, int]

NOT_NAMED: Final = Unknown("not in the answer")


class Call(Struct, Generic[T], frozen=True):
    """One request; sending it again is always the same request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    parse: Callable[[int, bytes], Outcome[T]]

    def outcome(self, status: int, body: bytes) -> Outcome[T]:
        """What an answer with *status* and *body* says about this call."""
        return self.parse(status, body)


class RecordPage(messages.Lenient, frozen=True):
    items: list[messages.Record]
    next: int | str | None = None


class _Progress(messages.Lenient, frozen=True):
    """messages.Progress with its records already encoded: each is encoded once, when its size is measured."""

    expected_revision: int
    claim_id: str
    request_id: str
    signal_seq: int
    signals_after: int
    note: str | None
    records: Sequence[Raw]
    ending: messages.Ending | None


class _Starts(messages.Lenient, frozen=True):
    """child_messages.StartChildren with its children already encoded."""

    expected_revision: int
    claim_id: str
    children: Sequence[Raw]
    signals_after: int


_encode: Final = msgspec.json.Encoder().encode
_claimed: Final = msgspec.json.Decoder(messages.Claimed)
_error: Final = msgspec.json.Decoder(messages.ErrorAnswer)
_grant: Final = msgspec.json.Decoder(messages.Grant)
_outcomes: Final = msgspec.json.Decoder(child_messages.ChildOutcomes)
_page: Final = msgspec.json.Decoder(RecordPage)
_progressed: Final = msgspec.json.Decoder(messages.Progressed)
_refreshed: Final = msgspec.json.Decoder(messages.Refreshed)
_started: Final = msgspec.json.Decoder(child_messages.ChildrenStarted)


def claim(
    delivery: messages.Delivery, claim_id: str, executor: messages.ExecutorInfo, refresh_interval_ms: int
) -> Call[messages.Grant]:
    """Claims the delivered revision; the same *claim_id* makes a repeat harmless.

    A refused claim is a `Loss`: there is nothing to do for this delivery. A grant of another run or claim is no
    answer to this call, so it is `Unknown`.
    """
    body = messages.ClaimRun(delivery.revision, claim_id, executor, refresh_interval_ms, delivery.push_number)

    def ours(grant: messages.Grant) -> bool:
        granted = (grant.run.id, grant.claim_id, grant.revision)
        return granted == (delivery.run_id, claim_id, delivery.revision + 1)

    return Call(
        "POST",
        f"{_path(delivery.run_id)}/claim",
        _headers(delivery.token),
        _encode(body),
        partial(_parse, _grant, _CLAIM_REFUSALS, ours),
    )


def poll(wanted: messages.ClaimMany, api_key: str, namespace: str) -> Call[messages.Claimed]:
    """Claims up to *wanted.limit* runs; with limit 0 it takes none and learns which are held under its request id.

    What the dispatcher refuses is `Refused`, a missing credential included: then nothing was claimed. A grant of
    another request is no answer to this one.
    """
    headers = _headers(api_key)
    if namespace != DEFAULT_NAMESPACE:
        headers[messages.HEADER_NAMESPACE] = namespace

    def ours(answer: messages.Claimed) -> bool:
        return all(grant.claim_id == f"{wanted.request_id}_{grant.run.id}" for grant in answer.claims)

    return Call("POST", "/v1/claims", headers, _encode(wanted), partial(_parse_poll, ours))


def release(grant: messages.Grant, request_id: str, delay_ms: int) -> Call[messages.Progressed]:
    """Gives the run of *grant*, on which nothing was done, to somebody else after *delay_ms*."""
    ending = messages.Release("drain", delay_ms)
    return progress(grant, request_id, signal_seq=grant.signal_seq, ending=ending)


def records(grant: messages.Grant, after: int | str) -> Call[RecordPage]:
    """Reads the page of the run's records that follows cursor *after*."""
    return Call(
        "GET",
        f"{_path(grant.run.id)}/records?after={quote(str(after), safe='')}",
        {"authorization": f"Bearer {grant.token}"},
        b"",
        partial(_parse, _page, _FENCED, _always),
    )


def progress(
    grant: messages.Grant,
    request_id: str,
    *,
    signal_seq: int,
    signals_after: int = 0,
    encoded: Sequence[bytes] = (),
    ending: messages.Ending | None = None,
    note: str | None = None,
) -> Call[messages.Progressed]:
    """Writes records (each a RecordIn, *encoded*), then *ending* if there is one, in one transaction.

    An answer that names any revision but the sent one, or with an ending the next, is `Unknown`: no answer makes an
    executor continue under another revision (infra/docs/protocol.md, I2).
    """
    revision = grant.revision
    expected = {revision} if ending is None else {revision, revision + 1}
    raw = [Raw(each) for each in encoded]
    body = _Progress(revision, grant.claim_id, request_id, signal_seq, signals_after, note, raw, ending)
    return Call(
        "POST",
        f"{_path(grant.run.id)}/progress",
        _headers(grant.token),
        _encode(body),
        partial(_parse, _progressed, _FENCED, lambda answer: answer.revision in expected),
    )


def start_children(
    grant: messages.Grant, encoded: Sequence[bytes], signals_after: int
) -> Call[child_messages.ChildrenStarted]:
    """Starts children (each a ChildStart, *encoded*); those that exist are found again.

    An answer that does not say what became of each is `Unknown`.
    """
    raw = [Raw(each) for each in encoded]

    def whole(answer: child_messages.ChildrenStarted) -> bool:
        known = all(child.id is not None or child.error is not None for child in answer.children)
        return known and len(answer.children) == len(raw)

    return Call(
        "POST",
        f"{_path(grant.run.id)}/children",
        _headers(grant.token),
        _encode(_Starts(grant.revision, grant.claim_id, raw, signals_after)),
        partial(_parse, _started, _FENCED, whole),
    )


def child_outcomes(grant: messages.Grant, parent_call: str, after: int | None) -> Call[child_messages.ChildOutcomes]:
    """Reads a page of what became of the children of *parent_call*: those after index *after*, None for the first."""
    query = f"call={quote(parent_call, safe='')}" + ("" if after is None else f"&after={after}")
    return Call(
        "GET",
        f"{_path(grant.run.id)}/children/outcomes?{query}",
        {"authorization": f"Bearer {grant.token}"},
        b"",
        partial(_parse, _outcomes, _FENCED, _always),
    )


def refresh(claims: Sequence[messages.HeldClaim]) -> Call[messages.Refreshed]:
    """Says "still alive" for *claims*; needs no credential but the tokens in the list."""
    body = _encode(messages.Refresh(list(claims)))
    parse = partial(_parse, _refreshed, frozenset[str](), _always)
    return Call("POST", "/v1/claims/refresh", {"content-type": "application/json"}, body, parse)


def verdicts(answer: messages.Refreshed) -> dict[Fence, Accepted[messages.Stop | None] | Loss]:
    """What a refresh answer says of each (run, revision) it names; of any other it says nothing."""
    held: dict[Fence, Accepted[messages.Stop | None] | Loss] = {
        (entry.run_id, entry.expected_revision): Accepted(entry.stop) for entry in answer.held
    }
    return held | {(lost.run_id, lost.expected_revision): Loss(lost.code) for lost in answer.lost}


def held(claim: messages.HeldClaim, answer: messages.Refreshed) -> Outcome[messages.Stop | None]:
    """The verdict of a refresh answer on *claim*; named in neither list, it is unknown."""
    return verdicts(answer).get((claim.run_id, claim.expected_revision), NOT_NAMED)


def record(record: messages.RecordIn) -> bytes:
    """*record* as it goes into a progress call."""
    return _encode(record)


def child_start(start: child_messages.ChildStart) -> bytes:
    """*start* as it goes into a call that starts children."""
    return _encode(start)


def _path(run_id: str) -> str:
    return f"/v1/runs/{quote(run_id, safe='')}"


def _headers(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", "content-type": "application/json"}


def _always(_answer: object) -> bool:
    return True


def _parse(
    decoder: msgspec.json.Decoder[T], losses: frozenset[str], acceptable: Callable[[T], bool], status: int, body: bytes
) -> Outcome[T]:
    if status == 200:
        return _accepted(decoder, acceptable, body)
    error = _our_error(body)
    if error is None:
        return Unknown(f"status {status}")
    if (status == 409 and error.code in losses) or (status == 404 and error.code == "run_not_found"):
        return Loss(error.code)
    if status in _REFUSALS:
        return Refused(error.code, error.message)
    return Unknown(f"status {status}, {error.code}")


def _parse_poll(acceptable: Callable[[messages.Claimed], bool], status: int, body: bytes) -> Outcome[messages.Claimed]:
    outcome = _parse(_claimed, frozenset(), acceptable, status, body)
    error = _our_error(body) if isinstance(outcome, Unknown) and status in _POLL_REFUSALS else None
    return outcome if error is None else Refused(error.code, error.message)


def _accepted(decoder: msgspec.json.Decoder[T], acceptable: Callable[[T], bool], body: bytes) -> Outcome[T]:
    try:
        value = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Unknown("malformed answer")
    return Accepted(value) if acceptable(value) else Unknown("answer to another call")


def _our_error(body: bytes) -> messages.ErrorBody | None:
    try:
        error = _error.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return error if error.code and _CODE_CHARACTERS.issuperset(error.code) else None
