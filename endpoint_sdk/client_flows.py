"""What a client says to the dispatcher, without saying how: flows that both clients drive.

A flow yields `Send` and is given the answer, or None when nothing is known of it; it yields `Pause` to go on later.
Every request carries its own request id or changes nothing twice, so an unknown outcome is simply sent again.
"""

import json
import random
from collections.abc import Generator
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Raw, Struct

from endpoint_sdk import codec, monotonic
from endpoint_sdk.envelope import PLAIN, Envelope
from endpoint_sdk.errors import ConfigurationError, Conflict, PointsmanError, RunCancelled, RunFailed
from endpoint_sdk.events import Event
from endpoint_sdk.transport.http1 import Answer
from endpoint_sdk.wire import clock, identity, limits, messages, operating
from endpoint_sdk.workflow import Workflow

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_SHORTEST: Final = 0.05
_GRACE: Final = 1.0
_TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})


class Send(Struct, frozen=True):
    """One request; *wait* seconds of its answer's time are the server's to wait, after *seconds* it is given up."""

    method: str
    path: str
    body: bytes = b""
    wait: float = 0.0
    seconds: float = 0.0


class Pause(Struct, frozen=True):
    seconds: float


Flow = Generator[Send | Pause, Answer | None, T]


class _Run(messages.Lenient, frozen=True):
    id: str
    status: str
    revision: int
    reason: str | None = None


class _Submitted(messages.Lenient, frozen=True):
    run: _Run
    created: bool


class _One(messages.Lenient, frozen=True):
    run: _Run


class _Input(messages.Lenient, frozen=True):
    id: str
    input: Raw


class _OneInput(messages.Lenient, frozen=True):
    run: _Input


class _Runs(messages.Lenient, frozen=True):
    items: list[_Run]


class RunState(Struct, frozen=True):
    """Where a run stood when it was asked for."""

    status: str
    revision: int
    reason: str | None


def start(
    workflow: "Workflow[Any, Any] | str",
    value: object,
    *,
    version: str | None,
    idempotency_key: str | None,
    delay: timedelta | datetime | None,
    priority: int,
    pool: str | None,
    tags: dict[str, str] | None,
    patience: float,
    envelope: Envelope = PLAIN,
) -> Flow[tuple[str, bool]]:
    """The id of the run, and whether this call made it; one request id for every time it is sent (I6)."""
    request: dict[str, Any] = {"priority": priority, "requestId": identity.new("req"), **_delay(delay)}
    if isinstance(workflow, Workflow):
        data = workflow.encode_input(value)
        request |= {"workflow": workflow.name, "version": workflow.version}
    else:
        what = f"input of workflow {workflow!r}"
        data = codec.check_size(codec.to_json(value, what), what)
        request["workflow"] = workflow
        if version is not None:
            request["version"] = version
    given = {"idempotencyKey": idempotency_key, "pool": pool, "tags": tags}
    request |= {name: each for name, each in given.items() if each is not None}
    request["input"] = envelope.seal(data)
    try:
        answer = yield from _known(Send("POST", "/v1/runs", msgspec.json.encode(request)), patience)
    except Conflict as conflict:
        return (yield from _same_run(conflict, data, envelope, patience)), False
    submitted = _decoded(answer, _Submitted)
    return submitted.run.id, submitted.created


def _same_run(conflict: Conflict, data: bytes, envelope: Envelope, patience: float) -> Flow[str]:
    """The id of the run in *conflict* if it has the input *data*: to the dispatcher, two encodings of it differ."""
    run_id = (conflict.details or {}).get("runId")
    if not envelope.encodes or conflict.code != "idempotency_conflict" or not isinstance(run_id, str):
        raise conflict
    try:
        found = _decoded((yield from _known(Send("GET", _path(run_id)), patience)), _OneInput).run
        same = codec.from_json(bytes(envelope.open(found.input))) == codec.from_json(data)
    except PointsmanError as error:
        raise conflict from error
    if not same:
        raise conflict
    return found.id


def find(workflow: str, idempotency_key: str, patience: float) -> Flow[str]:
    """The id of the run that *idempotency_key* names; raises PointsmanError `run_not_found`."""
    query = urlencode({"workflow": workflow, "idempotencyKey": idempotency_key, "limit": 1})
    answer = yield from _known(Send("GET", f"/v1/runs?{query}"), patience)
    items = _decoded(answer, _Runs).items
    if not items:
        raise PointsmanError(f"no run of {workflow!r} has that idempotency key", code="run_not_found")
    return items[0].id


def state(run_id: str, patience: float) -> Flow[RunState]:
    """Where the run stands."""
    answer = yield from _known(Send("GET", _path(run_id)), patience)
    run = _decoded(answer, _One).run
    return RunState(run.status, run.revision, run.reason)


def cancel(run_id: str, reason: str, now: bool, patience: float) -> Flow[None]:
    """Asks for the run's cancellation; it may have been cancelled before."""
    body = json.dumps({"reason": reason, "now": now}).encode()
    yield from _known(Send("POST", _path(run_id, "/cancel"), body), patience)


