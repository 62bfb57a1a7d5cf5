"""Submitting runs, looking at them, and operating on them."""

import time
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar, get_args

import msgspec
from msgspec.json import Decoder

from dispatcher import cancelling, claims, completion, control, errors, operations, restarting, runs, submission
from dispatcher import why as why_service
from dispatcher.access import Caller
from dispatcher.api import bodies, queries
from dispatcher.api import errors as api_errors
from dispatcher.api.call import Answer, Call, answer
from dispatcher.api.executing import token
from dispatcher.api.routing import Handler, Route
from dispatcher.lifecycle import is_terminal
from dispatcher.secrets import WRITE_PREFIX
from dispatcher.settings import Settings
from dispatcher.store import Store
from endpoint_sdk.wire import identity, limits
from endpoint_sdk.wire.messages import ServedWorkflow, Status
from endpoint_sdk.wire.operating import (
    CancelRun,
    Nothing,
    ReleaseRun,
    RequeueRun,
    RestartRun,
    RunAnswer,
    RunView,
    SubmitBatch,
    SubmitRun,
    Submitted,
)

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

_SUBMIT: Final = Decoder(SubmitRun)
_BATCH: Final = Decoder(SubmitBatch)
_FILTERS: Final = ("status", "reason", "workflow", "version", "idempotencyKey", "stuckForMs", "limit", "after")
_LAST: Final = 2**31 - 1


class _Change(Protocol[T_contra]):
    async def __call__(
        self, store: Store, settings: Settings, namespace: str, run_id: str, request: T_contra, actor: str
    ) -> RunView: ...


class Reader(Protocol):
    async def __call__(
        self, store: Store, namespace: str, run_id: str, *, limit: int, after: int
    ) -> tuple[Sequence[Any], int | None]: ...


async def submit(call: Call) -> Answer:
    caller = await call.caller("submit")
    request = _checked(await bodies.decoded(call, _SUBMIT), "$.input")
    held = call.services
    version = await _default_version(call, caller, request)
    declared = await _declared(call, caller, request, version)
    done = await submission.submit(held.store, caller.namespace, request, caller.actor, version, declared)
    return answer(await _submitted(call, done), 200 if done.existed else 201)


async def submit_batch(call: Call) -> Answer:
    """One result per run, in order: {run, created} or {error}."""
    caller = await call.caller("submit")
    batch = await bodies.decoded(call, _BATCH)
    requests: list[tuple[SubmitRun, str | None]] = []
    results: list[submission.Submission | errors.Refusal | None] = []
    known: dict[tuple[str, str], ServedWorkflow] = {}
    for place, raw in enumerate(batch.runs):
        try:
            request = _checked(bodies.decode(bytes(raw), _SUBMIT), f"$.runs[{place}].input")
            version = await _default_version(call, caller, request)
            if declared := await _declared(call, caller, request, version):
                known[request.workflow, request.version or version or ""] = declared
            requests.append((request, version))
            results.append(None)
        except errors.Refusal as refusal:
            results.append(refusal)
    done = iter(await submission.submit_batch(call.services.store, caller.namespace, requests, caller.actor, known))
    outcomes = [next(done) if result is None else result for result in results]
    return answer({"results": [await _outcome(call, outcome) for outcome in outcomes]})


async def get(call: Call) -> Answer:
    caller = await call.caller("read")
    queries.parse(call, ())
    held = call.services
    return answer(RunAnswer(await runs.get(held.store, held.settings.recovery, caller.namespace, run_id(call))))


async def list_(call: Call) -> Answer:
    caller = await call.caller("read")
    given = queries.parse(call, _FILTERS, "tag.")
    tags = {name.removeprefix("tag."): value for name, value in given.items() if name.startswith("tag.")}
    if len(tags) > limits.MAX_TAGS:
        raise errors.BadRequest("bad_parameter", f"At most {limits.MAX_TAGS} tags can be filtered on.")
    if "status" in given and given["status"] not in get_args(Status):
        raise errors.BadRequest("bad_parameter", f"status has to be one of {', '.join(get_args(Status))}.")
    if "after" in given and not identity.is_id("run", given["after"]):
        raise errors.BadRequest("bad_parameter", "after has to be the `next` of the page before.")
    wanted = runs.RunFilter(
        status=given.get("status"),
        reason=given.get("reason"),
        workflow=given.get("workflow"),
        version=given.get("version"),
        idempotency_key=given.get("idempotencyKey"),
        tags=tags,
        stuck_for_ms=queries.number(given, "stuckForMs", 0, 0, 2**53) if "stuckForMs" in given else None,
    )
    limit, after, held = queries.limit(given), given.get("after"), call.services
    return _page(
        await runs.list_(held.store, held.settings.recovery, caller.namespace, wanted, limit=limit, after=after)
    )


async def transitions(call: Call) -> Answer:
    caller = await call.caller("read")
    return await history(call, caller, runs.transitions_of, first=-1)


