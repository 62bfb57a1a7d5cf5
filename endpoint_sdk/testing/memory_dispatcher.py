"""A dispatcher in memory for an endpoint's own calls: runs made for signed fixture events are claimed from it.

It stands in front of the endpoint's transport and answers what concerns its runs; every other call goes on as before.
"""

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from endpoint_sdk.endpoint import Endpoint
from endpoint_sdk.testing import endpoint_insides
from endpoint_sdk.testing.memory_run import MemoryRun
from endpoint_sdk.transport import Answer
from endpoint_sdk.wire import messages

URL: Final = "http://pointsman.invalid"

_STATUS: Final[dict[type, messages.Status]] = {
    messages.Complete: "completed",
    messages.Fail: "failed",
    messages.Cancelled: "cancelled",
    messages.Stall: "stalled",
    messages.Release: "queued",
    messages.Retry: "awaiting_retry",
    messages.Restart: "queued",
}


class MemoryDispatcher:
    """The runs of one endpoint; *behind* is the transport it had."""

    def __init__(self, behind: Any) -> None:
        self._behind = behind
        self._runs: dict[str, MemoryRun] = {}
        self._claims: dict[str, str] = {}

    def add(self, run: MemoryRun) -> None:
        """The run can be claimed."""
        self._runs[run.run.id] = run

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"", **options: Any
    ) -> Answer:
        """The answer to a call about a run of ours, or what the transport behind says."""
        _, _, *parts = urlsplit(url).path.split("/")
        run = self._runs.get(parts[1]) if len(parts) == 3 and parts[0] == "runs" else None
        if run is None:
            answer: Answer = await self._behind.request(method, url, headers, body, **options)
            return answer
        match parts[2]:
            case "claim":
                return self._claim(run, msgspec.json.decode(body, type=messages.ClaimRun))
            case "progress":
                return self._progress(run, msgspec.json.decode(body, type=messages.Progress))
        return _refused(422, "not_in_a_fixture", "a run made for a fixture event has no such call")

    async def close(self) -> None:
        """As the transport behind."""
        await self._behind.close()

    def _claim(self, run: MemoryRun, request: messages.ClaimRun) -> Answer:
        if self._claims.get(run.run.id) != request.claim_id or run.status != "running":
            if run.status != "queued" or run.revision != request.expected_revision:
                return _refused(409, "stale_delivery", "the run is not queued at this revision")
            self._claims[run.run.id] = request.claim_id
            run.claim(_now())
        grant = msgspec.structs.replace(run.grant(_now()), claim_id=request.claim_id, token="pmw_memory")  # noqa: S106
        return _answer(grant)

    def _progress(self, run: MemoryRun, request: messages.Progress) -> Answer:
        fence = (run.revision, self._claims.get(run.run.id))
        if run.status != "running" or fence != (request.expected_revision, request.claim_id):
            return _refused(409, "revision_conflict", "this claim no longer holds the run")
        for record in request.records:
            run.record(record, request.claim_id)
        if isinstance(request.ending, messages.Park):
            refused = run.park(request.ending.waits, request.signal_seq, _now(), told=request.ending.told)
            return _answer(
                messages.Progressed(
                    run.revision, run.stop, signal_seq=run.signal_seq, parked=refused is None, signals=refused or []
                )
            )
        if request.ending is not None:
            run.move(_STATUS[type(request.ending)])
        return _answer(messages.Progressed(run.revision, run.stop, signal_seq=run.signal_seq))


def of(endpoint: Endpoint) -> MemoryDispatcher:
    """The dispatcher in front of the transport of *endpoint*, put there if there is none."""
    found = endpoint_insides.transport_of(endpoint)
    if isinstance(found, MemoryDispatcher):
        return found
    made = MemoryDispatcher(found)
    endpoint_insides.exchange_transport(endpoint, made)
    return made


def _now() -> int:
    return time.time_ns() // 1_000_000


def _answer(body: msgspec.Struct) -> Answer:
    return Answer(200, {}, msgspec.json.encode(body))


def _refused(status: int, code: str, message: str) -> Answer:
    return Answer(status, {}, msgspec.json.encode(messages.ErrorAnswer(messages.ErrorBody(code, message))))
