"""The contract of one run in small: who owns it, what it answers, what it counts."""

from collections.abc import Callable, Coroutine
from typing import Any

from endpoint_sdk.wire.messages import Complete, Ending, Fail, Progressed, RecordIn, Release, Stall
from tests.integration.world import Claim

KILLS, ENDINGS = 3, 10


class Owned:
    """What the contract says of one run."""

    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.status = "queued"
        self.revision = 0
        self.owner: str | None = None
        self.alive_at = 0
        self.requests: dict[int, str | None] = {0: None}
        self.records: dict[tuple[str, int], str] = {}
        self.recorded = False
        self.kills = self.endings = 0
        self.pushes = 0
        self.deadline: int | None = None
        self.counts = True

    def move(self, status: str, request_id: str | None = None) -> None:
        self.status = status
        self.revision += 1
        self.requests[self.revision] = request_id
        self.owner = None
        self.deadline = None

    def release(self, request_id: str | None, *, kills: int, endings: int) -> None:
        """Queued again, or stalled because the counts say so."""
        self.kills, self.endings = kills, endings
        stalled = kills >= KILLS or endings >= ENDINGS
        self.move("stalled" if stalled else "queued", request_id)

    def unpublished(self) -> None:
        """A delivery ended unclaimed; a push counts, a copy at a broker does not."""
        self.deadline = None
        self.endings += self.counts
        if self.endings >= ENDINGS:
            self.move("stalled")

    def holds(self, claim: Claim) -> bool:
        return self.status == "running" and (self.revision, self.owner) == (claim.revision, claim.id)

    def claimed(self, revision: int, claim_id: str, now: int) -> Any:
        """What a claim of the delivery at *revision* is answered: revision and claim id, or the code of its refusal."""
        if self.status == "queued" and self.revision == revision:
            self.move("running", claim_id)
            self.owner, self.recorded, self.alive_at = claim_id, False, now
            return (self.revision, claim_id)
        if self.status == "running" and self.revision == revision + 1:
            if self.owner != claim_id:
                return "already_claimed"
            self.alive_at = now
            return (self.revision, claim_id)
        if self.status in {"cancelled", "completed", "failed"}:
            return "cancelled" if self.status == "cancelled" else "run_finished"
        return "not_claimable" if self.revision == revision else "stale_delivery"

    def written(self, claim: Claim, written: list[RecordIn], ending: Ending | None, request_id: str, now: int) -> Any:
        """What a progress call of *claim* is answered: its revision, or the code of its refusal."""
        if not self.holds(claim):
            if self.requests.get(claim.revision + 1) == request_id:
                return Progressed(claim.revision + 1)
            return "cancelled" if self.status == "cancelled" else "revision_conflict"
        addresses = [(record.name, record.ordinal) for record in written]
        if any(self.records.get(address, claim.id) != claim.id for address in addresses):
            return "record_conflict"
        if any(address not in self.records for address in addresses):
            self.recorded, self.kills, self.endings = True, 0, 0
        self.records.update(dict.fromkeys(addresses, claim.id))
        self.alive_at = now
        if ending is None:
            return Progressed(claim.revision)
        self._end(ending, request_id)
        return Progressed(claim.revision + 1)

    def _end(self, ending: Ending, request_id: str) -> None:
        match ending:
            case Complete():
                self.move("completed", request_id)
            case Fail():
                self.move("failed", request_id)
            case Stall():
                self.move("stalled", request_id)
            case Release(reason):
                counted = not self.recorded and reason != "pause"
                self.release(request_id, kills=self.kills, endings=self.endings + counted)


class Request:
    """A request on the wire: it may be served now, later, often; *expect* says what the model answers to it now."""

    def __init__(self, run: Owned, send: Callable[[], Coroutine[Any, Any, Any]], expect: Callable[[], Any]) -> None:
        self.run = run
        self.send = send
        self.expect = expect