async def records(call: Call) -> Answer:
    """The records of a run for its readers, or further pages of a grant for the holder of its claim."""
    if call.credential().startswith(WRITE_PREFIX):
        given = queries.parse(call, ("after",))
        after = queries.number(given, "after", 0, 0, _LAST)
        held, credential = call.services, token(call, WRITE_PREFIX)
        return _page(await claims.records_for_claim(held.store, held.keys, run_id(call), credential, after))
    caller = await call.caller("read")
    return await history(call, caller, runs.records_of, first=0)


async def result(call: Call) -> Answer:
    """200 once the run has ended, 202 when `waitMs` ends first."""
    caller = await call.caller("read")
    wait_ms = queries.number(queries.parse(call, ("waitMs",)), "waitMs", 0, 0, limits.MAX_WAIT_MS)
    wanted, store = run_id(call), call.services.store
    found = await runs.result(store, caller.namespace, wanted)
    if not is_terminal(found.status) and wait_ms:
        deadline = time.monotonic() + wait_ms / 1_000
        with call.services.completion.watch(wanted) as ended:
            while True:
                # Read first: the run may have ended between the last look and the watch.
                found = await runs.result(store, caller.namespace, wanted)
                left = deadline - time.monotonic()
                if is_terminal(found.status) or left <= 0:
                    break
                await completion.wait(ended, left)
    return answer(found, 200 if is_terminal(found.status) else 202)


async def why(call: Call) -> Answer:
    caller = await call.caller("read")
    queries.parse(call, ())
    held = call.services
    found = await why_service.why(held.store, held.registry, held.settings, caller.namespace, run_id(call))
    return answer(found)


def _operation(decoder: Decoder[T], change: _Change[T]) -> Handler:
    """A handler for an operator's call: its body may be empty, its answer is the run as it is then."""

    async def handle(call: Call) -> Answer:
        caller = await call.caller("operate")
        request = await bodies.decoded(call, decoder, empty=b"{}")
        held = call.services
        run = await change(held.store, held.settings, caller.namespace, run_id(call), request, caller.actor)
        return answer(RunAnswer(run))

    return handle


def run_id(call: Call) -> str:
    """The run the path names. Raises BadRequest `bad_parameter` for what is no run's id."""
    found = call.arguments["run_id"]
    if not identity.is_id("run", found):
        raise errors.BadRequest("bad_parameter", "A run id is run_ and 26 characters.")
    return found


def _checked(request: SubmitRun, place: str) -> SubmitRun:
    if isinstance(request.input, msgspec.Raw):
        bodies.check_payload(request.input, place)
    return request


async def _default_version(call: Call, caller: Caller, request: SubmitRun) -> str | None:
    if request.version is not None:
        return None
    return await call.services.registry.default_version(caller.namespace, request.workflow)


async def _declared(call: Call, caller: Caller, request: SubmitRun, default: str | None) -> ServedWorkflow | None:
    version = request.version or default
    if version is None:
        return None
    return await call.services.registry.declarations.get(caller.namespace, request.workflow, version)


async def _submitted(call: Call, done: submission.Submission) -> Submitted:
    held, run = call.services, done.run
    if done.existed:
        return Submitted(await runs.get(held.store, held.settings.recovery, run.namespace, run.id), done.created)
    return Submitted(runs.view(run, None, held.settings.recovery), done.created)


async def _outcome(call: Call, outcome: submission.Submission | errors.Refusal) -> Any:
    if isinstance(outcome, errors.Refusal):
        return {"error": api_errors.body(outcome, call.request_id)}
    return await _submitted(call, outcome)


def _page(found: tuple[Sequence[Any], Any]) -> Answer:
    items, after = found
    return answer({"items": items, "next": after})


async def history(call: Call, caller: Caller, read: Reader, *, first: int) -> Answer:
    """A page of what *read* finds of a run, its numbers beginning after *first*."""
    given = queries.parse(call, ("limit", "after"))
    after = queries.number(given, "after", first, 0, _LAST)
    return _page(
        await read(call.services.store, caller.namespace, run_id(call), limit=queries.limit(given), after=after)
    )


ROUTES: Final = (
    Route("POST", "/v1/runs", submit),
    Route("POST", "/v1/runs/batch", submit_batch),
    Route("GET", "/v1/runs", list_),
    Route("GET", "/v1/runs/{run_id}", get),
    Route("GET", "/v1/runs/{run_id}/transitions", transitions),
    Route("GET", "/v1/runs/{run_id}/records", records),
    Route("GET", "/v1/runs/{run_id}/result", result),
    Route("GET", "/v1/runs/{run_id}/why", why),
    Route("POST", "/v1/runs/{run_id}/cancel", _operation(Decoder(CancelRun), cancelling.cancel)),
    Route("POST", "/v1/runs/{run_id}/release", _operation(Decoder(ReleaseRun), operations.release)),
    Route("POST", "/v1/runs/{run_id}/wake", _operation(Decoder(Nothing), control.wake)),
    Route("POST", "/v1/runs/{run_id}/pause", _operation(Decoder(Nothing), control.pause)),
    Route("POST", "/v1/runs/{run_id}/resume", _operation(Decoder(Nothing), control.resume)),
    Route("POST", "/v1/runs/{run_id}/requeue", _operation(Decoder(RequeueRun), operations.requeue)),
    Route("POST", "/v1/runs/{run_id}/restart", _operation(Decoder(RestartRun), restarting.restart)),
)