def send(
    run_id: str,
    event: Event[Any] | str,
    value: object,
    event_id: str | None,
    patience: float,
    envelope: Envelope = PLAIN,
) -> Flow[None]:
    """The run has the event; one event id for every time it is sent (I6)."""
    named = event if isinstance(event, Event) else Event[Any](event)
    body = operating.SendEvent(named.name, envelope.seal(named.encode(value)), event_id or identity.new("evt"))
    yield from _known(Send("POST", _path(run_id, "/events"), msgspec.json.encode(body)), patience)


def result(run_id: str, timeout: float | None, patience: float, envelope: Envelope = PLAIN) -> Flow[bytes]:
    """The result's JSON once the run has ended; *timeout* None waits for ever.

    Raises RunFailed, RunCancelled, PayloadError `undecodable`, or TimeoutError after *timeout* seconds.
    """
    deadline = None if timeout is None else monotonic.now() + timeout
    while True:
        left = limits.MAX_WAIT_MS / 1000 if deadline is None else max(deadline - monotonic.now(), 0)
        asked = monotonic.now()
        found = yield from _poll(run_id, left, patience if deadline is None else min(patience, max(left, _GRACE)))
        if found is not None and found.status in _TERMINAL:
            return (yield from _ended(run_id, found, patience, envelope))
        if deadline is not None and monotonic.now() >= deadline:
            raise TimeoutError(f"run {run_id} is {found.status if found else 'out of reach'} after {timeout} s")
        if found is None:
            raise PointsmanError("the dispatcher could not be reached", code="unreachable")
        # Something before the dispatcher may not let it wait; do not hammer it then.
        yield Pause(max(_FIRST_PAUSE - (monotonic.now() - asked), 0))


def _poll(run_id: str, left: float, patience: float) -> Flow[operating.RunResult | None]:
    """What is known of the run's end within *left* seconds; None when the dispatcher stayed out of reach."""
    wait_ms = min(int(left * 1000), limits.MAX_WAIT_MS)
    send = Send("GET", _path(run_id, f"/result?waitMs={wait_ms}"), wait=wait_ms / 1000)
    try:
        answer = yield from _known(send, patience)
    except PointsmanError as error:
        if error.code == "unreachable":
            return None
        raise
    return _decoded(answer, operating.RunResult)


def _ended(run_id: str, found: operating.RunResult, patience: float, envelope: Envelope) -> Flow[bytes]:
    if found.status == "completed":
        return b"null" if isinstance(found.result, msgspec.UnsetType) else bytes(envelope.open(found.result))
    if found.status == "cancelled":
        raise RunCancelled(run_id, (yield from state(run_id, patience)).reason or "")
    error = envelope.open_error(found.error or messages.ErrorObject("Unknown", "the run failed"))
    raise RunFailed(run_id, error.type, error.message, error.details)


def _known(send: Send, patience: float) -> Flow[Answer]:
    """The first answer that settles *send*; sent again while its outcome is unknown, for *patience* seconds."""
    deadline = monotonic.now() + patience + send.wait
    pause = _FIRST_PAUSE
    while True:
        answer = yield msgspec.structs.replace(send, seconds=max(deadline - monotonic.now(), _SHORTEST))
        if answer is not None and answer.status < 500 and answer.status not in (408, 429):
            if answer.status >= 400:
                raise _refusal(answer)
            return answer
        wait = max(pause * random.uniform(0.5, 1.5), _retry_after(answer))  # noqa: S311 - jitter, not a secret
        if monotonic.now() + wait > deadline:
            raise _unreachable(answer)
        yield Pause(wait)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _unreachable(answer: Answer | None) -> PointsmanError:
    if answer is None:
        return PointsmanError("the dispatcher could not be reached", code="unreachable")
    return _refusal(answer)


def _refusal(answer: Answer) -> PointsmanError:
    try:
        error = msgspec.json.decode(answer.body, type=messages.ErrorAnswer).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return PointsmanError(f"the dispatcher answered {answer.status} without an error of ours", code="bad_answer")
    words = f"{error.message} ({error.hint})" if error.hint else error.message
    if answer.status == 409:
        return Conflict(words, code=error.code, details=error.details)
    return PointsmanError(words, code=error.code)


def _decoded(answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise PointsmanError("the answer is not a dispatcher's: is the URL right?", code="bad_answer") from None


def _retry_after(answer: Answer | None) -> float:
    seconds = "" if answer is None else answer.headers.get("retry-after", "")
    return min(float(seconds), _LONGEST_PAUSE) if seconds.isascii() and seconds.isdigit() else 0.0


def _delay(delay: timedelta | datetime | None) -> dict[str, Any]:
    if delay is None:
        return {}
    if isinstance(delay, timedelta):
        return {"delayMs": max(-(-delay // timedelta(milliseconds=1)), 0)}
    if delay.tzinfo is None:
        raise ConfigurationError("delay= needs a datetime with a time zone")
    return {"dueAt": clock.to_wire(int(delay.timestamp() * 1000))}


def _path(run_id: str, rest: str = "") -> str:
    return f"/v1/runs/{quote(run_id, safe='')}{rest}"
